"""Work done ahead of the one who needs it, in order; and things of one size put together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


LIMIT = 2**30  # bytes that wait, of each stage of the work


def ahead(
    function: Callable[[T], R],
    items: Iterable[T],
    workers: int,
    depth: int | None = None,
    *,
    weigh: Callable[[R], int] | None = None,
    limit: int = LIMIT,
) -> Iterator[R]:
    """`map(function, items)`, at most `depth` results (four for each worker) ahead, in threads.

    Threads suffice for decoding, resizing and writing pictures, which leave the interpreter alone; nothing is copied
    between processes and an error arrives where its result would have. `workers=0` does the work in place. `weigh`
    gives the bytes of a result: then no more are ahead than fit into `limit`, were all as large as the largest so far.
    """
    if workers < 0:
        raise ValueError(f"workers must be 0 or more; got {workers}.")
    if workers == 0:
        yield from map(function, items)
        return
    depth = 4 * workers if depth is None else depth
    largest = 0
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if weigh is not None:
                    finished = (one.result() for one in waiting if one.done() and one.exception() is None)
                    largest = max([largest, *map(weigh, finished)])
                while len(waiting) >= _room(depth, workers, largest, limit, weigh is not None):
                    result = waiting.popleft().result()
                    largest = largest if weigh is None else max(largest, weigh(result))
                    yield result
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _room(depth: int, workers: int, largest: int, limit: int, weighed: bool) -> int:
    if not weighed:
        return depth
    return max(1, min(depth, limit // largest)) if largest else min(depth, workers)  # one each, until sizes are known


def by_key(
    items: Iterable[T],
    key: Callable[[T], Hashable],
    batch: int,
    pending: int | None = None,
    *,
    weigh: Callable[[T], int] | None = None,
    limit: int = LIMIT,
) -> Iterator[list[T]]:
    """Lists of up to `batch` items with equal keys, each as soon as it is full.

    At most `pending` items (four batches), and of their bytes by `weigh` at most `limit`, are held back; past that the
    list that was begun first goes as it is.
    """
    if batch < 1:
        raise ValueError(f"a batch must have at least 1 image; got {batch}.")
    pending = 4 * batch if pending is None else pending
    lists: dict[Hashable, list[T]] = {}
    held = weight = 0
    for item in items:
        kind = key(item)
        lists.setdefault(kind, []).append(item)
        held += 1
        weight += 0 if weigh is None else weigh(item)
        if len(lists[kind]) < batch:
            if held <= pending and weight <= limit:
                continue
            kind = next(iter(lists))
        ready = lists.pop(kind)
        held -= len(ready)
        weight -= 0 if weigh is None else sum(map(weigh, ready))
        yield ready
    yield from lists.values()
