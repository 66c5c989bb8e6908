"""A check finds every kind of damage, each planted here behind the ledger's back, and nothing in a sound ledger."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tallystick.ledger import artifacts, attempts, coordinators, judgments, schema_rules
from tallystick.ledger.canonical import digest_of_bytes
from tallystick.ledger.check_rules import RULES
from tallystick.ledger.checks import Finding, Severity, check_ledger, require_sound
from tallystick.ledger.driver import Connection
from tallystick.ledger.errors import LedgerDamaged
from tallystick.ledger.late import keep_late as keep_late_answer
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.records import DispatchFacts, JudgmentRow, Waiting
from tallystick.ledger.settlements import Decision, Settlement, settle_unknown
from tallystick.ledger.states import DispatchState, NextStep
from tests.unit.ledger.children import Child
from tests.unit.ledger.factories import answered, begin, budget, hold, lost, new_ledger, new_run, observe, raw
from tests.unit.ledger.talks import break_off, open_session, say

LARGE = b"large" * 100_000
DIGEST_LATE = digest_of_bytes(b'"late"')


def fill(ledger: Ledger) -> None:
    """A run with a slot in every state that a coordinator leaves, and an artifact of each size."""
    run = new_run(ledger, 8, budgets=(budget(limit=20), budget(2, unit="tokens", limit=900)), judges=("exact",))
    coordinator = coordinators.open_run(ledger, run.run_id)
    both = (hold(1), hold(2, 30, unit="tokens"))
    keys = {slot: begin(ledger, run.run_key, slot, holds=both).key for slot in range(1, 7)}
    failed = DispatchFacts(DispatchState.FAILED, "http.500")
    late = DispatchFacts(DispatchState.LATE, tokens_in=1, tokens_out=1)

    ledger.write(lambda tx: observe(tx, keys[1], answered(tokens_in=1, tokens_out=2)))
    ledger.write(lambda tx: judgments.add_judgments(tx, run.run_key, 1, [JudgmentRow(1, 1, 1, passed=True)]))
    ledger.write(lambda tx: attempts.fail(tx, keys[2], failed, waiting=None))
    ledger.write(lambda tx: attempts.lose(tx, keys[3], lost(), waiting=None))
    ledger.write(lambda tx: attempts.lose(tx, keys[4], lost(), waiting=Waiting(NextStep.NEW)))
    again = begin(ledger, run.run_key, 4, holds=both).key
    ledger.write(lambda tx: keep_late_answer(tx, keys[4], late, answer='"late"', answer_digest=DIGEST_LATE))
    ledger.write(lambda tx: observe(tx, again))
    ledger.write(lambda tx: attempts.lose(tx, keys[5], lost(), waiting=None))
    given_up = Settlement(keys[5].call_id, 1, Decision.GIVE_UP, "me", "r")
    ledger.write(lambda tx: settle_unknown(tx, given_up))
    converse(ledger, run.run_key, 7)
    artifacts.put(ledger, b"small")
    artifacts.put(ledger, LARGE)
    assert coordinator.fence == 1  # slot 6 is in flight, 7 and 8 wait


def converse(ledger: Ledger, run_key: int, slot_no: int) -> None:
    """A conversation that broke off twice: its second attempt carries the first turn and has answered the next."""
    first = open_session(ledger, run_key, slot_no)
    say(ledger, first, 1, holds=(hold(1),))
    break_off(ledger, first)
    second = open_session(ledger, run_key, slot_no, carried_from=1, carried=1, seen=1)
    say(ledger, second, 2, holds=(hold(1),))
    break_off(ledger, second)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a filled ledger that nobody has open."""
    folder = tmp_path_factory.mktemp("filled")
    with new_ledger(folder) as ledger:
        fill(ledger)
    return folder


