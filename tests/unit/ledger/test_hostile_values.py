"""Snapshots whose rows fit every rule of the schema, and hold what no ledger writes, are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.ledger.canonical import canonical_text
from tallystick.ledger.errors import SnapshotInvalid
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.snapshot_import import import_snapshot
from tallystick.ledger.snapshot_values import AMOUNT_MAX, INSTANT_MAX_US
from tests.unit.ledger.factories import every, new_ledger
from tests.unit.ledger.forged import Forgery, taken_apart
from tests.unit.ledger.snapshots import exported, full_run
from tests.unit.ledger.test_hostile_snapshots import rewrite_event, spoil_manifest


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A snapshot of a full run."""
    folder = tmp_path_factory.mktemp("sound")
    with new_ledger(folder) as ledger:
        exported(ledger, full_run(ledger).run_id, folder / "s.zip")
    return folder / "s.zip"


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Ledger]:
    with new_ledger(tmp_path, "target.db") as opened:
        yield opened


def put(table: str, **values: Any) -> Callable[[Forgery], None]:
    def spoil(forgery: Forgery) -> None:
        for column, value in values.items():
            forgery.set(table, column, value)

    return spoil


def retell(change: Callable[[str], str]) -> Callable[[Forgery], None]:
    """Another body of the event that opened the run; the chain holds."""

    def spoil(forgery: Forgery) -> None:
        number, _, _, body, _ = next(row for row in forgery.table("events") if row[1] == "run.opened")
        rewrite_event(forgery, number, body=change(body))

    return spoil


def retell_plan(forgery: Forgery, **values: Any) -> None:
    """Other words of the event with which every run begins; the chain holds."""
    body = json.loads(forgery.table("events")[0][3])
    rewrite_event(forgery, 1, body=canonical_text({**body, **values}))


def renamed(name: str) -> Callable[[Forgery], None]:
    """The run has another name, wherever it stands."""

    def work(forgery: Forgery) -> None:
        both("name", name)(forgery)
        retell_plan(forgery, name=name)

    return work


def lines(join: bytes, end: bytes) -> Callable[[Forgery], None]:
    """The slots' rows, written otherwise."""

    def spoil(forgery: Forgery) -> None:
        name = next(name for name in forgery.rows if "/slots-" in name)
        texts = [json.dumps(row, separators=(",", ":")).encode() for row in forgery.rows[name]]
        forgery.raw[name] = join.join(texts) + end

    return spoil


def both(name: str, value: Any) -> Callable[[Forgery], None]:
    """In the row of the run and in the manifest."""

    def spoil(forgery: Forgery) -> None:
        forgery.set("runs", name, value)
        forgery.manifest["runs"][0][name] = value

    return spoil


