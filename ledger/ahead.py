"""Making the next items in another thread while the last are used: what makes them lets go of the interpreter."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
from typing import Final, TypeVar

__all__ = ["ahead"]

T = TypeVar("T")
_AHEAD: Final = 3
_LOOK_SECONDS: Final = 0.2


def ahead(source: Iterator[T]) -> Generator[T, None, None]:
    """The same items, made by a thread that is at most three of them ahead.

    What the source raises is raised here, in its place. Closing this ends the thread after the item it is at.

    >>> list(ahead(iter(range(5))))
    [0, 1, 2, 3, 4]
    """
    made: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(_AHEAD)
    stop = threading.Event()
    thread = threading.Thread(target=_make, args=(source, made, stop), name="tallystick-ahead", daemon=True)
    thread.start()
    try:
        while True:
            item, problem = made.get()
            if problem is not None:
                if isinstance(problem, StopIteration):
                    return
                raise problem
            yield item  # type: ignore[misc]  # an item of the source, whatever it is
    finally:
        stop.set()
        thread.join()


def _make(source: Iterator[T], made: queue.Queue[tuple[T | None, BaseException | None]], stop: threading.Event) -> None:
    try:
        for item in source:
            if not _put(made, (item, None), stop):
                return
        _put(made, (None, StopIteration()), stop)
    except BaseException as problem:  # noqa: BLE001 - raised where the items are used
        _put(made, (None, problem), stop)


def _put(
    made: queue.Queue[tuple[T | None, BaseException | None]],
    item: tuple[T | None, BaseException | None],
    stop: threading.Event,
) -> bool:
    while not stop.is_set():
        try:
            made.put(item, timeout=_LOOK_SECONDS)
        except queue.Full:
            continue
        return True
    return False
