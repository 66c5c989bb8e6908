"""What the acceptance tests start, stop and read: services and coordinators as real processes, the counter, the ledger.

Everything here goes through the command line or the public API, so that it holds for an installed wheel as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

import tallystick as ts

from .nursery import Bred, breed

__all__ = [
    "COMMAND_LINE",
    "DRIVER",
    "FIXTURES",
    "KILLED",
    "Coordinator",
    "HoldingProxy",
    "Request",
    "Service",
    "Site",
    "Speaking",
    "read_requests",
    "until",
]

FIXTURES: Final = Path(__file__).resolve().parents[1] / "fixtures"
COMMAND_LINE: Final = (sys.executable, "-m", "tallystick")
DRIVER: Final = (sys.executable, str(FIXTURES / "coordinator.py"))
_SCRIPTS: Final = tuple(
    (sys.executable, str(FIXTURES / name)) for name in ("guarded_script.py", "embedding_harness.py")
)
PATIENCE_SECONDS: Final = 60.0
"""How long a test waits for another process before it says that this hangs; never what it expects."""

KILLED: Final = -signal.SIGKILL


@attrs.frozen
class Request:
    """One line of an independent counter: a request that has really arrived."""

    request_id: str
    payload_digest: str
    at: float


def until(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of the condition: the one place where a test looks again and again, within a bound."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {PATIENCE_SECONDS:g} s in vain until {what}")
        select.select([], [], [], 0.003)
    return found


def read_requests(path: Path) -> list[tuple[str, Request]]:
    """Every request that a counter has seen with its path, in the order of arrival; a half-written line is left out."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    found = [json.loads(line) for line in lines]
    return [(line.get("path", ""), Request(line["request_id"], line["payload_digest"], line["at"])) for line in found]


def read_counter(path: Path) -> list[Request]:
    """Every request that a counter has seen, in the order of arrival."""
    return [request for _, request in read_requests(path)]


