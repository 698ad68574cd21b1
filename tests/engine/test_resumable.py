"""A checkpoint that lacks a part, or holds it in another shape, is refused by the name of that part."""

import copy
import json

import pytest
import torch
from lightning.pytorch import Trainer

from cacseg.engine.checkpoints import AtomicFiles, read_checkpoint
from cacseg.engine.resumable import check_facts, check_states
from engine_runs import run, small_task

STEPS = 3
ADAMW = {"name": "adamw", "rate": 1e-3, "weight_decay": 0.01, "decay_normalisation": False}
KINDS = {"sgd": {}, "adamw": {"optimiser": ADAMW, "ema_decay": 0.8}}


@pytest.fixture(scope="module", params=KINDS)
def saved(request, tmp_path_factory):
    """The checkpoint of a short run, and a check of changed ones."""
    folder, options = tmp_path_factory.mktemp("run"), KINDS[request.param]
    run(folder, STEPS, **options)
    path = folder / "last.ckpt"
    whole, task = read_checkpoint(path), small_task(steps=9, **options)
    trainer = Trainer(accelerator="cpu", devices=1, logger=False, max_steps=9, enable_checkpointing=False)

    def check(found):
        checked = check_facts(found, path, 9)
        check_states(checked, path, task, trainer, "ema_decay" in options)

    return whole, check, folder, options


def change(whole, place, value):
    """A copy with another value at a place, "a/b/0/c"; without it where the value is `del`."""
    *above, last = (int(part) if part.isdigit() else part for part in place.split("/"))
    part = found = copy.copy(whole)
    for name in above:
        part[name] = copy.copy(part[name])
        part = part[name]
    if value is del_:
        del part[last]
    else:
        part[last] = value
    return found


def del_():
    """Marks what is taken out."""


BAD = torch.full((16,), float("nan"))
CHANGES = [
    ("optimizer_states", [], "optimizer_states"),
    ("optimizer_states", [{}], "param_groups"),
    ("optimizer_states", [{"state": {}, "param_groups": []}], "param_groups"),
    ("optimizer_states/0/state", {}, "optimizer_states.state lacks"),
    ("optimizer_states/0/state/5", del_, "optimizer_states.state lacks 5"),
    ("optimizer_states/0/state/5", {}, r"optimizer_states.state.5 lacks"),
    ("optimizer_states/0/param_groups/0/params", [0], "param_groups.0. has other parameters"),
    ("optimizer_states/0/param_groups/0/weight_decay", 0.5, "weight_decay is 0.5"),
    ("optimizer_states/0/param_groups/0/maximize", True, "maximize is True"),
    ("optimizer_states/0/param_groups/0/lr", float("nan"), "lr is nan"),
    ("optimizer_states/0/param_groups/0/lr", 1.0, "lr is 1.0"),
    ("lr_schedulers", [], "lr_schedulers"),
    ("lr_schedulers/0/last_epoch", 7, "lr_schedulers is at step 7"),
    ("lr_schedulers/0/base_lrs", [1.0, 2.0, 3.0], "base_lrs must have"),
    ("lr_schedulers/0/_last_lr", del_, "it has no '_last_lr'"),
    ("state_dict", {}, "state_dict lacks"),
    ("state_dict/model.head.more", torch.zeros(1), "state_dict has also model.head.more"),
    ("state_dict/model.classifier.weight", torch.zeros(3, 4), r"model.classifier.weight must be \(3, 16, 1, 1\)"),
    ("state_dict/model.backbone.net.conv1.1.weight", BAD, "conv1.1.weight holds NaN"),
    ("state_dict/model.backbone.net.conv1.1.weight", BAD.half(), "must be .* torch.float32; it is .*float16"),
    ("state_dict/model.backbone.net.conv1.1.weight", [1.0] * 16, "conv1.1.weight must be"),
    ("loops", {}, "it has no 'fit_loop'"),
    ("loops/fit_loop/epoch_loop.batch_progress/total/ready", -1, "ready is -1"),
    ("loops/fit_loop/epoch_loop.batch_progress/total/ready", 100, "batches"),
    ("loops/fit_loop/epoch_progress", del_, "loops.fit_loop lacks epoch_progress"),
    ("random_states", [], "random_states"),
    ("random_states/0/torch", torch.zeros(3, dtype=torch.uint8), "RNG state"),
    ("random_states/0/python", [3, [1, 2], None], "state vector"),
    ("random_states/0/numpy", del_, "it has no 'numpy'"),
    ("random_states/0/cuda", 5, "random_states.cuda"),
    ("Loaders", del_, "it has no 'Loaders'"),
    ("Loaders/classes", ["a"], "Loaders.classes must have 3 entries"),
    ("callbacks", None, "callbacks"),
    ("global_step", "3", "global_step is '3'"),
    ("global_step", True, "global_step is True"),
    ("global_step", 0, "global_step is 0"),
    ("global_step", 2, "best_step is later|at step 3"),
    ("global_step", 10**30, "scores|at step"),
    ("epoch", -1, "epoch is -1"),
    ("seconds", float("inf"), "seconds is inf"),
    ("best", float("nan"), "best is nan"),
    ("best_step", 8, "best_step is later"),
    ("scores", "[" * 100_000, "nested too deeply"),
    ("scores", "[]", "scores are no object"),
    ("pytorch-lightning_version", "0.9.0", "pytorch-lightning_version"),
    ("pytorch-lightning_version", del_, "pytorch-lightning_version"),
]