@pytest.fixture
def damaged(filled: Path, tmp_path: Path) -> Callable[..., list[Finding]]:
    """Plant a fault in a copy of it, with every guard off and on again, and check it."""

    def plant(*faults: str, guards: bool = True) -> list[Finding]:
        shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
        connection = raw(tmp_path / "t.db")
        connection.execute("PRAGMA ignore_check_constraints=ON")
        drop_triggers(connection)
        for fault in faults:
            assert connection.execute(fault).rowcount != 0, "the fault must be one"
        if guards:
            for sql in schema_rules.triggers():
                connection.execute(sql)
        connection.close()
        with new_ledger(tmp_path) as ledger:
            return check_ledger(ledger)

    return plant


def drop_triggers(connection: Connection) -> None:
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {name}")


def test_a_sound_ledger_has_no_finding_while_its_run_is_going_on(ledger: Ledger) -> None:
    fill(ledger)
    assert check_ledger(ledger) == []
    require_sound(ledger)


def test_an_empty_ledger_has_no_finding(ledger: Ledger) -> None:
    assert check_ledger(ledger) == []


FAULTS: dict[str, tuple[str, ...]] = {
    "attempt.unknown_without_dispatch": (
        "UPDATE dispatches SET state = 'failed' WHERE state = 'unknown'",
        """UPDATE reservations SET state = 'settled', settled = held WHERE state = 'held' AND call_id IN
        (SELECT call_id FROM dispatches WHERE state = 'failed')""",
    ),
    "fork.not_marked": ("UPDATE attempts SET reused_from = 'x/1/1' WHERE slot_no = 1",),
    "fork.reserved": ("UPDATE calls SET reused_from = call_id WHERE slot_no = 1",),
    "fork.another_answer": (
        "UPDATE runs SET forked_from = run_id",
        "UPDATE attempts SET reused_from = (SELECT run_id FROM runs) || '/4/1' WHERE slot_no = 1",
        "UPDATE observations SET source = 'reused' WHERE slot_no = 1",
    ),
    "slot.unknown_without_attempt": ("UPDATE attempts SET state = 'failed' WHERE slot_no = 3",),
    "dispatch.intended_without_attempt": ("UPDATE dispatches SET state = 'intended' WHERE state = 'answered'",),
    "reservation.not_held": (
        """UPDATE reservations SET state = 'released' WHERE call_id IN
        (SELECT call_id FROM dispatches WHERE state = 'unknown')""",
    ),
    "reservation.left_held": ("UPDATE reservations SET state = 'held', settled = NULL WHERE state = 'settled'",),
    "settlement.of_unknown": ("UPDATE dispatches SET state = 'unknown' WHERE state = 'abandoned'",),
    "slot.selected_not_newest": ("UPDATE slots SET attempts = 3 WHERE slot_no = 1",),
    "slot.selected_not_observed": ("DELETE FROM observations WHERE slot_no = 1",),
    "attempt.observed_not_selected": ("UPDATE slots SET state = 'failed', selected_attempt = NULL WHERE slot_no = 1",),
    "budget.sum": ("UPDATE budgets SET settled = settled - 1",),
    "budget.passed": ("UPDATE budgets SET limit_amount = 1 WHERE budget_no = 1",),
    "run.population": ("DELETE FROM slots WHERE slot_no = 8",),
    "slot.attempts": ("UPDATE slots SET attempts = 2 WHERE slot_no = 2",),
    "slot.in_flight": ("UPDATE slots SET state = 'pending' WHERE state = 'in_flight'",),
    "attempt.runs_beside": ("UPDATE attempts SET state = 'running' WHERE slot_no = 4 AND attempt_no = 1",),
    "run.finished_early": ("UPDATE runs SET state = 'finished'",),
    "call.without_dispatch": (
        "DELETE FROM reservations WHERE call_id IN (SELECT call_id FROM calls WHERE slot_no = 2)",
        "DELETE FROM dispatches WHERE call_id IN (SELECT call_id FROM calls WHERE slot_no = 2)",
    ),
    "judgment.without_observation": ("DELETE FROM observations WHERE slot_no = 1",),
    "fence.behind": ("UPDATE fences SET high_water = 0",),
    "database.reference": ("UPDATE slots SET case_no = 99 WHERE slot_no = 7",),
    "events.chain": ("UPDATE events SET body = '{}' WHERE event_no = 3",),
    "events.dispatches": ("DELETE FROM events WHERE event_no >= 8",),
    "events.history": ("UPDATE runs SET name = 'other'",),
    "observation.digest": ("UPDATE observations SET answer = '\"forged\"' WHERE slot_no = 1",),
    "turn.digest": ("UPDATE turns SET answer = '\"forged\"' WHERE turn = 2",),
    "database.json": ("UPDATE runs SET settings = '{'",),
    "database.unreadable": ("UPDATE calls SET head = CAST(x'7bff7d' AS TEXT) WHERE slot_no = 1",),
    "case.digest": ("UPDATE cases SET expected = '\"no\"' WHERE case_no = 2",),
    "run.digest": ("UPDATE runs SET identity = '{\"evil\":true}'",),
    "evaluation.digest": ("UPDATE evaluation_judges SET kind = 'other'",),
    "observation.of_another_call": (
        "UPDATE observations SET call_id = (SELECT call_id FROM calls WHERE slot_no = 6) WHERE slot_no = 1",
    ),
    "slot.plan": ("UPDATE slots SET case_no = 1 WHERE slot_no = 8",),
    "session.turns": ("DELETE FROM turns WHERE attempt_no = 2 AND turn = 1",),
    "turn.of_another_call": (
        "UPDATE turns SET call_id = (SELECT call_id FROM calls WHERE slot_no = 1) WHERE turn = 2",
    ),
    "turn.carried_from_nowhere": ("UPDATE turns SET carried_from = 2 WHERE source = 'carried'",),
    "call.digest": ("UPDATE calls SET payload = x'00' WHERE slot_no = 1",),
    "artifact.damaged": ("UPDATE artifacts SET data = x'00' WHERE data IS NOT NULL",),
}


