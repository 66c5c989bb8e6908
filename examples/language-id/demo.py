"""Runs the work order in this folder, kills it in the middle, resumes it, and gives an account that is checked.

    python examples/language-id/demo.py [--output FOLDER]

Everything goes through the command line, as a user would do it. What is claimed at the end is checked against the
ledger and against a counter that knows nothing of the ledger: a file to which the target itself appends one synced
line for each call that it receives. The exit status is 0 only when every claim holds.
"""

import argparse
import collections
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ORDER = FOLDER / "order.toml"
REPETITIONS = 3
IDENTIFIERS = ("py3langid", "langdetect")
POLL_SECONDS = 0.005
PATIENCE_SECONDS = 120


class ClaimBrokenError(Exception):
    """Something that the demo says is not so."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Run, kill, resume, and account for every call.")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="where the ledger goes")
    try:
        Demo(parser.parse_args().output).run()
    except ClaimBrokenError as broken:
        sys.exit(f"demo: this does not hold: {broken}")


class Demo:
    def __init__(self, output: Path) -> None:
        self.ledger = output / "language-id.db"
        self.counter = output / "calls.jsonl"
        self.log = output / "killed-run.log"
        self.cases = len((FOLDER / "cases.jsonl").read_text(encoding="utf-8").splitlines())
        self.planned = self.cases * len(IDENTIFIERS) * REPETITIONS
        output.mkdir(parents=True, exist_ok=True)
        for left in (*output.glob(f"{self.ledger.name}*"), self.counter):  # by an earlier demo
            shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)

    def run(self) -> None:
        say(
            f"{self.cases} sentences x {len(IDENTIFIERS)} language identifiers x {REPETITIONS} repetitions"
            f" = {self.planned} calls."
        )
        say("Each call also writes a line to a counter that knows nothing of the ledger.")
        self.run_until_the_middle_and_kill()

        say("\nWhat the ledger says now:")
        self.show("status")
        before = self.ask("status")
        calls_before = self.count()

        say("\nGo on from there:")
        self.show("resume")
        after = self.ask("report", before["run"])
        unknown = self.ask("reconcile", before["run"])["unknown"]

        say("\nThe account, from the ledger and from the counter:")
        self.account(before, after, unknown)
        say("\nThe scores:")
        scores(after)
        say("\nEach of these was checked:")
        self.check(before, after, unknown, calls_before)
        say(f"\nLook further: {program()} show language-id {unknown_case(unknown)} --ledger {self.ledger}")

    def run_until_the_middle_and_kill(self) -> None:
        middle = self.planned // 2
        command = self.command("run", str(ORDER))
        say(f"\n$ {shown(command)} &")
        environment = {**os.environ, "LANGUAGE_ID_COUNTER": str(self.counter.resolve())}
        with self.log.open("wb") as log:
            coordinator = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
            for _ in range(int(PATIENCE_SECONDS / POLL_SECONDS)):
                if self.count() >= middle:
                    break
                if is_over(coordinator):
                    raise ClaimBrokenError(f"the run lives until the middle; it ended, see {self.log}")
            else:
                coordinator.kill()
                raise ClaimBrokenError(f"the middle is reached within {PATIENCE_SECONDS} s; see {self.log}")
            coordinator.kill()
            coordinator.wait()
        say(f"The counter has {self.count()} lines: that is the middle. Kill the coordinator by SIGKILL.")
        say(f"$ kill -9 {coordinator.pid}")
        require(coordinator.returncode == -9, "the coordinator died by SIGKILL and had not ended before")

    @staticmethod
    def made_or_not(unknown: int, never: int) -> str:
        return f"of the unknown ones, the counter saw {unknown - never}; {never} were killed before the call"

    def account(self, before: dict, after: dict, unknown: list) -> None:
        people, dispatches, (budget,) = after["population"], after["totals"]["dispatches"], after["budgets"]
        states = " + ".join(f"{people[state]} {state}" for state in people if state != "planned" and people[state])
        lines = self.count()
        table(
            ("population", f"{people['planned']} planned = {states}"),
            ("reused", f"{before['population']['selected']} answers committed before the kill"),
            ("unknown", f"{len(unknown)} in flight at the kill, made or not: the ledger cannot know"),
            ("", "each was asked again under a new request id, as that is harmless; the first one stays unknown"),
            ("calls", f"{dispatches} by the ledger, {lines} by the counter"),
            ("", self.made_or_not(len(unknown), dispatches - lines)),
            ("spent", f"{budget['settled']} dispatches, and {budget['held']} more held for the unknown ones"),
            ("", f"{budget['left']} left of {budget['limit']}"),
        )
        say("\n  The unknown calls by name:")
        for one in unknown:
            say(f"    call {one['call']}  {one['variant']:<10}  {one['case']}, repetition {one['repetition']}")

    def check(self, before: dict, after: dict, unknown: list, calls_before: int) -> None:
        people, totals, (budget,) = after["population"], after["totals"], after["budgets"]
        states, lines = totals["dispatches_by_state"], self.count()
        parts = sum(count for state, count in people.items() if state != "planned")
        claim(people["planned"] == self.planned == parts, "every planned observation is accounted for, once")
        claim(people["selected"] == self.planned, "every planned observation has its answer")
        claim(
            lines - calls_before == self.planned - before["population"]["selected"],
            "no answer that was committed before the kill was asked for again",
        )
        claim(
            len(unknown) == after["unknown"]["count"] == before["totals"]["dispatches_by_state"].get("intended", 0),
            "every call that was in flight at the kill is unknown, and named",
        )
        claim(
            totals["dispatches"] == states["answered"] + len(unknown) and states["answered"] <= lines,
            "every call of the ledger is answered or unknown, and the counter received all that are answered",
        )
        claim(
            self.agrees_case_by_case(unknown),
            "case by case, the counter received no call that the ledger does not have",
        )
        claim(
            budget["settled"] + budget["held"] <= budget["limit"] and budget["held"] == len(unknown),
            "spent and held stay within the budget, and the unknown calls keep their share",
        )
        claim(
            {one["variant"] for one in after["scores"]} == set(IDENTIFIERS)
            and all(one["judged"] == one["planned"] == self.planned // 2 for one in after["scores"]),
            "each score stands on the whole of its population",
        )

    def agrees_case_by_case(self, unknown: list) -> bool:
        received = collections.Counter((one["target"], one["case"]) for one in self.counted())
        lost = collections.Counter((one["variant"], one["case"]) for one in unknown)
        return len(received) == self.cases * len(IDENTIFIERS) and all(
            REPETITIONS <= count <= REPETITIONS + lost[key] for key, count in received.items()
        )

    def counted(self) -> list[dict]:
        """The counter's lines."""
        if not self.counter.exists():
            return []
        return [json.loads(line) for line in self.counter.read_text().splitlines()]

    def count(self) -> int:
        return self.counter.read_bytes().count(b"\n") if self.counter.exists() else 0

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "tallystick", *arguments, "--ledger", str(self.ledger)]

    def show(self, *arguments: str) -> None:
        """Run a command and show what it prints."""
        command = self.command(*arguments)
        say(f"$ {shown(command)}")
        for line in self.done(command, accepted=(0, 75)).stdout.splitlines():
            say(f"  | {line}".rstrip())

    def ask(self, *arguments: str) -> dict:
        """The JSON that a reading command answers."""
        return json.loads(self.done(self.command(*arguments, "--json"), accepted=(0, 75)).stdout)

    def done(self, command: list[str], *, accepted: tuple[int, ...]) -> subprocess.CompletedProcess:
        environment = {**os.environ, "LANGUAGE_ID_COUNTER": str(self.counter.resolve())}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode not in accepted:
            last = (done.stderr + done.stdout or "it said nothing").strip().splitlines()[-1]
            raise ClaimBrokenError(f"{shown(command)} succeeds; it ended with {done.returncode}: {last}")
        return done


def is_over(process: subprocess.Popen) -> bool:
    try:
        process.wait(timeout=POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def scores(report: dict) -> None:
    say("  identifier   correct  of   score")
    for one in report["scores"]:
        share = 100 * one["passed"] / one["judged"]
        say(f"  {one['variant']:<11}  {one['passed']:>7}  {one['judged']}  {share:.1f} %")


def unknown_case(unknown: list) -> str:
    return unknown[0]["case"] if unknown else "da-02"


def table(*rows: tuple[str, str]) -> None:
    for label, text in rows:
        say(f"  {label:<11} {text}")


def shown(command: list[str]) -> str:
    here = [os.path.relpath(part) if part == str(ORDER) else part for part in command[3:]]
    return " ".join(["tallystick", *here])


def program() -> str:
    """What to type for tallystick here."""
    return "tallystick" if shutil.which("tallystick") else os.path.relpath(Path(sys.executable).with_name("tallystick"))


def claim(holds: bool, text: str) -> None:
    require(holds, text)
    say(f"  ok  {text}")


def require(holds: bool, text: str) -> None:
    if not holds:
        raise ClaimBrokenError(text)


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
