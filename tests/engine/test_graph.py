"""Work recorded once and replayed: nothing but the host's time may change."""

import subprocess
import sys

import pytest
import torch

from cacseg.engine.graph import Replayed


def test_without_a_gpu_every_call_is_a_call():
    count = torch.zeros(())
    counted = Replayed(lambda: count.add_(1), torch.device("cpu"))
    assert [counted().item() for _ in range(8)] == list(range(1, 9))


@pytest.mark.gpu
def test_replays_are_counted_and_follow_what_they_read():
    rate, weight = torch.zeros((), device="cuda"), torch.zeros((), device="cuda")
    calls = []

    def work():
        calls.append(1)
        weight.add_(rate)
        return weight * 2

    step, found = Replayed(work, torch.device("cuda")), []
    for number in range(8):
        rate.fill_(number)
        found.append(step().clone())
    assert [one.item() for one in found] == [2 * sum(range(number + 1)) for number in range(8)]
    assert len(calls) == 5  # four as they are, and the recording


ASKS_THE_HOST = """
import torch
from cacseg.engine.graph import Replayed

one = torch.ones((), device="cuda")
step = Replayed(lambda: one * one.item(), one.device)
for _ in range(5):
    step()
"""


@pytest.mark.gpu
def test_work_that_asks_the_host_cannot_be_recorded():
    """In a process of its own: a failed recording may leave the device in any state."""
    ended = subprocess.run([sys.executable, "-c", ASKS_THE_HOST], capture_output=True, text=True)
    assert ended.returncode == 1
    assert "training.graph=false" in ended.stderr
