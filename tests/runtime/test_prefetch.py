import threading
import time

import pytest

from cacseg.runtime import prefetch as module
from cacseg.runtime.prefetch import batch_by_key, prefetch


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_results_come_in_order(workers):
    def slow_square(value):
        time.sleep(0.002 * (value % 3))
        return value * value

    assert list(prefetch(slow_square, range(20), workers)) == [value * value for value in range(20)]


def test_work_is_done_ahead_but_not_without_end():
    started = []

    def note(value):
        started.append(value)
        return value

    results = prefetch(note, range(100), 1)
    assert next(results) == 0
    time.sleep(0.05)
    assert len(started) == 4
    results.close()
    assert len(started) == 4


@pytest.mark.parametrize("workers", [2, 5])
def test_large_results_are_fewer_ahead(workers, monkeypatch):
    """Items as large as they say: 100 bytes hold ten of 10, two of 40; one of 1000 must go on all the same."""
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    started = []

    def make(size):
        started.append(size)
        return size

    def run_with(size):
        started.clear()
        results = prefetch(make, [size] * 50, workers, nbytes=int)
        most = 0
        for taken in range(1, 51):
            assert next(results) == size
            time.sleep(0.002)
            most = max(most, len(started) - taken)
        results.close()
        return most

    assert run_with(1000) <= workers
    assert run_with(40) <= max(workers, 2)
    assert 5 < run_with(10) <= 10


def test_large_things_are_not_held_back_for_their_kind(monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 130)
    items = [(1, 60), (2, 60), (3, 60), (1, 60)]
    found = list(batch_by_key(items, lambda one: one[0], 4, nbytes=lambda one: one[1]))
    assert [one[0][0] for one in found] == [1, 2, 3, 1]
    assert [len(one) for one in batch_by_key(items, lambda one: one[0], 4)] == [2, 1, 1]


def test_several_at_once():
    meeting = threading.Barrier(3, timeout=60)
    assert list(prefetch(lambda _: meeting.wait() >= 0, range(3), 3)) == [True] * 3


def test_an_error_arrives_where_its_result_would_have():
    results = prefetch(lambda value: 1 // (value - 2), range(9), 2)
    assert [next(results), next(results)] == [-1, -1]
    with pytest.raises(ZeroDivisionError):
        next(results)
    with pytest.raises(ValueError, match="workers must be 0 or more; got -1"):
        next(prefetch(abs, [1], -1))


def test_things_of_one_kind_go_together():
    words = ["aa", "b", "cc", "d", "e", "ff", "ggg"]
    assert list(batch_by_key(words, len, 2)) == [["aa", "cc"], ["b", "d"], ["e"], ["ff"], ["ggg"]]
    assert list(batch_by_key(words, len, 1)) == [[word] for word in words]
    assert list(batch_by_key([], len, 3)) == []
    with pytest.raises(ValueError, match="at least 1 image; got 0"):
        list(batch_by_key(words, len, 0))


def test_no_more_than_so_many_are_held_back():
    held, most, given = 0, 0, []

    def items():
        nonlocal held, most
        for value in range(50):
            held += 1
            most = max(most, held)
            yield value

    for group in batch_by_key(items(), lambda value: value, 4, pending=6):  # all different: nothing ever fills up
        held -= len(group)
        given += group
    assert given == list(range(50))
    assert most == 7
