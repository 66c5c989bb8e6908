"""What is left out of a snapshot does not stand in it, and the population stays whole all the same."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallystick.ledger import snapshot_redaction
from tallystick.ledger.artifacts import files_in
from tallystick.ledger.checks import check_ledger
from tallystick.ledger.custody_changes import adopt
from tallystick.ledger.errors import ContentsLeftOut, SnapshotInvalid, UsageError
from tallystick.ledger.evaluations import create_evaluation
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.planning import JudgePlan, create_run
from tallystick.ledger.run_reads import find_run, slot_counts
from tallystick.ledger.snapshot_import import import_snapshot
from tallystick.ledger.snapshot_redaction import RULES
from tallystick.ledger.snapshot_wish import SnapshotWish, write_snapshot
from tests.unit.ledger.factories import case_plan, evaluation_plan, every, new_ledger, one, run_plan
from tests.unit.ledger.snapshots import LARGE, LARGE_ANSWER, exported, full_run, go_on, rows_of


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Ledger]:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    with new_ledger(folder) as opened:
        yield opened


def everything(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        return b"\n".join(archive.read(name) for name in archive.namelist())


def findings(ledger: Ledger) -> list[str]:
    return [f"{one.code}: {one.what}" for one in check_ledger(ledger)]


# What stands in `full_run`, by the rule that leaves it out.
CONTENTS = {
    "cases": [b"input 1", b"input 8"],
    "requests": [b"what was asked".hex().encode()],
    "answers": [b"perhaps so", b"00ff206e6f742074657874"],
    "messages": [b"nobody knows"],
}


@pytest.mark.parametrize("rule", CONTENTS)
def test_contents_of_a_kind_are_left_out_and_nothing_else(
    rule: str, ledger: Ledger, elsewhere: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger)
    made = exported(ledger, run.run_id, tmp_path / "s.zip", redact=[rule])
    contents = everything(tmp_path / "s.zip")
    assert [found for found in CONTENTS[rule] if found in contents] == []
    assert [found for other, kept in CONTENTS.items() if other != rule for found in kept if found not in contents] == []
    (entry,) = made.manifest.runs
    assert [one.rule for one in entry.left_out] == [rule]
    assert entry.left_out[0].texts > 0
    import_snapshot(elsewhere, tmp_path / "s.zip")
    assert findings(elsewhere) == []
    with elsewhere.reading() as reader, ledger.reading() as original:
        here, there = find_run(reader, run.run_id), find_run(original, run.run_id)
        assert slot_counts(reader, here.run_key) == slot_counts(original, there.run_key)
    assert one(elsewhere, "SELECT left_out FROM runs") == (json.dumps([rule]),)


def test_an_artifact_that_nothing_refers_to_any_more_is_left_out(
    ledger: Ledger, elsewhere: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger)
    made = exported(ledger, run.run_id, tmp_path / "s.zip", redact=["answers"])
    assert made.manifest.artifacts.count == 0
    import_snapshot(elsewhere, tmp_path / "s.zip")
    assert every(elsewhere, "SELECT * FROM artifacts") == []
    assert list(files_in(elsewhere.artifacts)) == []


def test_only_the_chosen_planned_observations_keep_their_contents(
    ledger: Ledger, elsewhere: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger)
    exported(ledger, run.run_id, tmp_path / "s.zip", slots=["state=failed", "case=c2"])
    contents = everything(tmp_path / "s.zip")
    assert b"input 2" in contents
    assert b"00ff206e6f742074657874" in contents, "what came back for it"
    assert [number for number in (1, 3, 4, 5, 6, 7, 8) if b"input %d" % number in contents] == []
    assert b"perhaps so" not in contents
    import_snapshot(elsewhere, tmp_path / "s.zip")
    assert findings(elsewhere) == []
    assert every(elsewhere, "SELECT slot_no, state, attempts FROM slots") == every(
        ledger, "SELECT slot_no, state, attempts FROM slots"
    ), "the population stays whole"
    digests = "SELECT slot_no, answer_digest FROM observations"
    assert every(elsewhere, digests) == every(ledger, digests), "so that the contents can be shown to be the same"


def test_nothing_that_came_back_or_was_said_of_others_leaves_with_those_that_are_chosen(
    ledger: Ledger, elsewhere: Ledger, tmp_path: Path
) -> None:
    """What belongs to a call (sends, settlements) and what the history says of it, too."""
    run = full_run(ledger)
    made = exported(ledger, run.run_id, tmp_path / "s.zip", slots=["case=c1"])
    contents = everything(tmp_path / "s.zip")
    assert b"input 1" in contents
    others = (*CONTENTS["answers"], *CONTENTS["messages"], LARGE, LARGE_ANSWER.encode())
    assert [found[:40] for found in others if found in contents] == []
    assert made.manifest.artifacts.count == 0
    assert made.manifest.runs[0].left_out[0].events == 1
    import_snapshot(elsewhere, tmp_path / "s.zip")
    assert findings(elsewhere) == []


def test_an_artifact_that_is_too_large_to_be_searched_does_not_leave(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = full_run(ledger)
    made = exported(ledger, run.run_id, tmp_path / "s.zip", redact=["text:stands nowhere"])
    assert made.manifest.artifacts.count == 2
    monkeypatch.setattr(snapshot_redaction, "_SEARCHED_MAX", len(LARGE) - 1)
    made = exported(ledger, run.run_id, tmp_path / "s.zip", redact=["text:stands nowhere"])
    assert made.manifest.artifacts.count == 1, "the smaller one"


@pytest.mark.parametrize(
    ("terms", "chosen"),
    [
        (["state=unknown"], [3]),
        (["state=unknown", "state=failed"], [2, 3, 5]),
        (["reason=http.500"], [2]),
        (["repetition=2"], []),
        (["variant=default", "case=c7"], [7]),
    ],
)
def test_planned_observations_are_chosen_by_what_is_known_of_them(
    terms: list[str], chosen: list[int], ledger: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger)
    exported(ledger, run.run_id, tmp_path / "s.zip", slots=terms)
    contents = everything(tmp_path / "s.zip")
    assert [number for number in range(1, 9) if b"input %d" % number in contents] == chosen


def test_planned_observations_are_chosen_by_the_metadata_of_their_cases(ledger: Ledger, tmp_path: Path) -> None:
    rows = [
        case_plan(f"c{number}", f'"input {number}"', None, metadata)
        for number, metadata in enumerate(['{"tier":"gold"}', '{"tier":["gold","new"]}', '{"tier":1}', "{}"], start=1)
    ]
    run = create_run(ledger, run_plan(), rows)
    for value, wanted in (("gold", [1, 2]), ("1", [3])):
        exported(ledger, run.run_id, tmp_path / "s.zip", slots=[f"metadata.tier={value}"])
        contents = everything(tmp_path / "s.zip")
        assert [number for number in range(1, 5) if b"input %d" % number in contents] == wanted


def test_text_that_fits_leaves_nowhere(ledger: Ledger, elsewhere: Ledger, tmp_path: Path) -> None:
    run = full_run(ledger)
    made = exported(
        ledger, run.run_id, tmp_path / "s.zip", redact=["text:input [1-4]", "text:(?i)PERHAPS", "text:large"]
    )
    contents = everything(tmp_path / "s.zip")
    for found in (b"input 1", b"input 4", b"perhaps so", b"large "):
        assert found not in contents
    assert b"input 5" in contents
    assert made.manifest.artifacts.count == 1, "the artifact that fits is left out, the other is not"
    import_snapshot(elsewhere, tmp_path / "s.zip")
    assert findings(elsewhere) == []
    assert one(elsewhere, "SELECT input FROM cases WHERE case_no = 1") == ('"[left out]"',)


def test_text_in_the_name_of_a_run_leaves_nowhere_either(ledger: Ledger, elsewhere: Ledger, tmp_path: Path) -> None:
    run = full_run(ledger, name="for customer 17")
    exported(ledger, run.run_id, tmp_path / "s.zip", redact=["text:customer 17"])
    assert b"customer 17" not in everything(tmp_path / "s.zip")
    (told,) = import_snapshot(elsewhere, tmp_path / "s.zip").runs
    assert told.name == "for [left out]"
    assert findings(elsewhere) == []


def test_text_is_found_behind_the_escapes_of_json(ledger: Ledger, tmp_path: Path) -> None:
    plan = case_plan("c", '"J\\u00fcrgen"', None, '{"who":"J\\u00fcrgen"}')
    run = create_run(ledger, run_plan(), [plan])
    exported(ledger, run.run_id, tmp_path / "s.zip", redact=["text:Jürgen"])
    assert b"fcrgen" not in everything(tmp_path / "s.zip")


def test_bytes_that_hold_text_that_fits_are_left_out_whole(ledger: Ledger, elsewhere: Ledger, tmp_path: Path) -> None:
    run = full_run(ledger)
    exported(ledger, run.run_id, tmp_path / "s.zip", redact=["text:was asked", "text: not t"])
    contents = everything(tmp_path / "s.zip")
    for found in (b"what was asked", b"\x00\xff not text"):
        assert found.hex().encode() not in contents
    import_snapshot(elsewhere, tmp_path / "s.zip")
    assert every(elsewhere, "SELECT DISTINCT payload FROM calls") == [(None,)]
    assert findings(elsewhere) == []


def test_text_that_names_something_within_json_is_left_out_too(
    ledger: Ledger, elsewhere: Ledger, tmp_path: Path
) -> None:
    run = create_run(ledger, run_plan(), [case_plan("c", '{"customer 17":{"customer 17":1}}')])
    exported(ledger, run.run_id, tmp_path / "s.zip", redact=["text:customer 17"])
    assert b"customer 17" not in everything(tmp_path / "s.zip")
    import_snapshot(elsewhere, tmp_path / "s.zip")
    assert one(elsewhere, "SELECT input FROM cases") == ('{"[left out]":{"[left out]":1}}',)


def test_text_in_a_word_of_the_history_that_cannot_be_left_out_is_not_exported(ledger: Ledger, tmp_path: Path) -> None:
    run = full_run(ledger)
    ledger.write(lambda tx: tx.event(run.run_key, "run.stop_asked", {"reason": "", "host": "lab-17"}))
    with pytest.raises(UsageError, match="of the run, host, where nothing can be left out"):
        exported(ledger, run.run_id, tmp_path / "s.zip", redact=["text:lab-17"])
    assert not (tmp_path / "s.zip").exists()


def test_text_of_a_decision_is_left_out_of_the_history_which_stays_bound(
    ledger: Ledger, elsewhere: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger)
    made = exported(ledger, run.run_id, tmp_path / "s.zip", redact=["text:another machine"])
    assert made.manifest.runs[0].left_out[0].events == 0
    ledger.write(lambda tx: tx.event(run.run_key, "run.stop_asked", {"reason": "for another machine"}))
    made = exported(ledger, run.run_id, tmp_path / "s.zip", redact=["text:another machine"])
    assert made.manifest.runs[0].left_out[0].events == 1
    import_snapshot(elsewhere, tmp_path / "s.zip")
    assert findings(elsewhere) == []
    hashes = "SELECT event_no, hash FROM events ORDER BY event_no"
    assert every(elsewhere, hashes) == every(ledger, hashes)


@pytest.mark.parametrize("pattern", ["selected", "^c1$", "http.500", "late"])
def test_text_that_cannot_be_left_out_is_not_exported(pattern: str, ledger: Ledger, tmp_path: Path) -> None:
    run = full_run(ledger)
    with pytest.raises(UsageError, match="nothing can be left out"):
        exported(ledger, run.run_id, tmp_path / "s.zip", redact=[f"text:{pattern}"])
    assert not (tmp_path / "s.zip").exists()


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        (SnapshotWish(redact=("nothing",)), "there is no rule nothing"),
        (SnapshotWish(redact=("text:(",)), "no regular expression"),
        (SnapshotWish(redact=("text:",)), "there is no rule"),
        (SnapshotWish(slots=("state",)), "chooses nothing"),
        (SnapshotWish(slots=("colour=red",)), "chooses nothing"),
        (SnapshotWish(slots=("state=failed", "state=faild")), "state=faild chooses nothing: there is no such state"),
        (SnapshotWish(move=True, redact=("cases",)), "--move excludes"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(wish: SnapshotWish, why: str, ledger: Ledger, tmp_path: Path) -> None:
    run = full_run(ledger)
    with pytest.raises(UsageError, match=why):
        write_snapshot(ledger, [run.run_id], tmp_path / "s.zip", wish)
    assert one(ledger, "SELECT custody FROM runs") == ("held",)


def test_a_run_without_its_contents_is_neither_adopted_nor_judged(
    ledger: Ledger, elsewhere: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger)
    exported(ledger, run.run_id, tmp_path / "s.zip", redact=["answers"])
    import_snapshot(elsewhere, tmp_path / "s.zip")
    with pytest.raises(ContentsLeftOut):
        adopt(elsewhere, run.run_id, reason="r", made_by="me")
    plan = evaluation_plan("e", JudgePlan("strict", "exact", "{}"))
    with pytest.raises(ContentsLeftOut):
        elsewhere.write(lambda tx: create_evaluation(tx, run.run_id, plan))


def test_a_part_is_moved_forward_by_a_later_part_and_by_nothing_else(
    ledger: Ledger, elsewhere: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger)
    exported(ledger, run.run_id, tmp_path / "s.zip", redact=["answers"])
    import_snapshot(elsewhere, tmp_path / "s.zip")
    go_on(ledger, run.run_id)
    exported(ledger, run.run_id, tmp_path / "whole.zip")
    before = rows_of(elsewhere, run.run_id)
    with pytest.raises(SnapshotInvalid, match="--slots and --redact"):
        import_snapshot(elsewhere, tmp_path / "whole.zip")
    assert rows_of(elsewhere, run.run_id) == before
    exported(ledger, run.run_id, tmp_path / "later.zip", redact=["answers"])
    (told,) = import_snapshot(elsewhere, tmp_path / "later.zip").runs
    assert told.became == "forward"
    assert findings(elsewhere) == []


def test_a_part_of_a_part_says_all_that_was_left_out(ledger: Ledger, elsewhere: Ledger, tmp_path: Path) -> None:
    run = full_run(ledger)
    exported(ledger, run.run_id, tmp_path / "s.zip", redact=["answers"])
    import_snapshot(elsewhere, tmp_path / "s.zip")
    exported(elsewhere, run.run_id, tmp_path / "less.zip", redact=["cases"])
    contents = everything(tmp_path / "less.zip")
    assert b'[\\"answers\\",\\"cases\\"]' in contents


def test_every_kind_of_contents_names_columns_that_are_there() -> None:
    from tallystick.ledger.schema import metadata

    for places in RULES.values():
        for table, columns in places.items():
            assert set(columns) <= set(metadata.tables[table].columns.keys())
