import pytest
import torch

from cacseg.engine.device import autocast, choose_device, explain_memory, is_out_of_memory, process_group


def test_devices():
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("auto").type in ("cpu", "cuda", "mps")
    with pytest.raises(ValueError, match=r"device must be 'auto', 'cpu', .*; got 'gpu!'"):
        choose_device("gpu!")
    with pytest.raises(ValueError, match="there is no device 'cuda:99': this machine shows"):
        choose_device("cuda:99")
    with process_group("cpu") as (device, is_first):
        assert (device, is_first) == (torch.device("cpu"), True)


def test_precision():
    layer = torch.nn.Linear(2, 2)
    with autocast(torch.device("cpu"), "bf16"):
        assert layer(torch.ones(1, 2)).dtype == torch.bfloat16
    with autocast(torch.device("cpu"), "fp32"):
        assert layer(torch.ones(1, 2)).dtype == torch.float32


def test_what_counts_as_out_of_memory():
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"))
    assert not is_out_of_memory(RuntimeError("shapes differ"))
    words = r"a picture did not fit into the memory of cpu. Use a smaller batch"
    with pytest.raises(ValueError, match=words), explain_memory("a picture", torch.device("cpu")):
        raise MemoryError
    with pytest.raises(RuntimeError, match="shapes differ"), explain_memory("a picture", torch.device("cpu")):
        raise RuntimeError("shapes differ")
