"""What an event says of slots, so that the history alone tells where each of them stood."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .records import DispatchKey
from .transaction import Transaction

__all__ = ["numbers_of", "steps_of", "where_it_stands"]


def where_it_stands(tx: Transaction, key: DispatchKey) -> dict[str, str | int | None]:
    """How slot, attempt and run stand after something that may or may not have moved them."""
    state, reason, step = tx.row(
        "SELECT state, reason, next_step FROM slots WHERE run_key = ? AND slot_no = ?", (key.run_key, key.slot_no)
    )
    run_state = tx.row("SELECT state FROM runs WHERE run_key = ?", (key.run_key,))[0]
    attempt = tx.row(
        "SELECT state FROM attempts WHERE run_key = ? AND slot_no = ? AND attempt_no = ?",
        (key.run_key, key.slot_no, key.attempt_no),
    )[0]
    return {"slot_state": state, "slot_reason": reason, "next": step, "attempt_state": attempt, "run_state": run_state}


def steps_of(numbers: Sequence[int]) -> list[list[int]]:
    """Rising numbers as runs ``[first, last, step]``: the slots of one variant are every second or third one.

    >>> steps_of([1, 2, 3, 7, 9, 11, 20])
    [[1, 3, 1], [7, 11, 2], [20, 20, 1]]
    """
    found: list[list[int]] = []
    for number in numbers:
        last = found[-1] if found else None
        if last is not None and last[0] == last[1]:
            last[1:] = [number, number - last[0]]
        elif last is not None and number == last[1] + last[2]:
            last[1] = number
        else:
            found.append([number, number, 1])
    return found


def numbers_of(steps: Sequence[Sequence[int]]) -> Iterator[int]:
    """The numbers that `steps_of` was given."""
    for first, last, step in steps:
        yield from range(first, last + 1, step)