def test_a_plan_that_no_memory_holds_is_found_like_any_other(damaged: Callable[..., list[Finding]]) -> None:
    found = damaged(f"UPDATE runs SET planned = {2**61}")
    assert {"run.population", "events.history"} <= {finding.code for finding in found}


@pytest.mark.parametrize("body", ["'{'", "CAST(x'7bff7d' AS TEXT)"])
def test_an_event_that_is_no_text_or_no_json_hides_nothing_else(
    body: str, damaged: Callable[..., list[Finding]]
) -> None:
    found = damaged(f"UPDATE events SET body = {body} WHERE kind = 'observation.judged'", *FAULTS["slot.plan"])
    assert {"slot.plan", "database.json" if body == "'{'" else "database.unreadable"} <= {one.code for one in found}


@pytest.mark.parametrize("code", FAULTS)
def test_each_fault_is_found(code: str, damaged: Callable[..., list[Finding]]) -> None:
    found = {finding.code: finding for finding in damaged(*FAULTS[code])}
    assert code in found
    assert found[code].severity is Severity.ERROR
    assert found[code].what
    assert found[code].remedy


def test_every_rule_has_a_fault_that_shows_that_it_finds_something() -> None:
    assert {rule.code for rule in RULES} <= set(FAULTS)


@pytest.mark.parametrize(
    "fault",
    [
        "DELETE FROM events WHERE event_no = 3",
        "UPDATE events SET at_us = at_us + 1 WHERE event_no = 2",
        "UPDATE events SET kind = 'other' WHERE event_no = 2",
        "UPDATE events SET hash = x'00' WHERE event_no = (SELECT max(event_no) FROM events)",
        "DELETE FROM events WHERE event_no = 1",
    ],
)
def test_no_event_can_be_changed_or_removed_unseen(fault: str, damaged: Callable[..., list[Finding]]) -> None:
    assert "events.chain" in {finding.code for finding in damaged(fault)}


def test_a_table_that_is_made_otherwise_is_found(damaged: Callable[..., list[Finding]]) -> None:
    [finding] = [
        found
        for found in damaged(
            "PRAGMA writable_schema=ON",
            "UPDATE sqlite_master SET sql = replace(sql, 'payload_size', 'payload_sice') WHERE name = 'calls'",
        )
        if found.code == "database.rules"
    ]
    assert "calls" in finding.what


