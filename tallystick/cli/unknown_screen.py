"""Unknown outcomes with their evidence."""

from __future__ import annotations

import contextlib
import json

from ..ledger.canonical import parse_json
from ..runner.case_pages import BytesPart
from ..runner.unknowns import UnknownLine, UnknownList
from .screen import Screen, Tone
from .words import amount_words, command_words, in_words, plural

__all__ = ["show_unknown", "shown_bytes"]

_SHOWN = 50


def show_unknown(screen: Screen, found: UnknownList, *, lost: int = 0) -> None:
    """Each unknown outcome: what was asked, when, how far it came, what it holds, what may follow.

    ``lost`` are in flight in a process that died, and are classified by ``resume`` alone.
    """
    screen.line(f"run {found.run} ({found.name}): {plural(found.count, 'unknown outcome')}", tone=Tone.STRONG)
    screen.pairs([("ledger", found.ledger)])
    if lost:
        were = "was" if lost == 1 else "were"
        screen.line(f"{lost} {were} in flight when the process died; to see which are unknown: "
                    f"{command_words(found.command)}", tone=Tone.WARNING)  # fmt: skip
    for one in found.unknown[:_SHOWN]:
        screen.line()
        _one(screen, one)
    if found.count > _SHOWN:
        screen.line(f"and {found.count - _SHOWN} more; --json lists them, --case, --variant and --reason-is choose")
    if found.count:
        settle = screen.named(f"tallystick reconcile {found.run} --give-up --reason TEXT")
        screen.line()
        screen.line(
            f"settle with `{settle}`, or with --not-landed or --landed FILE"
            " in place of --give-up; choose with --call ID, --case, --variant or --reason-is"
        )


def _one(screen: Screen, one: UnknownLine) -> None:
    screen.line(f"call {one.call}, send {one.dispatch}", tone=Tone.STRONG)
    held = ", ".join(amount_words(unit, amount) for unit, amount in one.held.items())
    sent = "not known" if one.bytes_sent is None else plural(one.bytes_sent, "byte")
    if one.judge is not None:
        follows = "settling it frees what it holds, and judging again asks again"
    elif one.is_newest:
        follows = in_words(one.if_unknown)
    else:
        follows = f"the case has gone on since ({one.state}); an answer would be kept as evidence"
    screen.pairs([
        *([("judge", one.judge)] if one.judge is not None else []),
        ("case", f"{one.case}, {one.variant}, repetition {one.repetition}, attempt {one.attempt}"
                 + (f", turn {one.turn}" if one.turn is not None else "")),
        ("why", f"{one.reason}: {one.message}" if one.message else one.reason),
        ("asked", one.intended_at + (f", ended {one.ended_at}" if one.ended_at else "")),
        ("sent", sent),
        *([("how", json.dumps(one.head, ensure_ascii=False))] if one.head else []),
        ("request", shown_bytes(one.request) if one.request else f"not kept; {one.request_digest}"),
        *([("received", shown_bytes(one.received))] if one.received else []),
        *([("sent as", f"request {one.sent_as} in run {str(one.taken_from).split('/')[0]}")] if one.sent_as else []),
        ("held", held or ("nothing here; what it holds is held there" if one.sent_as else "nothing")),
        ("then", follows),
    ])  # fmt: skip


def shown_bytes(part: BytesPart) -> str:
    """What was sent or received, for people."""
    if part.text is None:
        return f"{plural(part.size, 'byte')} in base64: {part.base64}"
    return _readable(part.text) if "\\u" in part.text else part.text


def _readable(text: str) -> str:
    """JSON with its characters instead of their escapes; what is no JSON stays as it is."""
    with contextlib.suppress(ValueError):
        return json.dumps(parse_json(text), ensure_ascii=False, separators=(",", ":"))
    return text
