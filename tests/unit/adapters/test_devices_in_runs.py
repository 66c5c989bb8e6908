"""Devices under the executor: what a run makes of their lost, late, wrong and missing answers."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tallystick as ts
from tallystick.ledger.states import SlotState

from ...fixtures.atlas_handle import AtlasDevice
from .device_makers import Instrument, a_device, an_instrument


@pytest.fixture(autouse=True)
def _locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLYSTICK_DEVICE_LOCKS", str(tmp_path / "locks"))


@pytest.fixture
def device(tmp_path: Path) -> Iterator[AtlasDevice]:
    with a_device(tmp_path) as started:
        yield started


@pytest.fixture
def instrument(tmp_path: Path) -> Iterator[Instrument]:
    with an_instrument(tmp_path) as started:
        yield started


def go(folder: Path, target: dict[str, Any], *inputs: Any, name: str = "bench", **more: Any) -> ts.RunOutcome:
    """Run a work order over these inputs, one case each, in the ledger of the folder."""
    cases = [{"id": f"case-{number}", "input": given} for number, given in enumerate(inputs, start=1)]
    execution = {"deadline_seconds": 0.7, "backoff": {"first_seconds": 0.01, "max_seconds": 0.05}}
    sides = {"target": target} if "variants" not in more else {}
    document = {"version": 1, "name": name, "cases": {"items": cases}, "execution": execution, **sides, **more}
    order = folder / f"{name}.json"
    order.write_text(json.dumps(document), encoding="utf-8")
    return ts.run(order, ledger=folder / "ledger.db")


def atlas(device: AtlasDevice, **options: Any) -> dict[str, Any]:
    return {"kind": "atlas", "url": device.url, "serial": "SN-1", "drain_seconds": 0.1, **options}


def line(instrument: Instrument, **options: Any) -> dict[str, Any]:
    table = {"kind": "line", "address": instrument.address, "serial": "SN-7", "drain_seconds": 1.0}
    return {**table, "payload": "ASK {{input}}", "output": "json", **options}


def asked(value: Any, **behave: Any) -> dict[str, Any]:
    return {"answer": value, "behave": behave}


def answers(folder: Path, outcome: ts.RunOutcome) -> dict[str, Any]:
    """The selected answers of a run, by case."""
    with contextlib.closing(sqlite3.connect(f"file:{folder / 'ledger.db'}?mode=ro", uri=True)) as connection:
        found = connection.execute(
            "SELECT c.case_id, o.answer FROM runs r JOIN slots s USING (run_key) JOIN cases c USING (run_key, case_no)"
            " JOIN observations o ON o.run_key = s.run_key AND o.slot_no = s.slot_no"
            " AND o.attempt_no = s.selected_attempt WHERE r.run_id = ?",
            (outcome.run_id,),
        )
        return {case_id: json.loads(answer) for case_id, answer in found}


def submits(device: AtlasDevice) -> list[str]:
    return [one["verdict"] for one in device.lines(role="submit")]


def test_lost_answer_is_fetched_from_the_device_and_nothing_is_done_twice(device: AtlasDevice, tmp_path: Path) -> None:
    outcome = go(tmp_path, atlas(device), asked(1, lose="after"), asked(2, as_id="another"), asked(3, garbage="?"), 4)
    assert answers(tmp_path, outcome) == {"case-1": 1, "case-2": 2, "case-3": 3, "case-4": 4}
    assert submits(device) == ["accepted"] * 4


def test_request_that_never_arrived_is_sent_again_in_a_new_attempt(device: AtlasDevice, tmp_path: Path) -> None:
    device.tell("plan", behave={"lose": "before"})
    outcome = go(tmp_path, atlas(device), 1, 2)
    assert answers(tmp_path, outcome) == {"case-1": 1, "case-2": 2}
    arrived = {one["request_id"] for one in device.lines(role="submit")}
    (tombstoned,) = [one["about"] for one in device.lines(role="query")]
    assert len(arrived) == 2
    assert tombstoned not in arrived


def test_hanging_request_is_cancelled_and_the_others_go_on(device: AtlasDevice, tmp_path: Path) -> None:
    device.tell("plan", behave={"hang": True})
    outcome = go(tmp_path, atlas(device), 1, 2)
    assert answers(tmp_path, outcome) == {"case-1": 1, "case-2": 2}
    assert len(device.lines(role="cancel")) == 1


def test_answer_that_comes_after_the_run_has_ended_settles_it_when_the_device_is_next_taken_over(
    device: AtlasDevice, tmp_path: Path
) -> None:
    device.tell("plan", behave={"wait": "gate", "stubborn": True})
    first = go(tmp_path, atlas(device, if_unknown="keep", drain_seconds=30.0), asked("late"))
    assert first.counts[SlotState.UNKNOWN] == 1
    device.go("gate")  # nobody listens any more
    second = go(tmp_path, atlas(device, if_unknown="keep", drain_seconds=30.0), asked("new"), name="next")
    assert answers(tmp_path, first) == {"case-1": "late"}
    assert answers(tmp_path, second) == {"case-1": "new"}
    assert submits(device) == ["accepted"] * 2


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_device_that_rebooted_in_a_request_is_looked_at_once_and_used_further(
    device: AtlasDevice, tmp_path: Path, when: str
) -> None:
    device.tell("plan", behave={"reboot": when})
    target = atlas(device, if_unknown="repeat")
    outcome = go(tmp_path, target, asked(1), asked(2), device={"on_reboot": "new_generation"})
    assert answers(tmp_path, outcome) == {"case-1": 1, "case-2": 2}
    assert [one["role"] for one in device.lines()].count("fence") == 2
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        refused = connection.execute("SELECT count(*) FROM dispatches WHERE state = 'refused'").fetchone()
    assert refused == (1,)  # the first that met the other boot, and no more


def test_device_that_is_another_ends_the_run_before_anything_is_sent(device: AtlasDevice, tmp_path: Path) -> None:
    device.tell("become", serial="SN-2")
    with pytest.raises(ts.IdentityChanged, match="serial: SN-1 -> SN-2"):
        go(tmp_path, atlas(device), 1)
    assert device.lines() == []


def test_nobody_at_the_address_ends_the_run_with_the_remedy(tmp_path: Path) -> None:
    target = {"kind": "atlas", "url": "http://127.0.0.1:1", "serial": "SN-1"}
    with pytest.raises(ts.TallystickError, match=r"atlas:SN-1 cannot be reached.*correct its address"):
        go(tmp_path, target, 1)


def test_device_in_quarantine_needs_a_decision_and_the_other_variant_goes_on(
    device: AtlasDevice, instrument: Instrument, tmp_path: Path
) -> None:
    device.tell("fault", message="burnt", lasting=True)
    variants = {"burnt": {"target": atlas(device)}, "sound": {"target": line(instrument, echo="ECHO {{nonce}}")}}
    outcome = go(tmp_path, {}, asked(1), asked(2), variants=variants)
    assert outcome.next is ts.NextMove.DECIDE
    assert (outcome.counts[SlotState.SELECTED], outcome.counts[SlotState.PENDING]) == (2, 2)
    assert submits(device) == []


def test_late_line_is_nobodys_answer_in_a_run(instrument: Instrument, tmp_path: Path) -> None:
    target = line(instrument, echo="ECHO {{nonce}}", if_unknown="repeat", drain_seconds=5.0)

    def release() -> None:
        instrument.wait_for("waiting g")
        instrument.tell("go g")

    released = threading.Thread(target=release)
    released.start()
    held = asked("first", hold="g")
    outcome = go(tmp_path, target, held, asked("second"), asked("third"))
    released.join()
    assert answers(tmp_path, outcome) == {"case-1": "first", "case-2": "second", "case-3": "third"}


def test_instrument_with_no_way_back_into_step_needs_a_decision(instrument: Instrument, tmp_path: Path) -> None:
    outcome = go(tmp_path, line(instrument, if_unknown="repeat"), asked("late", mute=True), asked("second"))
    assert outcome.next is ts.NextMove.DECIDE
    assert sum(one["line"].startswith("ASK") for one in instrument.lines()) == 1
    again = go(tmp_path, line(instrument), asked("next"), name="next")
    assert again.counts[SlotState.PENDING] == 1


def test_two_variants_on_one_instrument_get_their_own_answers(instrument: Instrument, tmp_path: Path) -> None:
    sides = {
        name: {"target": line(instrument, echo="ECHO {{nonce}}", payload=f'ASK {{"answer": "{name} {{{{input}}}}"}}')}
        for name in ("one", "other")
    }
    outcome = go(tmp_path, {}, "a", "b", "c", variants=sides)
    assert outcome.counts[SlotState.SELECTED] == 6


def test_conversation_goes_on_from_its_checkpoint_after_an_answer_under_another_id(
    device: AtlasDevice, tmp_path: Path
) -> None:
    device.tell("plan", behave={})
    device.tell("plan", behave={"as_id": "another"})
    talk = {"turns": ["one", "two", "three"]}
    outcome = go(tmp_path, atlas(device, answer="$.heard"), talk, conversation={"turns": "$.turns"})
    assert answers(tmp_path, outcome) == {"case-1": ["one", "two"]}
    assert submits(device) == ["accepted"] * 3
    assert len(device.lines(role="restore")) == 1