@pytest.mark.parametrize(("place", "value", "words"), CHANGES)
def test_each_part_that_is_missing_or_misshapen_is_named(saved, place, value, words):
    whole, check, *_ = saved
    with pytest.raises(
        ValueError, match=rf"last\.ckpt is no whole checkpoint of this run: .*({words}).*model.weights="
    ):
        check(change(whole, place, value))


def test_a_whole_one_passes(saved):
    whole, check, *_ = saved
    check(whole)


def test_what_a_kind_of_run_keeps_beside(saved):
    whole, check, _, options = saved
    if options:
        others = [("averages", del_, "averages"), ("averages/3", torch.zeros(1), r"averages.3. must be")]
        others += [("optimizer_states/0/state/5/step", torch.tensor(9.0), "state.5 is at step 9")]
        others += [("optimizer_states/0/state/5/exp_avg_sq", -torch.ones_like(state5(whole)), "exp_avg_sq is negative")]
    else:
        others = [("optimizer_states/0/state/5/momentum_buffer", torch.zeros(1), r"momentum_buffer must be")]
    for place, value, words in others:
        with pytest.raises(ValueError, match=words):
            check(change(whole, place, value))


def state5(whole):
    return whole["optimizer_states"][0]["state"][5]["exp_avg_sq"]


@pytest.mark.parametrize("content", [[], 5, None, {}, {"global_step": 3}])
def test_content_of_another_kind(saved, content):
    _, check, *_ = saved
    with pytest.raises(ValueError, match=r"last\.ckpt is no whole checkpoint of this run: it (holds|has no)"):
        check(content)


def test_a_run_is_not_resumed_from_half_a_checkpoint(saved, tmp_path):
    whole, _, _, options = saved
    AtomicFiles().save_checkpoint({**whole, "optimizer_states": []}, tmp_path / "last.ckpt")
    before = (tmp_path / "last.ckpt").read_bytes()
    with pytest.raises(ValueError, match=r"last\.ckpt is no whole checkpoint of this run: optimizer_states is \[\]"):
        run(tmp_path, STEPS + 1, resume=True, **options)
    assert (tmp_path / "last.ckpt").read_bytes() == before
    assert json.loads(whole["scores"])["step"] == STEPS


def test_flipped_bytes_of_a_checkpoint_are_found(saved, tmp_path):
    """Torch writes checksums and does not look at them."""
    path = tmp_path / "last.ckpt"
    AtomicFiles().save_checkpoint(saved[0], path)
    whole = path.read_bytes()
    for place in (len(whole) // 3, len(whole) // 2, len(whole) * 2 // 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"last\.ckpt cannot be read \(the checksum of \S+ is another\)"):
            read_checkpoint(path)
