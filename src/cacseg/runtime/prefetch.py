"""Ordered thread prefetch; batching of equal-sized items."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


MAX_BYTES = 2**30  # of results that wait, in each stage of the work


def prefetch(
    function: Callable[[T], R], items: Iterable[T], workers: int, *, nbytes: Callable[[R], int] | None = None
) -> Iterator[R]:
    """`map(function, items)` in threads, in order, with at most four results ahead for each worker.

    Threads suffice for decoding, resizing and writing pictures, which release the interpreter's lock; nothing is copied
    between processes, and an error is raised where its result would have come. `workers=0` works in the caller's
    thread. `nbytes` gives the size of a result: then only as many are ahead as fit into `MAX_BYTES`, if all were as
    large as the largest so far.
    """
    if workers < 0:
        raise ValueError(f"workers must be 0 or more; got {workers}.")
    if workers == 0:
        yield from map(function, items)
        return
    largest = 0
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if nbytes is not None:
                    finished = (one.result() for one in waiting if one.done() and one.exception() is None)
                    largest = max([largest, *map(nbytes, finished)])
                while len(waiting) >= (4 * workers if nbytes is None else _max_waiting(workers, largest)):
                    result = waiting.popleft().result()
                    largest = largest if nbytes is None else max(largest, nbytes(result))
                    yield result
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _max_waiting(workers: int, largest: int) -> int:
    """One for each worker until the first size is known."""
    return max(1, min(4 * workers, MAX_BYTES // largest)) if largest else workers


def batch_by_key(
    items: Iterable[T],
    key: Callable[[T], Hashable],
    batch: int,
    pending: int | None = None,
    *,
    nbytes: Callable[[T], int] | None = None,
) -> Iterator[list[T]]:
    """Lists of up to `batch` items with equal keys, each as soon as it is full.

    At most `pending` items (four batches), and at most `MAX_BYTES` of them by `nbytes`, wait for their list to fill;
    beyond that the oldest list is yielded as it is.
    """
    if batch < 1:
        raise ValueError(f"a batch must have at least 1 image; got {batch}.")
    pending = 4 * batch if pending is None else pending
    lists: dict[Hashable, list[T]] = {}
    held = held_bytes = 0
    for item in items:
        kind = key(item)
        lists.setdefault(kind, []).append(item)
        held += 1
        held_bytes += 0 if nbytes is None else nbytes(item)
        if len(lists[kind]) < batch:
            if held <= pending and held_bytes <= MAX_BYTES:
                continue
            kind = next(iter(lists))
        ready = lists.pop(kind)
        held -= len(ready)
        held_bytes -= 0 if nbytes is None else sum(map(nbytes, ready))
        yield ready
    yield from lists.values()