HARM: dict[str, Callable[[Forgery], object]] = {
    "an event that is not a number": retell(lambda body: body[:-1] + ',"x":NaN}'),
    "an event that is endless": retell(lambda body: body[:-1] + ',"x":Infinity}'),
    "an event of great depth": retell(lambda body: body[:-1] + ',"x":' + "[" * 3_000 + "]" * 3_000 + "}"),
    "an event with a number of 5,000 digits": retell(lambda body: body[:-1] + ',"x":' + "9" * 5_000 + "}"),
    "an event with white space": retell(lambda body: body.replace(":", ": ", 1)),
    "an event with a key twice": retell(lambda body: body[:-1] + ',"x":1,"x":2}'),
    "an event with a key twice within": retell(lambda body: body[:-1] + ',"x":[{"y":1,"y":2}]}'),
    "an event with a key twice, spelled otherwise": retell(lambda body: body[:-1] + ',"x":1,"\\u0078":2}'),
    "an event with a needless escape": retell(lambda body: body[:-1] + ',"x":"\\u0078"}'),
    "a case with a key twice": put("cases", input='{"a":1,"a":2}'),
    "a case with a key twice, spelled otherwise": put("cases", input='{"a":1,"\\u0061":2}'),
    "evidence with a key twice": put("observations", evidence='{"a":[{"b":1,"b":2}]}'),
    "a head with a key twice": put("calls", head='{"a":1,"a":2}'),
    "a work order with a key twice": put("runs", work_order='{"version":1,"version":2}'),
    "a judge of another identity": put("evaluation_judges", identity='{"evil":true}'),
    "an event that is no JSON": retell(lambda body: "{"),
    "an event before time": lambda found: rewrite_event(found, 2, at_us=-5),
    "an event after time": lambda found: rewrite_event(found, 2, at_us=INSTANT_MAX_US + 1),
    "a case that is no JSON": put("cases", input="{no"),
    "a case that is not a number": put("cases", input="NaN"),
    "an expectation that is no JSON": put("cases", expected="'x'"),
    "metadata that are no JSON": put("cases", metadata="{"),
    "a work order that is no JSON": put("runs", work_order="{"),
    "another identity": put("runs", identity='{"evil":true}'),
    "a case of another digest": put("cases", digest="sha256:" + 64 * "0"),
    "a case of another name": put("cases", case_id="other"),
    "a case that asks something else": put("cases", input='"other"'),
    "a case that expects something else": put("cases", expected=None),
    "a case with other metadata": put("cases", metadata='{"tier":"gold"}'),
    "an answer of another digest, in a file": lambda found: found.set(
        "observations", "answer_digest", "sha256:" + 64 * "0", where=lambda row: row["answer_artifact"] is not None
    ),
    "an evaluation of another digest": put("evaluations", document_digest="sha256:" + 64 * "0"),
    "an evaluation of other judges": put("evaluations", document="[]"),
    "a judge of another name": put("evaluation_judges", name="other"),
    "a run of another name": both("name", "other"),
    "a variant of another name": put("variants", name="other"),
    "a work order of another digest": put("runs", work_order_digest="sha256:" + 64 * "0"),
    "an observation of another call": lambda found: found.set(
        "observations", "call_id", found.table("calls")[1][0], where=lambda row: row["slot_no"] == 1
    ),
    "a slot of another case": put("slots", case_no=2),
    "a verdict that was not told": put("judgments", passed=0),
    "a verdict that is more than a pass": put("judgments", passed=2),
    "a verdict that is not there": lambda found: found.drop("judgments", where=lambda row: True),
    "settings that are no JSON": put("runs", settings="{"),
    "settings that are a list": put("runs", settings="[]"),
    "a work order that is a number": put("runs", work_order="1"),
    "metadata that are a text": put("cases", metadata='"x"'),
    "evidence that is nothing": put("observations", evidence="null"),
    "flags that are an object": put("observations", flags="{}"),
    "a head that begins with a space": put("calls", head=" {}"),
    "a judge whose identity is a list": put("evaluation_judges", identity="[]"),
    "a target that is no JSON": put("variants", target="{"),
    "a head that is no JSON": put("calls", head="{"),
    "evidence that is no JSON": put("observations", evidence="{"),
    "flags that are no JSON": put("observations", flags="{"),
    "usage that is no JSON": put("dispatches", usage="{"),
    "a score that is a word": put("judgments", score="abc"),
    "a score that is a text": put("judgments", score='"1"'),
    "a score without end": put("judgments", score="1e999"),
    "a run of the year 200,000": put("runs", created_us=2**62),
    "a run before time": put("runs", created_us=-1),
    "less than no time": put("runs", active_us=-1),
    "less than no cost": put("dispatches", cost_nanousd=-1),
    "less than no tokens": put("dispatches", tokens_in=-1),
    "less than no bytes": put("dispatches", bytes_sent=-1),
    "a request of another size": put("calls", payload_size=1),
    "a fence after which there is none": put("fences", high_water=2**63 - 1),
    "a fence below its lease's": put("leases", fence=7),
    "a fence of a device that the run has not had": lambda found: found.table("fences").append(["device:lab", 2**40]),
    "bytes that nothing refers to": lambda found: found.table("artifacts").append(
        ["sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", 0, None, ""]
    ),
    "an epoch after which there is none": spoil_manifest(lambda said: said["runs"][0].update(epoch=2**63 - 1)),
    "an epoch before the first": spoil_manifest(lambda said: said["runs"][0].update(epoch=0)),
    "a run that is forked from itself": lambda found: found.set("runs", "forked_from", found.run),
    "what is left out is no list": put("runs", left_out="{"),
    "what is left out is nothing": put("runs", left_out="[]"),
    "what is left out is not told": put("runs", left_out='["answers"]'),
    "what is told is not left out": spoil_manifest(
        lambda said: said["runs"][0].update(left_out=[{"rule": "answers", "texts": 1, "events": 1}])
    ),
    "more planned than any memory holds": both("planned", 2**61),
    "less than no rows": spoil_manifest(lambda said: said["runs"][0]["rows"].update(slots=-1)),
    "a key of the manifest twice": lambda found: found.raw.update(
        {"manifest.json": b'{"format":"tallystick.snapshot/1",' + json.dumps(found.manifest).encode()[1:]}
    ),
    "half a character in the manifest": spoil_manifest(lambda said: said.update(producer="\ud800")),
    "a number of 6,000 digits in the manifest": lambda found: found.raw.update(
        {"manifest.json": b'{"format":"tallystick.snapshot/1","schema_number":' + b"9" * 6_000 + b"}"}
    ),
    "an empty line": lines(b"\n", b"\n\n"),
    "two rows in a line": lines(b",", b"\n"),
    "rows that end the list": lines(b"\n", b"]\n[\n"),
    "a mark of the order of bytes": lambda found: found.raw.update(
        {name: b"\xef\xbb\xbf[]\n" for name in found.rows if "/slots-" in name}
    ),
}


@pytest.mark.parametrize("harm", HARM)
def test_values_that_no_ledger_writes_are_refused(harm: str, sound: Path, target: Ledger, tmp_path: Path) -> None:
    forgery = taken_apart(sound)
    HARM[harm](forgery)
    with pytest.raises(SnapshotInvalid):
        import_snapshot(target, forgery.write(tmp_path / "h.zip"))
    assert every(target, "SELECT count(*) FROM runs") == [(0,)]
    assert every(target, "SELECT count(*) FROM fences WHERE resource NOT LIKE 'run:%'") == [(0,)]


ODD: dict[str, Callable[[Forgery], object]] = {
    "a program that a signal has ended": put("dispatches", status=-9),
    "an amount that is very large": put("dispatches", cost_nanousd=AMOUNT_MAX),
    "the last microsecond": put("runs", created_us=INSTANT_MAX_US),
    "a name that writes on the terminal": renamed("a\n\x1b[31m"),
    "a run that is forked from one that is elsewhere": put("runs", forked_from="elsewhere"),
    "a text with NUL and half a character, as JSON writes them": retell(
        lambda body: body[:-1] + ',"x":"\\u0000\\ud800"}'
    ),
}


@pytest.mark.parametrize("odd", ODD)
def test_values_that_are_odd_and_may_be_are_taken_in(odd: str, sound: Path, target: Ledger, tmp_path: Path) -> None:
    forgery = taken_apart(sound)
    ODD[odd](forgery)
    assert import_snapshot(target, forgery.write(tmp_path / "h.zip")).changed
