"""The tables of conversations: sessions on a target, and the turns of each that are committed."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, ForeignKey, ForeignKeyConstraint, PrimaryKeyConstraint, Table, UniqueConstraint

from .columns import integer, metadata, run_key, text

__all__ = ["sessions", "turns"]

_ATTEMPT_KEY = ("run_key", "slot_no", "attempt_no")
_SESSION_KEY = (*_ATTEMPT_KEY, "session_no")

sessions = Table(
    "sessions",
    metadata,
    run_key(),
    integer("slot_no"),
    integer("attempt_no"),
    integer("session_no"),
    text("session_id"),
    integer("turn", default=0),
    text("message", null=True),
    text("lease_id", ForeignKey("leases.lease_id"), null=True),
    text("checkpoint_artifact", ForeignKey("artifacts.digest"), null=True),
    integer("began_us"),
    PrimaryKeyConstraint(*_SESSION_KEY),
    UniqueConstraint("session_id"),
    ForeignKeyConstraint(_ATTEMPT_KEY, ["attempts.run_key", "attempts.slot_no", "attempts.attempt_no"]),
)
"""One session on a target. ``turn`` is the one that was last intended, with its ``message``: it is committed when
``turns`` has it. ``checkpoint_artifact`` is what the session was restored from. It ends with its attempt.
"""

turns = Table(
    "turns",
    metadata,
    run_key(),
    integer("slot_no"),
    integer("attempt_no"),
    integer("session_no"),
    integer("turn"),
    text("message"),
    text("answer", null=True),
    text("answer_artifact", ForeignKey("artifacts.digest"), null=True),
    text("answer_digest"),
    text("evidence", default="{}"),
    text("flags", default="[]"),
    text("source", default="wire"),
    text("call_id", ForeignKey("calls.call_id"), null=True),
    integer("dispatch_no", null=True),
    integer("carried_from", null=True),
    integer("replay", default=0),
    text("checkpoint_artifact", ForeignKey("artifacts.digest"), null=True),
    integer("committed_us"),
    PrimaryKeyConstraint(*_SESSION_KEY, "turn"),
    ForeignKeyConstraint(
        _SESSION_KEY,
        ["sessions.run_key", "sessions.slot_no", "sessions.attempt_no", "sessions.session_no"],
    ),
    CheckConstraint("(answer IS NULL) <> (answer_artifact IS NULL)", name="one_answer"),
    CheckConstraint("(source = 'carried') = (carried_from IS NOT NULL)", name="carried_says_from_where"),
    sqlite_with_rowid=False,
)
"""One committed turn. A *carried* one was answered in the attempt ``carried_from`` and is not asked again; ``replay``
says that a turn which had been answered before was asked, and paid for, once more.
"""
