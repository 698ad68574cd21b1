"""Work done ahead of the one who needs it, in order; and things of one size put together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def ahead(function: Callable[[T], R], items: Iterable[T], workers: int, depth: int | None = None) -> Iterator[R]:
    """`map(function, items)`, at most `depth` results (four for each worker) ahead, in threads.

    Threads suffice for decoding, resizing and writing pictures, which leave the interpreter alone; nothing is copied
    between processes and an error arrives where its result would have. `workers=0` does the work in place.
    """
    if workers < 0:
        raise ValueError(f"workers must be 0 or more; got {workers}.")
    if workers == 0:
        yield from map(function, items)
        return
    depth = 4 * workers if depth is None else depth
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= depth:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def by_key(
    items: Iterable[T], key: Callable[[T], Hashable], batch: int, pending: int | None = None
) -> Iterator[list[T]]:
    """Lists of up to `batch` items with equal keys, each as soon as it is full.

    At most `pending` items (four batches) are held back; past that the list that was begun first goes as it is.
    """
    if batch < 1:
        raise ValueError(f"a batch must have at least 1 image; got {batch}.")
    pending = 4 * batch if pending is None else pending
    lists: dict[Hashable, list[T]] = {}
    held = 0
    for item in items:
        kind = key(item)
        lists.setdefault(kind, []).append(item)
        held += 1
        if len(lists[kind]) < batch:
            if held <= pending:
                continue
            kind = next(iter(lists))
        ready = lists.pop(kind)
        held -= len(ready)
        yield ready
    yield from lists.values()
