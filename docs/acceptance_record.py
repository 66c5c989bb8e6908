"""Run the acceptance tests and write ``docs/acceptance-record.md``: how each scenario ended, and where its test stands.

A test belongs to the scenario that its name begins with (``test_e03b_…`` to E03b, ``test_soak_…`` to the kill soak).
What a scenario's tests left behind is kept under ``build/acceptance/``. Exits with pytest's own status.
"""

from __future__ import annotations

import platform
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

import attrs
import pytest

from tallystick.ledger.driver import sqlite_version

ROOT: Final = Path(__file__).resolve().parents[1]
RECORD: Final = ROOT / "docs" / "acceptance-record.md"
ARTIFACTS: Final = ROOT / "build" / "acceptance"
COMMAND: Final = "make acceptance-record"

SCENARIOS: Final = {
    "e01": "killed after a run is created and before its first dispatch",
    "e02": "killed between an answer that is committed and one that is not",
    "e03": "killed after the target accepted a request and before its answer was committed; `keep`",
    "e03b": "the same, `resend`",
    "e03c": "the same, `query`",
    "e03d": "the same, `repeat`",
    "e04": "an answer arrives after its attempt has ended and another has begun",
    "e05": "two runners want one device, and its holder dies or is frozen",
    "e06": "the same question in two repetitions and in two cases",
    "e07": "killed in the second turn of a conversation that has state on the target",
    "e08": "two callers want the last call that a budget allows",
    "e08b": "budgets of tokens and money; usage that is missing, null, zero or absurd",
    "e08c": "a client library that retries inside one call",
    "e09": "a judgment that is reused, and one that is repeated on purpose",
    "e10": "missing context, empty retrieval, malformed verdict, time-out",
    "e11": "report, slice, compare and export twice, with every provider off",
    "e12": "export, delete the folder, import in another, finish there",
    "e12b": "export or import killed half-way; import twice; archives that are damaged or hostile",
    "e13": "resume after the configuration has changed",
    "e14": "an attempt's evidence offered to another attempt",
    "crash": "killed at every registered crash point",
    "soak": "killed at random moments, again and again, until the run has finished",
    "power": "writes that were not synced are lost",
    "disk": "a full disk or an I/O error at each commit",
    "model": "random histories against a small model of the states, budgets and leases",
    # Trouble that people reported of tools of this kind, each as the smallest input that shows it.
    "c01": "a connection that ends without a word after the request was sent",
    "c04": "a case that kills its runner each time, and a run whose process was killed",
    "c06": "Ctrl-C once and twice, SIGTERM, and cancel from another terminal",
    "c09": "killed at one SQL statement after the other",
    "c10": "several processes and threads that want one run at the same time",
    "c13": "the wall clock stepped back and forth while a device is held",
    "c14": "a frozen holder that wakes after its device went to another",
    "c17": "killed between a reservation and its settlement, again and again",
    "c23": "totals over all sessions and all attempts",
    "c31": "what a target does wrong, and what a judge is asked of",
    "c45": "repetitions whose answers are equal",
}

CODE: Final = {
    "e01": ("ledger/planning.py", "runner/sessions.py"),
    "e02": ("ledger/attempts.py", "ledger/coordinators.py"),
    "e03": ("ledger/coordinators.py", "ledger/settlements.py"),
    "e03b": ("runner/attempt_steps.py", "ledger/attempts.py"),
    "e03c": ("runner/query_steps.py", "adapters/http_query.py"),
    "e03d": ("ledger/coordinators.py", "ledger/budgets.py"),
    "e04": ("runner/late_answers.py", "ledger/attempts.py"),
    "e05": ("ledger/leases.py", "ledger/lease_takeover.py", "ledger/host_claims.py", "runner/device_lanes.py"),
    "e06": ("ledger/identifiers.py", "ledger/attempts.py"),
    "e07": ("runner/turn_steps.py", "ledger/turns.py", "ledger/settlements.py"),
    "e08": ("ledger/budgets.py", "ledger/run_ends.py"),
    "e08b": ("ledger/budgets.py", "runner/judge_calls.py"),
    "e09": ("runner/judge_cache.py", "ledger/judging_reads.py"),
    "e10": ("ledger/verdicts.py", "adapters/verdict_parsing.py", "runner/judge_calls.py"),
    "e11": ("ledger/history.py", "ledger/report_rows.py", "runner/report_reading.py"),
    "e13": ("runner/identity.py", "runner/sessions.py"),
    "e14": ("ledger/attempts.py", "runner/late_answers.py"),
    "crash": ("ledger/crashpoints.py",),
    "soak": ("ledger/coordinators.py", "runner/executor.py"),
    "power": ("ledger/scribe.py", "ledger/desk.py", "ledger/artifacts.py"),
    "disk": ("ledger/scribe.py", "ledger/failures.py", "ledger/workers.py"),
    "model": ("ledger/attempts.py", "ledger/budgets.py", "ledger/leases.py"),
    "c01": ("adapters/wire.py", "adapters/http_outcomes.py"),
    "c04": ("ledger/coordinators.py",),
    "c06": ("tallystick/cli/interrupts.py", "runner/stopping.py"),
    "c09": ("ledger/attempts.py", "ledger/scribe.py"),
    "c10": ("ledger/coordinators.py", "ledger/planning.py"),
    "c13": ("ledger/leases.py", "ledger/lease_guard.py"),
    "c14": ("ledger/lease_takeover.py", "ledger/contamination.py"),
    "c17": ("ledger/budgets.py",),
    "c23": ("ledger/run_reads.py",),
    "c31": ("runner/inline_judging.py", "ledger/judging_reads.py"),
    "c45": ("ledger/planning.py",),
}


