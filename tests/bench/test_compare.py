import pytest
import torch

from cacseg.bench.compare import as_rows, compare, peak_mib, record
from cacseg.bench.machine import processor_name

CPU = torch.device("cpu")


def test_memory_on_a_cpu_is_what_the_allocator_hands_out():
    def two_after_another():
        for _ in range(2):
            torch.empty(2**20)  # 4 MiB, given back at once

    def two_together():
        return [torch.empty(2**20) for _ in range(2)]

    assert peak_mib(two_after_another, CPU) == pytest.approx(4, abs=0.01)
    assert peak_mib(two_together, CPU) == pytest.approx(8, abs=0.01)


def test_time_is_that_of_the_clock():
    seconds = iter([0.0, 2.0, 5.0, 9.0])
    rows = compare({"one": lambda: None, "two": lambda: None}, CPU, rounds=1, warm_up=0, clock=lambda _: next(seconds))
    assert [row.time_ms for row in rows.values()] == [2000.0, 4000.0]
    assert rows["two"].time_ratio == 2.0


def test_ratios_are_those_within_a_round():
    times = {"first": [1.0, 2.0, 4.0, 8.0, 10.0], "second": [1.0, 4.0, 12.0, 32.0, 50.0]}
    row = as_rows(times, {"first": 2.0, "second": 3.0})["second"]
    assert (row.time_ms, row.time_ratio) == (12.0, 3.0)
    assert (row.time_ratio_least, *row.time_ratio_quartiles, row.time_ratio_most) == (1.0, 2.0, 4.0, 5.0)
    assert (row.memory_mib, row.memory_ratio) == (3.0, 1.5)
    alone = as_rows({"first": [2.0], "second": [6.0]}, {})["second"]
    assert alone.time_ratio_quartiles == (3.0, 3.0)
    assert alone.memory_mib is alone.memory_ratio is None


def test_rows_are_compared_with_the_first():
    small, large = torch.randn(64, 64), torch.randn(768, 768)
    seen = []
    rows = compare(
        {"first": lambda: small @ small, "second": lambda: large @ large},
        CPU,
        rounds=5,
        warm_up=1,
        progress=seen.append,
    )
    assert seen == [1, 2, 3, 4, 5, 6]
    assert rows["first"].time_ratio == rows["first"].memory_ratio == 1.0
    second = rows["second"]
    assert second.time_ratio_least <= second.time_ratio <= second.time_ratio_most
    assert second.time_ratio > 1.0  # not the least: on a busy core one round of the small product may wait
    assert second.memory_mib == pytest.approx(768 * 768 * 4 / 2**20, rel=0.01)
    described = record(rows, CPU, batch=2)
    assert described["batch"] == 2
    assert described["hardware"] == processor_name()
    assert described["rows"]["second"]["time_ratio"] == second.time_ratio
