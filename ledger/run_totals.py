"""What was sent for a run in all its sessions: for its observations, and apart from them for its judges. Pure."""

from __future__ import annotations

from typing import Final

import attrs

from .ledger import Reader
from .report_sums import NEVER_MADE

__all__ = ["Totals", "judge_totals_of", "totals_of"]


@attrs.frozen
class Totals:
    """What was sent and what is known of it; None is unknown.

    ``wasted`` counts dispatches that gave no selected observation, and a judge's that gave no verdict; those whose
    outcome is not known are among them, those that were never made are not. ``unpriced`` may have cost something and
    did not say what, ``unmetered`` may have used tokens and did not say all of them. ``replays`` are sends of
    conversations' turns that an earlier attempt had an answer to. ``classes`` are the tokens that were told apart. What
    an unknown outcome told counts once it is settled.
    """

    attempts: int
    calls: int
    dispatches: int
    by_state: dict[str, int]
    tokens_in: int | None
    tokens_out: int | None
    cost_nanousd: int | None
    unpriced: int
    wasted: int
    replays: int
    unmetered: int
    classes: dict[str, int]


# A first dispatch is a call; every column is a sum, so that one owner's can be taken from all.
_SUMS: Final = (
    "d.state, count(*), count(*) FILTER (WHERE d.dispatch_no = 1), count(d.tokens_in),"
    " coalesce(sum(d.tokens_in), 0), count(d.tokens_out), coalesce(sum(d.tokens_out), 0), count(d.cost_nanousd),"
    " coalesce(sum(d.cost_nanousd), 0), count(d.tokens_in + d.tokens_out),"
    f" count(*) FILTER (WHERE {NEVER_MADE}), coalesce(sum(d.replay), 0)"
)
_ALL: Final = f"SELECT {_SUMS} FROM dispatches d WHERE d.run_key = ? GROUP BY d.state"
# By the indexes of calls that were made under a lease or for a judgment, which are empty where there are none.
_FOR_DEVICES: Final = (
    f"SELECT {_SUMS} FROM calls c INDEXED BY calls_of_lease JOIN dispatches d ON d.call_id = c.call_id"
    " WHERE c.lease_id IS NOT NULL AND c.owner = 'lease' AND c.run_key = ? GROUP BY d.state"
)
_FOR_JUDGES: Final = (
    f"SELECT {_SUMS} FROM calls c INDEXED BY calls_of_judgment JOIN dispatches d ON d.call_id = c.call_id"
    " WHERE c.owner = 'judgment' AND c.run_key = ? GROUP BY d.state"
)
# What a fork took over was sent for another run.
_TAKEN_OVER: Final = (
    f"SELECT {_SUMS} FROM calls c INDEXED BY calls_of_attempt JOIN dispatches d ON d.call_id = c.call_id"
    " WHERE c.reused_from IS NOT NULL AND c.owner = 'attempt' AND c.run_key = ? GROUP BY d.state"
)
_CLASSES: Final = (
    "SELECT e.key, sum(e.value) FROM calls c JOIN dispatches d ON d.call_id = c.call_id,"
    " json_each(iif(json_valid(d.usage), d.usage, '{}'), '$.classes') e"
    " WHERE c.run_key = ? AND c.owner = ? AND c.reused_from IS NULL"
    " AND d.usage IS NOT NULL AND d.state <> 'unknown' AND e.type = 'integer'"
    " AND e.value BETWEEN 0 AND 1000000000000000 GROUP BY e.key"  # a sum that overflows would be an error
)
_NOT_MADE_HERE: Final = (
    "SELECT count(*), count(*) FILTER (WHERE state = 'observed') FROM attempts WHERE run_key = ?"
    " AND reused_from IS NOT NULL"
)
_IS_FORK: Final = "SELECT forked_from IS NOT NULL FROM runs WHERE run_key = ?"
_ATTEMPTED: Final = (
    "SELECT coalesce(sum(attempts), 0), count(*) FILTER (WHERE state = 'selected') FROM slots WHERE run_key = ?"
)
_TURNED: Final = (
    "SELECT count(*), count(DISTINCT t.slot_no) FROM turns t JOIN slots s ON s.run_key = t.run_key"
    " AND s.slot_no = t.slot_no AND s.selected_attempt = t.attempt_no WHERE t.run_key = ?"
)
# Only an agent, a harness or a conversation makes further calls in an attempt; the index alone tells.
_HAS_FURTHER: Final = (
    "SELECT EXISTS (SELECT 1 FROM calls INDEXED BY calls_of_attempt"
    " WHERE owner = 'attempt' AND run_key = ? AND position > 1)"
)
_ANSWERED: Final = (
    "SELECT count(*) FROM slots s JOIN calls c INDEXED BY calls_of_attempt ON c.owner = 'attempt'"
    " AND c.run_key = s.run_key AND c.slot_no = s.slot_no AND c.attempt_no = s.selected_attempt"
    " JOIN dispatches d ON d.call_id = c.call_id AND d.state = 'answered'"
    " WHERE s.run_key = ? AND s.state = 'selected' AND c.reused_from IS NULL AND NOT EXISTS (SELECT 1 FROM turns t"
    " WHERE t.run_key = s.run_key AND t.slot_no = s.slot_no AND t.attempt_no = s.selected_attempt)"
)
_GAVE_VERDICTS: Final = "SELECT count(call_id) FROM judgments WHERE run_key = ? AND state = 'judged'"

