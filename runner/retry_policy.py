"""What may follow a dispatch that brought no observation, and when: pure functions of numbers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import attrs

from .work_order_execution import ExecutionSpec

__all__ = ["RetryPolicy", "backoff_seconds", "is_retried", "retry_policy"]

EVERY: Final = "*"
_DOUBLINGS_MAX: Final = 62


def is_retried(reason: str, retry: Collection[str]) -> bool:
    """Whether a failure for that reason gets a new attempt: its token is named, or a beginning of it before a dot."""
    if EVERY in retry or reason in retry:
        return True
    return any(reason.startswith(named + ".") for named in retry)


def backoff_seconds(failures: int, *, first_seconds: float, max_seconds: float, chance: float) -> float:
    """How long to wait after so many failures in a row (1 or more); ``chance`` is drawn from [0, 1).

    Exponential with full jitter: evenly from nothing up to a ceiling that doubles, so that many clients that failed
    together do not come back together (Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015).
    """
    ceiling = min(max_seconds, first_seconds * 2.0 ** min(failures - 1, _DOUBLINGS_MAX))
    return ceiling * chance


@attrs.frozen
class RetryPolicy:
    """The work order's limits and waits. ``chance`` gives numbers from [0, 1), as `random.random` does."""

    attempts_max: int
    dispatches_max: int
    retry: tuple[str, ...]
    first_seconds: float
    max_seconds: float
    chance: Callable[[], float]

    def may_attempt(self, attempts: int) -> bool:
        """Whether a slot that had so many attempts may have another."""
        return attempts < self.attempts_max

    def may_retry(self, reason: str, attempts: int) -> bool:
        """Whether a failed attempt, the slot's ``attempts``-th, is followed by a new one."""
        return self.may_attempt(attempts) and is_retried(reason, self.retry)

    def may_dispatch(self, dispatches: int) -> bool:
        """Whether a call that was refused may be sent once more, after so many dispatches."""
        return dispatches < self.dispatches_max

    def wait_seconds(self, failures: int, *, retry_after_seconds: float | None = None) -> float:
        """How long to wait after so many failures in a row; never less than the target asked for.

        What a target asks for is not cut to ``max_seconds``: whether so long a wait is worth it is for the caller.
        """
        wait = backoff_seconds(
            failures, first_seconds=self.first_seconds, max_seconds=self.max_seconds, chance=self.chance()
        )
        # Some jitter stays on top, since the target gives all of its clients the same instant.
        return wait if retry_after_seconds is None else max(0.0, retry_after_seconds) + min(wait, self.first_seconds)

    def not_before_us(self, now_us: int, failures: int, *, retry_after_seconds: float | None = None) -> int:
        """The instant before which the next dispatch does not begin, in microseconds since the epoch."""
        return now_us + round(self.wait_seconds(failures, retry_after_seconds=retry_after_seconds) * 1_000_000)


def retry_policy(execution: ExecutionSpec, *, chance: Callable[[], float]) -> RetryPolicy:
    return RetryPolicy(
        attempts_max=execution.attempts_max,
        dispatches_max=execution.dispatches_max,
        retry=execution.retry,
        first_seconds=execution.backoff_first_seconds,
        max_seconds=execution.backoff_max_seconds,
        chance=chance,
    )
