"""The tables of evaluations: judges applied to a fixed set of a run's observations, and what they said."""

from __future__ import annotations

from sqlalchemy import (
    CheckConstraint,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy import text as sql_text

from .columns import integer, metadata, run_key, state, text

__all__ = ["evaluation_judges", "evaluations", "judgments"]

_ATTEMPT_KEY = ("run_key", "slot_no", "attempt_no")

evaluations = Table(
    "evaluations",
    metadata,
    run_key(),
    integer("evaluation_no"),
    text("evaluation_id"),
    text("name"),
    text("document", default="{}"),
    text("document_digest"),
    text("settings", default="{}"),
    integer("set_at_event", null=True),
    integer("set_read_to", default=0),
    integer("created_us"),
    integer("ended_us", null=True),
    PrimaryKeyConstraint("run_key", "evaluation_no"),
    UniqueConstraint("evaluation_id"),
)
"""Number 1 is the run's own, judged inline: its set is the plan, and ``set_at_event`` is NULL.

The set of every other one is what had been selected up to the event ``set_at_event``; ``set_read_to`` is the event up
to which its judgments have been written down, so that a death in between is made up for.
"""

evaluation_judges = Table(
    "evaluation_judges",
    metadata,
    run_key(),
    integer("evaluation_no"),
    integer("judge_no"),
    text("name"),
    text("kind"),
    text("identity", default="{}"),
    text("identity_digest"),
    integer("samples", default=1),
    text("requirement", null=True),
    text("qualification_id", ForeignKey("qualifications.qualification_id"), null=True),
    integer("qualified", null=True),
    PrimaryKeyConstraint("run_key", "evaluation_no", "judge_no"),
    ForeignKeyConstraint(["run_key", "evaluation_no"], ["evaluations.run_key", "evaluations.evaluation_no"]),
)
"""``qualified`` is NULL where nothing is required, 1 where the named qualification meets the ``requirement``,
and 0 where it is not: then the judge's verdicts are shown and do not count.
"""

_JUDGMENT_KEY = ("run_key", "evaluation_no", "judge_no", "slot_no", "attempt_no", "sample_no")
judgments = Table(
    "judgments",
    metadata,
    run_key(),
    integer("evaluation_no"),
    integer("judge_no"),
    integer("slot_no"),
    integer("attempt_no"),
    integer("sample_no", default=1),
    state("judgment"),
    integer("passed", null=True),
    Column("score", Text, nullable=True),
    text("reason", null=True),
    text("explanation", null=True),
    text("raw", null=True),
    text("parser", null=True),
    text("evidence_digest", null=True),
    text("cache_key", null=True),
    text("reused_from", null=True),
    text("call_id", ForeignKey("calls.call_id"), null=True),
    integer("tries", default=0),
    integer("suspect", default=0),
    integer("solitary", default=0),
    integer("solitary_deaths", default=0),
    text("worker_id", ForeignKey("workers.worker_id"), null=True),
    integer("judged_us", null=True),
    PrimaryKeyConstraint(*_JUDGMENT_KEY),
    ForeignKeyConstraint(
        ["run_key", "evaluation_no", "judge_no"],
        ["evaluation_judges.run_key", "evaluation_judges.evaluation_no", "evaluation_judges.judge_no"],
    ),
    ForeignKeyConstraint(_ATTEMPT_KEY, ["attempts.run_key", "attempts.slot_no", "attempts.attempt_no"]),
    CheckConstraint("state <> 'judged' OR passed IS NOT NULL OR score IS NOT NULL", name="judged_has_verdict"),
    CheckConstraint("state <> 'no_verdict' OR reason IS NOT NULL", name="no_verdict_has_reason"),
    CheckConstraint("state = 'judged' OR (passed IS NULL AND score IS NULL)", name="verdict_only_when_judged"),
    sqlite_with_rowid=False,
)
"""``call_id`` is the call whose reply gave the verdict, ``reused_from`` the judgment whose verdict this is: one of both
at most. ``tries`` counts the judge's calls so far; ``solitary_deaths`` those of the process while it was at this alone.
"""
Index(
    "judgments_by_cache_key",
    judgments.c.cache_key,
    sqlite_where=sql_text("cache_key IS NOT NULL AND state = 'judged' AND reused_from IS NULL"),
)
Index(
    "judgments_open",
    judgments.c.run_key,
    judgments.c.evaluation_no,
    judgments.c.judge_no,
    judgments.c.slot_no,
    judgments.c.sample_no,
    sqlite_where=sql_text("state IN ('pending', 'judging')"),
)