def test_missing_guards_are_found(damaged: Callable[..., list[Finding]]) -> None:
    [finding] = [found for found in damaged(guards=False) if found.code == "database.rules"]
    assert "slots_transition" in finding.what or "and" in finding.what


@pytest.mark.parametrize(
    "fault",
    [
        "INSERT INTO transitions VALUES ('slot', 'selected', 'pending')",
        "DELETE FROM transitions WHERE machine = 'slot'",
        "INSERT INTO slot_states VALUES ('lost')",
    ],
)
def test_rules_that_were_loosened_are_found(fault: str, damaged: Callable[..., list[Finding]]) -> None:
    assert [finding.code for finding in damaged(fault) if finding.severity is Severity.ERROR] == ["database.rules"]


def test_a_damaged_page_is_found(filled: Path, tmp_path: Path) -> None:
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "t.db"
    connection = raw(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    page = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'slots_pending'").fetchone()[0]
    connection.close()
    content = bytearray(path.read_bytes())
    content[(page - 1) * 4096 + 3 : (page - 1) * 4096 + 5] = b"\x00\x00"  # the index says that it has no entry
    path.write_bytes(content)
    with new_ledger(tmp_path) as ledger:
        assert "database.integrity" in {finding.code for finding in check_ledger(ledger)}


@pytest.mark.parametrize("harm", ["missing", "changed"])
def test_a_damaged_artifact_file_is_found(harm: str, ledger: Ledger) -> None:
    artifacts.put(ledger, LARGE)
    [path] = artifacts.files_in(ledger.artifacts)
    if harm == "missing":
        path.unlink()
    else:
        path.write_bytes(LARGE[:-1] + b"?")
    assert [finding.code for finding in check_ledger(ledger)] == ["artifact.damaged"]


def test_what_a_death_leaves_is_a_warning_with_its_remedy(ledger: Ledger) -> None:
    run = new_run(ledger)
    with Child("coordinate_and_wait", ledger.path, run.run_id, "keep", 0, 1) as child:
        child.line()
        assert check_ledger(ledger) == []
        child.kill()
    [finding] = check_ledger(ledger)
    assert (finding.code, finding.severity) == ("lease.dead_holder", Severity.WARNING)
    assert "tallystick resume" in finding.remedy
    require_sound(ledger)
    coordinators.open_run(ledger, run.run_id)
    assert check_ledger(ledger) == []


def test_a_half_written_plan_of_a_dead_process_is_a_warning(ledger: Ledger) -> None:
    with Child("plan", ledger.path, 3, crashpoint="run.planning.batch") as child:
        assert child.end() == -9
    assert [(finding.code, finding.severity) for finding in check_ledger(ledger)] == [
        ("run.half_planned", Severity.WARNING)
    ]


def test_damage_is_raised_with_every_finding(damaged: Callable[..., list[Finding]], tmp_path: Path) -> None:
    damaged("UPDATE budgets SET settled = settled - 1")
    with new_ledger(tmp_path) as ledger, pytest.raises(LedgerDamaged, match=r"budget 1: held") as caught:
        require_sound(ledger)
    assert caught.value.findings[0].startswith("budget.sum: ")


def test_errors_come_before_what_was_left_behind(damaged: Callable[..., list[Finding]]) -> None:
    found = damaged("UPDATE budgets SET settled = settled - 1")
    assert [finding.code for finding in found] == ["budget.sum", "events.history", "lease.dead_holder"]


def test_a_fault_that_is_everywhere_is_one_finding_with_its_first_places(damaged: Callable[..., list[Finding]]) -> None:
    [finding] = [
        found for found in damaged("UPDATE observations SET answer = 'x'") if found.code == "observation.digest"
    ]
    assert finding.what.count(";") <= 2
    assert "slot 1 attempt 1" in finding.what


def test_checking_changes_nothing(ledger: Ledger) -> None:
    fill(ledger)
    wal = ledger.path.with_name(ledger.path.name + "-wal")
    before = (ledger.path.read_bytes(), wal.read_bytes())
    check_ledger(ledger)
    assert (ledger.path.read_bytes(), wal.read_bytes()) == before
