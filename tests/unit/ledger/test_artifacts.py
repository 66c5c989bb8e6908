"""Bytes by digest: durable before they are named, the same when they are read, found by whoever asks."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import attrs
import pytest

from tallystick.ledger import artifacts, attempts, checks, coordinators, evaluations, judging_reads, slot_reads
from tallystick.ledger.artifacts import INLINE_MAX, file_of
from tallystick.ledger.canonical import digest_of_bytes
from tallystick.ledger.errors import LedgerDamaged, LedgerFailed
from tallystick.ledger.late import keep_late as keep_late_answer
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.records import DispatchFacts, DispatchKey, Waiting
from tallystick.ledger.settlements import Decision, Settlement, settle_unknown
from tallystick.ledger.states import DispatchState, IfUnknown, NextStep
from tests.unit.ledger.children import Child
from tests.unit.ledger.factories import answered, intent, lost, new_run, one

SMALL = b"\x00\xff small"
LARGE = bytes(range(256)) * 1_000
LONG_ANSWER = '"' + "x" * INLINE_MAX + '"'


def files(ledger: Ledger) -> list[Path]:
    return list(artifacts.files_in(ledger.artifacts))


def got(ledger: Ledger, digest: str) -> bytes:
    with ledger.reading() as reader:
        return artifacts.get(reader, digest)


@pytest.mark.parametrize("data", [b"", SMALL, b"x" * INLINE_MAX, b"x" * (INLINE_MAX + 1), LARGE])
def test_bytes_come_back_as_they_were_kept(data: bytes, ledger: Ledger) -> None:
    digest = artifacts.put(ledger, data, media_type="application/x")
    assert digest == digest_of_bytes(data)
    assert got(ledger, digest) == data
    assert one(ledger, "SELECT size, media_type, data IS NULL FROM artifacts") == (
        len(data), "application/x", int(len(data) > INLINE_MAX),
    )  # fmt: skip
    assert [path.name for path in files(ledger)] == ([digest[7:]] if len(data) > INLINE_MAX else [])


@pytest.mark.parametrize("data", [SMALL, LARGE])
def test_the_same_bytes_are_kept_once(data: bytes, ledger: Ledger) -> None:
    async def main() -> list[str]:
        return await asyncio.gather(*(artifacts.put_async(ledger, data) for _ in range(5)))

    assert set(asyncio.run(main())) == {artifacts.put(ledger, data)}
    assert one(ledger, "SELECT count(*) FROM artifacts") == (1,)
    assert len(files(ledger)) == int(data is LARGE)


def test_a_file_is_synced_named_and_its_folder_synced_before_its_row_is_committed(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    sync, replace, ledger_write = os.fsync, Path.replace, ledger.write

    def note_sync(descriptor: int) -> None:
        steps.append("sync " + Path(f"/proc/self/fd/{descriptor}").resolve().name)
        sync(descriptor)

    def note_replace(path: Path, target: Path) -> Path:
        steps.append("rename")
        return replace(path, target)

    digest = digest_of_bytes(LARGE)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", note_sync)
        patch.setattr(Path, "replace", note_replace)
        artifact = artifacts.prepare(ledger, LARGE)
    assert one(ledger, "SELECT count(*) FROM artifacts") == (0,)
    data_synced = next(at for at, step in enumerate(steps) if step.startswith(f"sync {digest[7:]}."))
    assert "sync artifacts" in steps[:data_synced], "the new folder's own entry"
    assert steps[data_synced + 1 :] == ["rename", f"sync {digest[7:9]}"]
    ledger_write(lambda tx: artifacts.record(tx, artifact))
    assert got(ledger, digest) == LARGE


def test_a_folder_that_somebody_else_has_just_made_is_synced_before_a_file_in_it_is_relied_on(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = digest_of_bytes(LARGE)
    file_of(ledger.artifacts, digest).parent.mkdir(parents=True)
    synced: list[Path] = []
    monkeypatch.setattr(artifacts, "sync_folder", synced.append)
    artifacts.prepare(ledger, LARGE)
    assert {ledger.path.parent, ledger.artifacts.parent, ledger.artifacts} <= set(synced)
    synced.clear()
    artifacts.prepare(ledger, LARGE + b"!")
    assert ledger.artifacts.parent not in synced, "once is enough"


def test_a_death_between_file_and_row_leaves_an_orphan_that_a_check_lists(ledger: Ledger) -> None:
    with Child("put_large", ledger.path, crashpoint="scribe.commit.before@2") as child:
        assert child.end() == -9
    assert one(ledger, "SELECT count(*) FROM artifacts") == (0,)
    [orphan] = files(ledger)
    found = [finding for finding in checks.check_ledger(ledger) if finding.code == "artifact.orphan"]
    assert [finding.severity for finding in found] == ["warning"]
    assert orphan.name in found[0].what
    # Whoever keeps the same bytes next makes it an artifact.
    artifacts.put(ledger, orphan.read_bytes())
    assert not [finding for finding in checks.check_ledger(ledger) if finding.code == "artifact.orphan"]


def test_a_file_that_a_death_cut_short_is_written_again(ledger: Ledger) -> None:
    path = file_of(ledger.artifacts, digest_of_bytes(LARGE))
    path.parent.mkdir(parents=True)
    path.write_bytes(LARGE[:1000])
    assert got(ledger, artifacts.put(ledger, LARGE)) == LARGE


@pytest.mark.parametrize("harm", ["gone", "changed", "cut"])
def test_bytes_that_are_not_what_was_kept_are_not_given(harm: str, ledger: Ledger) -> None:
    digest = artifacts.put(ledger, LARGE)
    [path] = files(ledger)
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes(LARGE[:-1] if harm == "cut" else LARGE[:-1] + b"?")
    with pytest.raises(LedgerDamaged):
        got(ledger, digest)


def test_a_digest_that_is_not_there_is_named(ledger: Ledger) -> None:
    with pytest.raises(LedgerDamaged, match="sha256:absent"):
        got(ledger, "sha256:absent")


def test_a_disk_that_takes_no_file_is_a_failure_with_a_remedy_and_leaves_no_half(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(LedgerFailed, match="No space left"):
            artifacts.put(ledger, LARGE)
    assert files(ledger) == []
    assert ledger.failure is None


# Large requests, answers and raw bodies.


async def begin_large(ledger: Ledger, run_key: int, payload: bytes) -> DispatchKey:
    wanted = intent(run_key, payload=payload, if_unknown=IfUnknown.RESEND)
    stored = await artifacts.with_stored_payload(ledger, wanted)
    return (await ledger.write_async(lambda tx: attempts.begin(tx, stored))).key


@pytest.mark.parametrize("payload", [SMALL, LARGE])
def test_a_request_of_any_size_is_repeated_byte_by_byte(payload: bytes, ledger: Ledger) -> None:
    run_key = new_run(ledger).run_key
    key = asyncio.run(begin_large(ledger, run_key, payload))
    ledger.write(lambda tx: attempts.lose(tx, key, lost(raw=b"part"), waiting=Waiting(NextStep.RESEND)))
    with ledger.reading() as reader:
        found = slot_reads.call_to_repeat(reader, run_key, 1, 1)
        [unknown] = slot_reads.unknown_outcomes(reader, run_key)
    assert found is not None
    assert found.payload == unknown.payload == payload
    assert found.payload_digest == digest_of_bytes(payload)
    assert unknown.raw == b"part"
    assert (one(ledger, "SELECT payload FROM calls")[0] is None) == (payload is LARGE)


def test_a_large_request_that_a_dead_process_left_can_be_resent(ledger: Ledger) -> None:
    run = new_run(ledger)
    coordinator = coordinators.open_run(ledger, run.run_id)
    asyncio.run(begin_large(ledger, run.run_key, LARGE))
    ledger.write(lambda tx: coordinators.release_run(tx, coordinator, reason="r", active_us=0))
    coordinators.open_run(ledger, run.run_id)
    assert one(ledger, "SELECT state, next_step FROM slots WHERE slot_no = 1") == ("pending", "resend")


@pytest.mark.parametrize("answer", ['"short"', LONG_ANSWER])
@pytest.mark.parametrize("raw", [SMALL, LARGE])
def test_an_answer_of_any_size_is_judged_and_shown_whole(answer: str, raw: bytes, ledger: Ledger) -> None:
    run_key = new_run(ledger, judges=("exact",)).run_key
    digest = digest_of_bytes(answer.encode())

    async def main() -> None:
        key = await begin_large(ledger, run_key, SMALL)
        facts = await artifacts.with_stored_raw(ledger, answered(raw=raw))
        stored = await artifacts.stored_answer(ledger, answer)
        await ledger.write_async(lambda tx: attempts.observe(tx, key, facts, answer=stored, answer_digest=digest))

    asyncio.run(main())
    ledger.write(lambda tx: evaluations.write_rest(tx, run_key, after_slot=0))
    with ledger.reading() as reader:
        [waiting] = judging_reads.open_judgments(reader, run_key, 1, 1, after=(0, 0), limit=9)
        [page] = slot_reads.case_page(reader, run_key, "c1")
    assert waiting.answer == answer
    assert page.attempts[0].answer == answer
    assert page.attempts[0].dispatches[0].raw == raw
    assert one(ledger, "SELECT answer IS NULL FROM observations") == (int(answer is LONG_ANSWER),)
    assert one(ledger, "SELECT raw IS NULL FROM dispatches") == (int(raw is LARGE),)
    checks.require_sound(ledger)


@pytest.mark.parametrize("way", ["late", "operator"])
def test_a_large_answer_may_come_by_any_way(way: str, ledger: Ledger) -> None:
    run_key = new_run(ledger).run_key
    digest = digest_of_bytes(LONG_ANSWER.encode())

    async def main() -> None:
        key = await begin_large(ledger, run_key, SMALL)
        await ledger.write_async(lambda tx: attempts.lose(tx, key, lost(), waiting=None))
        stored = await artifacts.stored_answer(ledger, LONG_ANSWER)
        late = await artifacts.with_stored_raw(ledger, DispatchFacts(DispatchState.LATE, raw=LARGE))
        if way == "late":
            await ledger.write_async(lambda tx: keep_late_answer(tx, key, late, answer=stored, answer_digest=digest))
        else:
            told = attrs.evolve(late, state=DispatchState.ANSWERED)
            wanted = Settlement(key.call_id, 1, Decision.LANDED, "operator", "r", told, stored, digest)
            await ledger.write_async(lambda tx: settle_unknown(tx, wanted))

    asyncio.run(main())
    with ledger.reading() as reader:
        [page] = slot_reads.case_page(reader, run_key, "c1")
    assert page.attempts[0].answer == LONG_ANSWER
    assert page.attempts[0].dispatches[0].raw == LARGE


def test_an_attempt_that_does_not_begin_leaves_no_row_of_its_artifact(ledger: Ledger) -> None:
    run_key = new_run(ledger).run_key
    asyncio.run(begin_large(ledger, run_key, SMALL))
    with pytest.raises(Exception, match="not pending"):
        asyncio.run(begin_large(ledger, run_key, LARGE))
    assert one(ledger, "SELECT count(*) FROM artifacts") == (0,)