_Sums = dict[str, tuple[int, ...]]


def totals_of(reader: Reader, run_key: int) -> Totals:
    """Everything that was sent for the run's observations: not what its judges sent, nor resets of its devices.

    Dispatches and slots are each gone through once.
    """
    sums = _sums(reader, _ALL, run_key)
    is_fork = reader.row(_IS_FORK, (run_key,))[0]
    for query in (_FOR_DEVICES, _FOR_JUDGES, *([_TAKEN_OVER] if is_fork else [])):
        for state, others in _sums(reader, query, run_key).items():
            sums[state] = tuple(all_ - other for all_, other in zip(sums[state], others, strict=True))
    attempts, selected = reader.row(_ATTEMPTED, (run_key,))
    if is_fork:
        taken, given = reader.row(_NOT_MADE_HERE, (run_key,))
        attempts, selected = attempts - taken, selected - given
    # A conversation came of as many sends as it has turns, every other observation of one, unless it made further ones.
    turns, conversations = reader.row(_TURNED, (run_key,))
    useful = selected - conversations
    if reader.row(_HAS_FURTHER, (run_key,))[0]:
        (useful,) = reader.row(_ANSWERED, (run_key,))
    classes = dict(reader.rows(_CLASSES, (run_key, "attempt")))
    return _totals(sums, classes, attempts=attempts, useful=useful + turns)


def judge_totals_of(reader: Reader, run_key: int) -> Totals | None:
    """What the run's judges sent in all evaluations, None where they sent nothing."""
    sums = _sums(reader, _FOR_JUDGES, run_key)
    if not sums:
        return None
    (useful,) = reader.row(_GAVE_VERDICTS, (run_key,))
    return _totals(sums, dict(reader.rows(_CLASSES, (run_key, "judgment"))), attempts=0, useful=useful)


def _sums(reader: Reader, query: str, run_key: int) -> _Sums:
    return {state: tuple(sums) for state, *sums in reader.rows(query, (run_key,))}


def _totals(sums: _Sums, classes: dict[str, int], *, attempts: int, useful: int) -> Totals:
    by_state = {state: row[0] for state, row in sums.items() if row[0]}
    sent, calls, *_, unmade, replays = (
        (sum(column) for column in zip(*sums.values(), strict=True)) if sums else [0] * 11
    )
    sent_ones = {state: row for state, row in sums.items() if state not in ("refused", "intended")}
    unpriced = sum(row[0] - (0 if state == "unknown" else row[6]) for state, row in sent_ones.items())
    unmetered = sum(row[0] - (0 if state == "unknown" else row[8]) for state, row in sent_ones.items())
    return Totals(
        attempts, calls, sent, by_state, _known(sums, 2), _known(sums, 4), _known(sums, 6), unpriced,
        sent - useful - unmade, replays, unmetered, classes,
    )  # fmt: skip


def _known(sums: _Sums, column: int) -> int | None:
    """The sum of what was told, None where nothing was; ``column`` counts it, the next one has its sum."""
    told = [row for state, row in sums.items() if state != "unknown"]
    if not any(row[column] for row in told):
        return None
    return sum(row[column + 1] for row in told)
