"""How often and when: bounded, jittered, and never sooner than the target asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.runner.retry_policy import RetryPolicy, backoff_seconds, is_retried, retry_policy
from tallystick.runner.work_order_execution import ExecutionSpec

CHANCES = st.floats(min_value=0, max_value=1, exclude_max=True)


def policy(chance: float = 0.5, **options: object) -> RetryPolicy:
    return retry_policy(ExecutionSpec(**options), chance=lambda: chance)  # type: ignore[arg-type]  # keys by name


@given(st.integers(min_value=1, max_value=10**9), CHANCES)
def test_a_wait_is_never_longer_than_its_bound_however_often_it_failed(failures: int, chance: float) -> None:
    assert 0 <= backoff_seconds(failures, first_seconds=1, max_seconds=60, chance=chance) <= 60


def test_the_longest_wait_doubles_up_to_its_bound() -> None:
    nearly_one = 1 - 2**-53
    waits = [backoff_seconds(n, first_seconds=1, max_seconds=10, chance=nearly_one) for n in range(1, 7)]
    assert waits == pytest.approx([1, 2, 4, 8, 10, 10])


def test_the_jitter_is_full() -> None:
    assert backoff_seconds(3, first_seconds=1, max_seconds=60, chance=0.0) == 0
    assert backoff_seconds(3, first_seconds=1, max_seconds=60, chance=0.25) == 1


@given(st.integers(min_value=1, max_value=100), CHANCES, st.floats(min_value=0, max_value=86_400))
def test_what_the_target_asked_for_is_the_least_wait(failures: int, chance: float, asked: float) -> None:
    wait = policy(chance).wait_seconds(failures, retry_after_seconds=asked)
    assert asked <= wait <= asked + 1  # and a little jitter, at most the first back-off


def test_a_target_that_asks_for_a_time_gone_by_is_not_asked_before_now() -> None:
    assert policy(0.0).not_before_us(5_000, 1, retry_after_seconds=-3) == 5_000


def test_the_next_instant_is_the_wait_from_now_in_microseconds() -> None:
    assert policy(0.5).not_before_us(1_000_000, 2) == 2_000_000


@pytest.mark.parametrize(
    ("reason", "retry", "is_so"),
    [
        ("http.500", (), False),
        ("http.500", ("*",), True),
        ("http.500", ("http.500",), True),
        ("http.500", ("http",), True),
        ("http.500", ("http.50",), False),
        ("http.500", ("http.",), False),
        ("https.500", ("http",), False),
        ("exit.1", ("http", "exit"), True),
        ("", ("http",), False),
    ],
)
def test_a_reason_is_retried_when_it_or_its_beginning_is_named(
    reason: str, retry: tuple[str, ...], is_so: bool
) -> None:
    assert is_retried(reason, retry) is is_so


def test_attempts_and_dispatches_end_at_their_bounds() -> None:
    made = policy(attempts_max=3, dispatches_max=2, retry=("http",))
    assert [made.may_attempt(attempts) for attempts in (0, 2, 3, 4)] == [True, True, False, False]
    assert [made.may_dispatch(dispatches) for dispatches in (0, 1, 2)] == [True, True, False]
    assert [made.may_retry("http.500", attempts) for attempts in (1, 2, 3)] == [True, True, False]
    assert not made.may_retry("exit.1", 1)


def test_a_policy_says_what_the_work_order_says() -> None:
    made = policy(backoff_first_seconds=4.0, backoff_max_seconds=6.0)
    assert made.wait_seconds(1) == 2
    assert made.wait_seconds(2) == 3
