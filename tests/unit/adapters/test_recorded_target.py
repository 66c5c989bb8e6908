"""Answers from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tallystick.adapters.errors import CaseUnfit
from tallystick.adapters.recorded_target import RecordedTarget, from_work_order
from tallystick.ledger.errors import TargetNotFound
from tallystick.ledger.states import DispatchState

from .makers import make_case, make_slot, run_case


def make(folder: Path, text: str) -> RecordedTarget:
    (folder / "answers.jsonl").write_text(text, encoding="utf-8")
    return from_work_order({"file": "answers.jsonl"}, folder=folder, place="target")


def test_each_case_is_answered_with_what_was_recorded(tmp_path: Path) -> None:
    target = make(
        tmp_path,
        '{"id": "a", "answer": null}\n\n'
        '{"id": 2, "answer": [1], "context": ["c"], "evidence": {"trace": 1}, "flags": ["truncated"], "label": true}\n',
    )
    outcome = run_case(target, make_case(id="a"))
    assert (outcome.state, outcome.answer, outcome.evidence) == (DispatchState.ANSWERED, None, {})
    other = run_case(target, make_case(id="2"))
    assert (other.answer, other.evidence, other.flags) == ([1], {"trace": 1, "context": ["c"]}, ("truncated",))


def test_a_case_without_an_answer_fails_alone(tmp_path: Path) -> None:
    with pytest.raises(CaseUnfit, match='case "b" has no answer'):
        make(tmp_path, '{"id": "a", "answer": 1}').prepare(make_slot(make_case(id="b")))


def test_its_identity_is_the_content_of_the_file(tmp_path: Path) -> None:
    one = make(tmp_path, '{"id": "a", "answer": 1}').identity()
    assert make(tmp_path, '{"id": "a", "answer": 2}').identity() != one
    (tmp_path / "other.jsonl").write_text('{"id": "a", "answer": 1}')
    assert from_work_order({"file": "other.jsonl"}, folder=tmp_path, place="target").identity() == one


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "answers.jsonl:1: not JSON"),
        ('\ufeff{"id": "a", "answer": 1}', "answers.jsonl:1: begins with a byte order mark"),
        ('{"id": "a"}', "answers.jsonl:1: an object with id and answer is wanted"),
        ("[1]", "answers.jsonl:1: an object with id and answer is wanted"),
        ('{"id": "a", "answer": 1}\n{"id": "a", "answer": 2}', 'answers.jsonl:2: a second answer for "a"'),
        ('{"id": "a", "answer": 1, "evidence": 1}', '"evidence" is an object'),
        ('{"id": "a", "answer": 1, "flags": "x"}', '"flags" is a list of texts'),
    ],
)
def test_a_file_with_a_fault_is_refused_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(TargetNotFound) as caught:
        make(tmp_path, text)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TargetNotFound, match=r"target.file: nowhere.jsonl cannot be read"):
        from_work_order({"file": "nowhere.jsonl"}, folder=tmp_path, place="target")
