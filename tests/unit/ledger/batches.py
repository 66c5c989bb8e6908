"""Pieces of work that are sure to share one commit, and what was left of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from tallystick.ledger import driver
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.transaction import Transaction
from tests.unit.ledger.factories import every

OperationalError = driver.sqlite.OperationalError


class Batch:
    """Keeps the scribe busy with a first piece of work, so that what is asked meanwhile shares one batch with it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._begun, self._end = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self.outcomes: dict[str, Any] = {}

    def __enter__(self) -> Batch:
        self.ask("first", self._occupy)
        assert self._begun.wait(30)
        return self

    def _occupy(self, tx: Transaction) -> str:
        self._begun.set()
        assert self._end.wait(30)
        return "occupied"

    def ask(self, name: str, work: Callable[[Transaction], Any]) -> None:
        """Ask in a thread of its own; its result or error will be in `outcomes`."""
        waiting = self._ledger._shared.scribe()._queue.qsize()

        def run() -> None:
            try:
                self.outcomes[name] = self._ledger.write(work)
            except BaseException as problem:
                self.outcomes[name] = problem

        thread = threading.Thread(target=run)
        thread.start()
        self._threads.append(thread)
        if name != "first":
            while self._ledger._shared.scribe()._queue.qsize() == waiting:
                os.sched_yield()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()


def put(name: str, value: str = "x") -> Callable[[Transaction], str]:
    def work(tx: Transaction) -> str:
        tx.execute("INSERT INTO facts (name, value) VALUES (?, ?)", (name, value))
        return name

    return work


def fails(problem: BaseException) -> Callable[[Transaction], None]:
    """Work that writes something and then raises."""

    def work(tx: Transaction) -> None:
        put(f"half of {problem!r}")(tx)
        raise problem

    return work


def stored(ledger: Ledger) -> set[str]:
    return {name for (name,) in every(ledger, "SELECT name FROM facts")} - {"marker", "ledger"}


# One piece of work among others.