class Speaking:
    """A program of the fixtures that prints lines and is told lines; it outlives every coordinator."""

    def __init__(self, *command: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._unread = b""

    def say(self, text: str) -> None:
        """Tell it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n".encode())
        self.process.stdin.flush()

    def line(self, *, look: Callable[[], None] = lambda: None) -> str:
        """The next line that it prints; ``look`` is called while there is none, and may raise."""
        assert self.process.stdout is not None
        end = time.monotonic() + PATIENCE_SECONDS
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self.process.stdout], [], [], 0.5)
            if not ready:
                look()
                assert time.monotonic() < end, "it says nothing"
                continue
            found = os.read(self.process.stdout.fileno(), 65536)
            assert found, "it has ended"
            self._unread += found
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


class Service(Speaking):
    """The scripted HTTP service; its log is the independent counter."""

    def __init__(self, folder: Path, *, is_synced: bool = True) -> None:
        self.log = folder / "counter.jsonl"
        more = [] if is_synced else ["--no-sync"]
        super().__init__(FIXTURES / "http_server.py", "--log", self.log, *more)
        self._waiting: list[str] = []
        self.port = int(self.line())
        self.url = f"http://127.0.0.1:{self.port}"

    def requests(self) -> list[Request]:
        return read_counter(self.log)

    def received(self) -> int:
        """How many requests have arrived, without reading what they were."""
        return self.log.read_bytes().count(b"\n") if self.log.exists() else 0

    def wait_for(self, gate: str, *, look: Callable[[], None] = lambda: None) -> None:
        """Until a request waits at the gate."""
        while gate not in self._waiting:
            word, _, name = self.line(look=look).partition(" ")
            assert word == "waiting", word
            self._waiting.append(name)
        self._waiting.remove(gate)

    def go(self, gate: str) -> None:
        """Open the gate for whoever waits there and whoever will."""
        self.say(f"go {gate}")

    def ask(self, method: str, path: str) -> tuple[int, Any]:
        """A question to the service; it is not counted as a request."""
        request = urllib.request.Request(self.url + path, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as problem:
            with problem:
                return problem.code, json.load(problem)

    def worked(self) -> int:
        """How many requests were worked on, and not refused or answered from memory."""
        found: int = self.ask("GET", "/counts")[1]["worked"]
        return found


class HoldingProxy(Speaking):
    """A relay before a service that holds the first request back until it is released."""

    def __init__(self, service: Service) -> None:
        super().__init__(FIXTURES / "holding_proxy.py", service.port)
        self.url = f"http://127.0.0.1:{int(self.line())}"

    def wait_until_holding(self) -> None:
        """Until it has a whole request in its hands."""
        assert self.line() == "holding"

    def release(self) -> None:
        """Let the request go on, and wait until the service has dealt with it."""
        self.say("release")
        assert self.line() == "released"


class Coordinator:
    """One process that executes a run. With ``crashpoint`` it kills itself there, with ``pause_at`` it stands there."""

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        name: str,
        *,
        crashpoint: str = "",
        pause_at: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.crashpoint = crashpoint or pause_at
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        self._pipes: list[int] = []
        self._reached = self._release = -1
        told = {**os.environ, "COUNTER_LOG": str(folder / "counter.jsonl"), **(environment or {})}
        inherited: tuple[int, ...] = ()
        if self.crashpoint:
            told["TALLYSTICK_CRASHPOINT"] = self.crashpoint
        if pause_at:
            go_read, self._release = os.pipe()
            self._reached, here_write = os.pipe()
            told["TALLYSTICK_CRASHPOINT_PIPE"] = f"{go_read},{here_write}"
            inherited = (go_read, here_write)
            self._pipes = [self._release, self._reached]
        # Not the work order's folder, so that nothing is found by luck.
        elsewhere = folder / "elsewhere"
        elsewhere.mkdir(exist_ok=True)
        self.process = self._started(command, elsewhere, told, inherited)
        for descriptor in inherited:
            os.close(descriptor)

    def _started(
        self, command: Sequence[str], folder: Path, environment: Mapping[str, str], inherited: Sequence[int]
    ) -> subprocess.Popen[bytes] | Bred:
        bred = (COMMAND_LINE, DRIVER, *_SCRIPTS)
        program = next((program for program in bred if tuple(command[: len(program)]) == program), None)
        if program is not None:
            arguments = command[len(program) :]
            return breed(
                program[-1], arguments, folder=folder, environment=environment, out=self._out, err=self._err,
                pass_fds=inherited,
            )  # fmt: skip
        with self._out.open("wb") as out, self._err.open("wb") as err:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder, env=environment,
                pass_fds=inherited,
            )  # fmt: skip

    @property
    def out(self) -> str:
        """What it has printed so far."""
        return self._out.read_text(errors="replace")

    @property
    def err(self) -> str:
        """What it has said on standard error so far."""
        return self._err.read_text(errors="replace")

    def wait_until_there(self) -> None:
        """Until it stands at its crash point."""
        ready, _, _ = select.select([self._reached], [], [], PATIENCE_SECONDS)
        assert ready, f"it does not come to {self.crashpoint}: {self.err}"
        assert os.read(self._reached, 200).decode().strip() == self.crashpoint.partition("@")[0]

    def let_go(self) -> None:
        """Let it go on from its crash point."""
        os.write(self._release, b"x")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def kill(self) -> int:
        """SIGKILL now, if it is still there; says how it ended."""
        if self.process.poll() is None:
            self.process.kill()
        return self.process.wait()

    def dies(self) -> None:
        """SIGKILL, and make sure that this is what ended it."""
        assert self.kill() == KILLED, f"it had already ended: {self.process.returncode}\n{self.out}\n{self.err}"

    def ended(self, *, patience_seconds: float = PATIENCE_SECONDS) -> int:
        """Wait for its own end and return the exit status, negative for a signal."""
        try:
            return self.process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it did not end\n{self.out}\n{self.err}") from None

    def died_at_its_point(self) -> None:
        """It has killed itself at its crash point: nothing else here sends SIGKILL to it."""
        status = self.ended()
        assert status == KILLED, f"{self.crashpoint} was not reached, exit {status}\n{self.out}\n{self.err}"

    def close(self) -> None:
        self.kill()
        for descriptor in self._pipes:
            os.close(descriptor)
        self._pipes = []


class Site:
    """A folder with a ledger and a work order, the services that it asks, and the coordinators that were started."""

    def __init__(self, folder: Path, *, ledger: Path | None = None) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.ledger = ledger or folder / "evals.db"
        self.order_file = folder / "order.json"
        self._service: Service | None = None
        self._speaking: list[Speaking] = []
        self._coordinators: list[Coordinator] = []

    @property
    def service(self) -> Service:
        """The service of this site; started when it is first needed."""
        if self._service is None:
            self._service = Service(self.folder)
            self._speaking.append(self._service)
        return self._service

    def speaking(self, *command: object) -> Speaking:
        """Another program of the fixtures that is spoken to."""
        made = Speaking(*command)
        self._speaking.append(made)
        return made

    def proxy(self) -> HoldingProxy:
        """A relay before this site's service."""
        made = HoldingProxy(self.service)
        self._speaking.append(made)
        return made

    def order(self, document: Mapping[str, Any]) -> None:
        """Write the work order."""
        self.order_file.write_text(json.dumps(document, indent=1), encoding="utf-8")

    def start(
        self,
        *arguments: object,
        launcher: Sequence[str] = COMMAND_LINE,
        crashpoint: str = "",
        pause_at: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> Coordinator:
        """Start a command on this site's ledger."""
        command = (*launcher, *arguments, "--ledger", self.ledger)
        return self.start_program(*command, crashpoint=crashpoint, pause_at=pause_at, environment=environment)

    def start_program(self, *command: object, **options: Any) -> Coordinator:
        """Start any program that ends with this site."""
        name = f"process-{len(self._coordinators) + 1}"
        made = Coordinator(list(map(str, command)), self.folder, name, **options)
        self._coordinators.append(made)
        return made

    def wait_for(self, gate: str) -> None:
        """Until a request of the newest coordinator waits at the service's gate."""

        def is_alive() -> None:
            newest = self._coordinators[-1]
            assert newest.process.poll() is None, f"it ended before {gate}: {newest.out}{newest.err}"

        self.service.wait_for(gate, look=is_alive)

    def run(self, *arguments: object, **options: Any) -> Coordinator:
        """Start ``run`` of the work order."""
        return self.start("run", self.order_file, *arguments, **options)

    def resume(self, *arguments: object, **options: Any) -> Coordinator:
        """Start ``resume``."""
        return self.start("resume", *arguments, **options)

    def status(self, run: str = "") -> dict[str, Any]:
        """What ``status --json`` says."""
        told: dict[str, Any] = self.told("status", *([run] if run else []), "--json")
        return told

    def told(
        self,
        *arguments: object,
        environment: Mapping[str, str] | None = None,
        statuses: Sequence[int] | None = None,
    ) -> Any:
        """The JSON that a reading command prints."""
        made = self.start(*arguments, environment=environment)
        status = made.ended()
        assert statuses is None or status in statuses, f"exit {status}\n{made.out}\n{made.err}"
        try:
            return json.loads(made.out)
        except ValueError:
            raise AssertionError(f"exit {status}, and this is no JSON: {made.out}\n{made.err}") from None

    @contextlib.contextmanager
    def opened(self) -> Iterator[ts.OpenLedger]:
        """The ledger through the public API, for reading and settling in this process."""
        with ts.open(self.ledger) as ledger:
            yield ledger

    def outcome(self, run: str | None = None) -> ts.RunOutcome:
        """How the run stands; the newest run where none is named."""
        with self.opened() as ledger:
            return ledger.outcome(run or ledger.runs()[0].run_id)

    def counts(self) -> dict[str, int]:
        """The states that the newest run's slots are in, without those that none is in."""
        return {str(state): count for state, count in self.outcome().counts.items() if count}

    def case(self, case_id: str) -> list[Any]:
        """Every slot of a case with its whole history."""
        with self.opened() as ledger:
            return ledger.case(ledger.runs()[0].run_id, case_id)

    def only(self, case_id: str) -> Any:
        """The one slot of a case."""
        (slot,) = self.case(case_id)
        return slot

    def unknown(self) -> list[Any]:
        """Every unknown outcome of the newest run."""
        with self.opened() as ledger:
            return ledger.unknown(ledger.runs()[0].run_id)

    def budgets(self) -> list[Any]:
        """The newest run's budgets."""
        with self.opened() as ledger:
            return ledger.budgets(ledger.runs()[0].run_id)

    def requests(self) -> list[Request]:
        """What the independent counter of this site has seen: the service's, or a Python target's own."""
        path = self.folder / "counter.jsonl" if self._service is None else self._service.log
        return read_counter(path)

    def seen(self) -> Counter[str]:
        """How often the counter has seen each request id."""
        return Counter(request.request_id for request in self.requests())

    def close(self) -> None:
        for coordinator in self._coordinators:
            coordinator.close()
        for speaking in self._speaking:
            speaking.close()
