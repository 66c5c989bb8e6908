"""The invariants of evaluations as queries: what is judged, what is under way, and that a set is judged whole."""

from __future__ import annotations

from typing import Final

from .check_rules import RESTORE, Rule

__all__ = ["JUDGMENT_RULES"]

_JUDGMENT: Final = (
    "'run ' || r.run_id || ' evaluation ' || j.evaluation_no || ' judge ' || j.judge_no || ' slot ' || j.slot_no"
    " || ' attempt ' || j.attempt_no"
)
_OF_RUN: Final = "JOIN runs r ON r.run_key = j.run_key AND r.state NOT IN ('planning', 'importing')"
_TOLD: Final = (
    # The newest of each: what gave no verdict may have been tried again.
    "SELECT e.run_key, json_extract(e.body, '$.evaluation') AS evaluation_no,"
    " json_extract(v.value, '$[0]') AS judge_no, json_extract(v.value, '$[1]') AS slot_no,"
    " json_extract(v.value, '$[2]') AS attempt_no, coalesce(json_extract(v.value, '$[6]'), 1) AS sample_no,"
    " json_extract(v.value, '$[3]') AS passed, json_extract(v.value, '$[4]') AS score,"
    " json_extract(v.value, '$[5]') AS reason, max(e.event_no) FROM events e, json_each(e.body, '$.rows') v"
    " WHERE e.kind = 'observation.judged' AND json_valid(e.body) GROUP BY 1, 2, 3, 4, 5, 6"
)
_GIVEN: Final = (
    "SELECT t.run_key, t.evaluation_no, t.judge_no, t.slot_no, t.attempt_no,"
    " coalesce(o.state IN ('judged', 'no_verdict'), 0) AS ended,"
    " o.run_key IS NULL OR (o.state IN ('judged', 'no_verdict') AND (o.passed IS NOT t.passed OR o.score IS NOT t.score"
    f" OR o.reason IS NOT t.reason)) AS is_other FROM ({_TOLD}) t LEFT JOIN judgments o ON o.run_key = t.run_key"
    " AND o.evaluation_no = t.evaluation_no AND o.judge_no = t.judge_no AND o.slot_no = t.slot_no"
    " AND o.attempt_no = t.attempt_no AND o.sample_no = t.sample_no"
)
"""What the history tells of judgments, beside their rows."""

JUDGMENT_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "judgment.intended_without_judging",
        "calls of judges are under way whose judgment is not",
        f"SELECT {_JUDGMENT} FROM dispatches d JOIN calls c ON c.call_id = d.call_id AND c.owner = 'judgment'"
        " JOIN judgments j ON j.run_key = c.run_key AND j.evaluation_no = c.evaluation_no AND j.judge_no = c.judge_no"
        " AND j.slot_no = c.slot_no AND j.attempt_no = c.attempt_no AND j.sample_no = c.sample_no"
        f" {_OF_RUN} WHERE d.state = 'intended' AND j.state <> 'judging'",
        RESTORE,
    ),
    Rule(
        "judgment.call_of_another",
        "verdicts come from calls that were made for something else",
        f"SELECT {_JUDGMENT} FROM judgments j {_OF_RUN} JOIN calls c ON c.call_id = j.call_id"
        " WHERE c.owner <> 'judgment' OR (c.run_key, c.evaluation_no, c.judge_no, c.slot_no, c.attempt_no, c.sample_no)"
        " <> (j.run_key, j.evaluation_no, j.judge_no, j.slot_no, j.attempt_no, j.sample_no)",
        RESTORE,
    ),
    Rule(
        "judgment.samples",
        "observations of an evaluation's set are not judged as often as its judges are to",
        f"SELECT {_JUDGMENT} || ': ' || count(*) || ' of ' || g.samples FROM judgments j {_OF_RUN}"
        " JOIN evaluations e ON e.run_key = j.run_key AND e.evaluation_no = j.evaluation_no AND e.evaluation_no > 1"
        " AND e.set_read_to >= e.set_at_event"
        " JOIN evaluation_judges g ON g.run_key = j.run_key AND g.evaluation_no = j.evaluation_no"
        " AND g.judge_no = j.judge_no GROUP BY j.run_key, j.evaluation_no, j.judge_no, j.slot_no, j.attempt_no"
        " HAVING count(*) <> g.samples",
        RESTORE,
    ),
    Rule(
        "judgment.not_told",
        "verdicts are not those that the history tells",
        f"WITH given AS MATERIALIZED ({_GIVEN}) SELECT {_JUDGMENT} FROM given j {_OF_RUN} WHERE j.is_other"
        " UNION ALL SELECT 'run ' || r.run_id || ': ' || -sum(j.untold) || ' more than are told' FROM (SELECT run_key,"
        " sum(ended) AS untold FROM given GROUP BY run_key UNION ALL SELECT run_key, -count(*) FROM judgments"
        f" WHERE state IN ('judged', 'no_verdict') GROUP BY run_key) j {_OF_RUN} GROUP BY r.run_key"
        " HAVING sum(j.untold) <> 0",
        RESTORE,
    ),
    Rule(
        "evaluation.ended_early",
        "evaluations have ended in which a judgment waits or is under way",
        f"SELECT {_JUDGMENT} FROM judgments j {_OF_RUN} JOIN evaluations e ON e.run_key = j.run_key"
        " AND e.evaluation_no = j.evaluation_no WHERE e.ended_us IS NOT NULL AND j.state IN ('pending', 'judging')",
        "go on with `tallystick judge RUN ORDER`",
    ),
)
