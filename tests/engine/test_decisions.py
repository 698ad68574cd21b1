"""What a run decides for itself."""

from types import SimpleNamespace

import pytest
import torch

from cacseg.engine import decisions
from cacseg.engine.decisions import check_graph, decide_graph, decide_resident, find_batch, training_device
from cacseg.engine.options import TrainingOptions
from engine_runs import Stripes, small_model

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SPLITS = Stripes(), Stripes("val", 3)  # 13 images of 40x56, four bytes a pixel


@pytest.mark.parametrize(("memory", "fits"), [(10 * 13 * 40 * 56 * 4, True), (10 * 13 * 40 * 56 * 4 - 10, False)])
def test_images_stay_on_a_gpu_where_they_fit_into_a_tenth_of_it(monkeypatch, memory, fits):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=memory))
    decided, words = decide_resident(SPLITS, CUDA)
    assert decided is fits
    assert "data.resident" in words


def test_on_a_cpu_images_are_read_by_workers():
    assert decide_resident(SPLITS, CPU)[0] is False
    assert training_device(TrainingOptions(batch=4, accelerator="cpu")) == CPU


@pytest.mark.parametrize(
    "settings", [{"precision": "fp16"}, {"accumulate": 2}, {"compile": True}, {"devices": 2}, {"nodes": 2}]
)
def test_steps_that_cannot_be_recorded_are_not(settings):
    options = TrainingOptions(**{"batch": 4, "devices": 1, **settings})
    assert not decide_graph(options, CUDA)
    with pytest.raises(ValueError, match=r"one whole batch on one device; got .*training\.graph=false"):
        check_graph(options.model_copy(update={"graph": True}))


def test_within_torchrun_its_processes_count(monkeypatch):
    """Whatever the settings say: a recorded step exchanges no gradients, and a batch is found on one GPU."""
    options = TrainingOptions(batch="auto", devices=1)
    assert decide_graph(options, CUDA)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not decide_graph(options, CUDA)
    with pytest.raises(ValueError, match=r"with 2 device\(s\)"):
        find_batch(small_model(), (32, 32), options, CUDA)


def test_steps_are_recorded_on_one_gpu():
    options = TrainingOptions(batch=4, devices=1, precision="bf16")
    assert decide_graph(options, CUDA)
    assert not decide_graph(options, CPU)
    check_graph(options.model_copy(update={"graph": True}))


def test_a_batch_is_found_on_one_gpu_alone():
    with pytest.raises(ValueError, match=r"what fits on one GPU; this run is on cpu.*Give a number"):
        find_batch(small_model(), (32, 32), TrainingOptions(batch="auto", devices=1), CPU)


@pytest.mark.gpu
def test_the_largest_batch_that_fits_is_found(monkeypatch):
    monkeypatch.setattr(decisions, "LARGEST_BATCH", 16)
    model, options = small_model(), TrainingOptions(batch="auto", devices=1, accumulate=3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert find_batch(model, (64, 64), options, CUDA) == 48
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    monkeypatch.setattr(decisions, "SHARE_FOR_STEPS", 1e-9)
    with pytest.raises(ValueError, match="too little memory for one crop of 64x64"):
        find_batch(model, (64, 64), options, CUDA)
