"""The items of one `Guard.map`: what was answered before, what is new, and who takes which."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from .ledger.errors import UsageError
from .runner.guard_runs import GuardRun, KeyAsked

__all__ = ["GuardMapping"]

_CHUNK: Final = 1_000


class GuardMapping:
    """The items of one `map`, handed out to whoever works at them."""

    def __init__(self, run: GuardRun, told: Sequence[tuple[KeyAsked, Any]], *, return_exceptions: bool) -> None:
        self.run = run
        self._told = told
        self._returns = return_exceptions
        self._found: dict[str, Any] = {}
        self._failed: dict[str, Exception] = {}
        self._broken_off: BaseException | None = None
        self._lock = threading.Lock()
        self._is_stopped = False
        self.left: list[tuple[KeyAsked, Any, Any]] = []
        self._next: Iterator[tuple[KeyAsked, Any, Any]] = iter(())

    def prepare_all(self) -> None:
        """Find what was answered before, and plan what is new, some hundred keys at a time."""
        first: dict[str, tuple[KeyAsked, Any]] = {}
        for asked, item in self._told:
            before = first.setdefault(asked.key, (asked, item))[0]
            if before.text != asked.text:
                raise UsageError(f'two items have the key "{asked.key}"', "give each item a key of its own")
        for some in _batched(first):
            done, known = self.run.look([asked for asked, _ in some])
            self._found.update({key: one.value for key, one in done.items()})
            new = [asked for asked, _ in some if asked.key not in done and asked.key not in known]
            if new:
                known |= self.run.plan(new)
            self.left += [(asked, item, known[asked.key]) for asked, item in some if asked.key not in done]
        self.run.counts["reused"] += len(self._told) - len(self.left)
        self._next = iter(self.left)

    def __iter__(self) -> Iterator[tuple[KeyAsked, Any, Any]]:
        while True:
            with self._lock:
                taken = None if self._is_stopped else next(self._next, None)
            if taken is None:
                return
            yield taken

    def put(self, asked: KeyAsked, value: Any) -> None:
        self._found[asked.key] = value

    def fail(self, asked: KeyAsked, problem: Exception) -> None:
        self._failed[asked.key] = problem
        if not self._returns:
            self.stop()

    def break_off(self, problem: BaseException) -> None:
        """What is no outcome of an item (SystemExit) came out of a function on another thread; `results` raises it."""
        self._broken_off = self._broken_off or problem
        self.stop()

    def stop(self) -> None:
        """Nothing more is handed out."""
        with self._lock:
            self._is_stopped = True

    def results(self) -> list[Any]:
        """In the order of the items; raises the first item's exception, unless they are to be given back."""
        if self._broken_off is not None:
            raise self._broken_off
        if not self._returns:
            for asked, _ in self._told:
                if asked.key in self._failed:
                    raise self._failed[asked.key]
        return [
            self._failed[key] if (key := asked.key) in self._failed else self._found[key] for asked, _ in self._told
        ]


def _batched(first: Mapping[str, tuple[KeyAsked, Any]]) -> Iterator[tuple[tuple[KeyAsked, Any], ...]]:
    values = iter(first.values())
    while some := tuple(itertools.islice(values, _CHUNK)):
        yield some