@attrs.frozen
class Seen:
    """One test as it ended."""

    place: str
    name: str
    outcome: str
    seconds: float


class Recorder:
    """A pytest plugin that keeps how each test ended; an error while setting up or tearing down is a failure."""

    def __init__(self) -> None:
        self._phases: dict[str, list[pytest.TestReport]] = defaultdict(list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._phases[report.nodeid].append(report)

    def seen(self) -> list[Seen]:
        return [_seen(reports) for _, reports in sorted(self._phases.items())]


def _seen(reports: list[pytest.TestReport]) -> Seen:
    file, line, name = reports[0].location
    outcomes = {report.outcome for report in reports}
    outcome = next(word for word in ("failed", "skipped", "passed") if word in outcomes)
    seconds = sum(report.duration for report in reports)
    return Seen(place=f"{file}:{(line or 0) + 1}", name=name, outcome=outcome, seconds=seconds)


def by_scenario(seen: Iterable[Seen]) -> dict[str, list[Seen]]:
    """The tests of each scenario, in the order of the scenarios; tests of none stand under an empty key."""
    found: dict[str, list[Seen]] = {scenario: [] for scenario in (*SCENARIOS, "")}
    for test in seen:
        match = re.match(r"test_([a-z]+\d*[a-z]?)(?:_|$)", test.name)
        found[match[1] if match and match[1] in SCENARIOS else ""].append(test)
    return found


def result_of(tests: list[Seen]) -> str:
    """``fail`` if any test failed, ``pass`` if each passed, else what is missing to say so."""
    outcomes = {test.outcome for test in tests}
    if "failed" in outcomes:
        return "**fail**"
    if outcomes == {"passed"}:
        return "pass"
    return "not tested" if "passed" not in outcomes else "partly tested"


def page(seen: list[Seen], *, arguments: Sequence[str] = ()) -> str:
    """The whole record as Markdown; ``arguments`` are those that pytest was given besides."""
    command = f'{COMMAND} ARGS="{shlex.join(arguments)}"' if arguments else COMMAND
    scenarios = by_scenario(seen)
    lines = [
        "# Acceptance record",
        "",
        f"Written by `{command}` on {datetime.now(UTC):%Y-%m-%d} from revision {_revision()}, with",
        f"tallystick {version('tallystick')}, {platform.python_implementation()} {platform.python_version()},",
        f"SQLite {sqlite_version}, SQLAlchemy {version('sqlalchemy')}, {platform.system()} {platform.machine()}.",
        "What the tests left behind (ledgers, counters, output) is kept in `build/acceptance/` where the command ran.",
        "",
        "| id | what happens | result | tests | seconds |",
        "|---|---|---|---|---|",
        *(_row(scenario, scenarios[scenario]) for scenario in SCENARIOS),
    ]
    for scenario, title in (*SCENARIOS.items(), ("", "tests of no scenario of the table")):
        if scenarios[scenario]:
            lines += ["", f"## {_title(scenario)}{title}", "", *_code(scenario)]
            lines += [_line(test) for test in scenarios[scenario]]
    return "\n".join(lines) + "\n"


def _code(scenario: str) -> list[str]:
    named = ", ".join(f"[{file}](../{file})" for file in CODE.get(scenario, ()))
    return [f"Held by {named}.", ""] if named else []


def _title(scenario: str) -> str:
    return f"{scenario[0].upper()}{scenario[1:]}: " if scenario else ""


def _row(scenario: str, tests: list[Seen]) -> str:
    seconds = f"{sum(test.seconds for test in tests):.1f}" if tests else ""
    shown = f"{scenario[0].upper()}{scenario[1:]}"
    return f"| {shown} | {SCENARIOS[scenario]} | {result_of(tests)} | {len(tests) or ''} | {seconds} |"


def _line(test: Seen) -> str:
    file, _, line = test.place.rpartition(":")
    return f"- {test.outcome}: `{test.name}` ([{file}:{line}](../{file}#L{line}))"


def _revision() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    described = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603  constants
    return f"`{described.stdout.strip()}`" if described.returncode == 0 else "unknown"


def main() -> int:
    recorder = Recorder()
    options = [
        *("-o", "timeout=3600", "-o", "tmp_path_retention_policy=all", "-p", "no:cacheprovider"),
        *("--rootdir", str(ROOT), "--basetemp", str(ARTIFACTS / "files"), "--junitxml", str(ARTIFACTS / "junit.xml")),
    ]
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    status = pytest.main([*options, *sys.argv[1:], str(ROOT / "tests" / "acceptance")], plugins=[recorder])
    RECORD.write_text(page(recorder.seen(), arguments=sys.argv[1:]), encoding="utf-8")
    print(f"wrote {RECORD.relative_to(ROOT)}")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
