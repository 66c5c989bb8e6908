"""The check of a device's log against ledgers finds what does not hold; else the tests that rely on it are blind."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import pytest

from .benches import RESOURCE, Bench, asks
from .device_log import findings_of
from .harness import Site

Lines: TypeAlias = list[dict[str, Any]]


def submits(lines: Lines) -> Lines:
    return [line for line in lines if line.get("role") == "submit"]


def comes_twice(lines: Lines) -> None:
    lines.append(copy.deepcopy(submits(lines)[0]))


def comes_again_as_a_repetition(lines: Lines) -> None:
    lines.append({**submits(lines)[-1], "verdict": "repeated"})


def falls(lines: Lines) -> None:
    submits(lines)[-1]["fence"] = 0


def is_stale(lines: Lines) -> None:
    submits(lines)[-1]["verdict"] = "fence.stale"


def comes_under_the_next_holders_fence(lines: Lines) -> None:
    submits(lines)[-1]["fence"] += 1


def comes_from_nowhere(lines: Lines) -> None:
    submits(lines)[0]["request_id"] = "never-intended"


def comes_before_it_was_intended(lines: Lines) -> None:
    submits(lines)[0]["at"] -= 3600


def comes_with_other_bytes(lines: Lines) -> None:
    submits(lines)[0]["payload_digest"] = "sha256:0"


def comes_without_a_look(lines: Lines) -> None:
    lines.remove(next(line for line in lines if line.get("role") == "reset"))


def is_answered_otherwise(lines: Lines) -> None:
    ended = {line["request_id"]: line for line in lines if line["event"] == "ended"}
    ended[submits(lines)[0]["request_id"]]["reply"]["answer"] = "something else"


def is_not_done(lines: Lines) -> None:
    ended = {line["request_id"]: line for line in lines if line["event"] == "ended"}
    ended[submits(lines)[0]["request_id"]]["outcome"] = "never"


LIES: Final = (
    comes_twice, comes_again_as_a_repetition, falls, is_stale, comes_under_the_next_holders_fence, comes_from_nowhere,
    comes_before_it_was_intended, comes_with_other_bytes, comes_without_a_look, is_answered_otherwise, is_not_done,
)  # fmt: skip


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run on a device, and the device's log of it."""
    site = Site(tmp_path_factory.mktemp("device-log"))
    bench = Bench(site)
    try:
        assert bench.run("first", [asks("a"), asks("b")]).ended() == 0
        yield site.ledger, bench.device.log
    finally:
        bench.close()
        site.close()


def test_a_log_that_agrees_with_its_ledger_gives_no_finding(told: Any) -> None:
    ledger, log = told
    assert list(findings_of([ledger], log, resource=RESOURCE)) == []


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_log_is_found_to_disagree_when_a_request(told: Any, lie: Callable[[Lines], None], tmp_path: Any) -> None:
    ledger, log = told
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    lie(lines)
    doctored = tmp_path / "doctored.jsonl"
    doctored.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert list(findings_of([ledger], doctored, resource=RESOURCE)) != []
