"""What a run does with bad numbers, bad data and bad places, and that it learns from good ones."""

import csv
import importlib.util
import json
import os
import re
import signal
from functools import partial
from pathlib import Path

import pytest
import torch

import cacseg
from cacseg.data import Sample, TrainTransform
from cacseg.engine.checkpoints import read_checkpoint
from cacseg.engine.evaluate import evaluate
from cacseg.engine.preflight import BEFORE_A_RUN, check_crop, check_data, check_folder, check_model, check_space
from cacseg.engine.task import SegmentationTask
from cacseg.engine.train import explain_reader
from engine_runs import CLASSES, Stripes, crop_32, run, small_loaders, small_model, small_task


def test_a_run_learns_and_leaves_its_files(tmp_path):
    """Plain and quick: stripes are told apart by their brightness."""
    model = small_model(classifier="plain", output_stride=8)
    options = {"validate_every": 15, "save_every": 100, "log_every": 5}
    task = small_task(model, steps=30, rate=0.05, channels_last=True, **options)
    loaders = small_loaders(Stripes(size=(48, 64), block=16), Stripes("val", 3, (48, 64), 16))
    said = []
    result = run(tmp_path / "run", 30, task=task, loaders=loaders, report=said.append)
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    losses = [float(row["loss/total"]) for row in rows if row["loss/total"]]
    assert len(losses) == 6
    assert losses[-1] < 0.7 * losses[0]
    scores = {int(row["step"]): float(row["val/mean_iou"]) for row in rows if row["val/mean_iou"]}
    assert set(scores) == {15, 30}
    assert result.best_mean_iou == max(scores.values()) > 0.3
    assert result.best_step == max(scores, key=scores.get)
    assert [line.split(":")[0] for line in said] == ["starting", "will take about 0", "step 15/30", "step 30/30"]
    names = {path.name for path in (tmp_path / "run").glob("[!.]*")}
    assert names == {"last.ckpt", "last.safetensors", "best.safetensors", "metrics.csv", "scores.json"}
    saved = cacseg.load(tmp_path / "run" / "last.safetensors")
    assert all(torch.equal(value, saved.state_dict()[name]) for name, value in task.model.state_dict().items())


def test_a_validation_before_the_first_logged_step_says_its_score(tmp_path):
    said = []
    run(tmp_path / "run", 2, validate_every=1, log_every=2, report=said.append)
    assert re.fullmatch(r"step 1/2: mIoU \d+\.\d\d, plain .*, oracle .* \(.* steps/s.*\)", said[2])
    assert re.fullmatch(r"step 2/2: mIoU \d+\.\d\d, plain .*, oracle .* \(.* steps/s\)", said[3])


def spoiling(task, step):
    """A report that makes the gradients of one bias NaN after the validation of a step."""

    def report(text):
        if text.startswith(f"step {step}/"):
            task.model.classifier.bias.register_hook(lambda gradient: gradient * float("nan"))

    return report


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_loss_that_is_no_number_ends_the_run(tmp_path, accumulate):
    """Step 4 makes a bias NaN, so the losses that read it are NaN at step 5; oracle and auxiliary do not read it."""
    task, loaders = small_task(), small_loaders(accumulate=accumulate)
    with pytest.raises(ValueError, match=r"not finite at step 5: plain, context, distillation, total\. Nothing of it"):
        run(tmp_path / "run", 8, task=task, loaders=loaders, save_every=100, report=spoiling(task, 3))
    assert read_checkpoint(tmp_path / "run" / "last.ckpt")["global_step"] == 3


def test_weights_that_are_no_numbers_are_never_saved(tmp_path):
    task = small_task()
    with pytest.raises(ValueError, match=r"weights are not finite after step 4, 1 of \d+ tensors \(classifier.bias\)"):
        run(tmp_path / "run", 8, task=task, save_every=2, report=spoiling(task, 3))
    assert read_checkpoint(tmp_path / "run" / "last.ckpt")["global_step"] == 3
    assert torch.isfinite(cacseg.load(tmp_path / "run" / "last.safetensors").classifier.bias).all()


def test_mixed_precision_and_clipping_run(tmp_path):
    result = run(tmp_path / "run", 2, precision="bf16", optimiser={"clip": 0.1}, log_every=1)
    assert result.step == 2


def test_tf32_is_for_one_run_alone(tmp_path):
    before, within = torch.get_float32_matmul_precision(), set()
    run(tmp_path / "run", 1, precision="tf32", report=lambda text: within.add(torch.get_float32_matmul_precision()))
    assert (before, within) == ("highest", {"high"})
    assert torch.get_float32_matmul_precision() == before


def test_half_precision_on_a_cpu_is_refused_not_replaced(tmp_path):
    with pytest.raises(ValueError, match="training in fp16 needs a GPU; this run would be on the CPU"):
        run(tmp_path / "run", 1, precision="fp16")


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a GPU where there is none")
def test_devices_that_are_not_there_are_one_line(tmp_path):
    words = r"cannot train with accelerator='gpu', devices=2 .* shows 0 CUDA devices; change training.accelerator"
    with pytest.raises(ValueError, match=words) as error:
        run(tmp_path / "run", 1, accelerator="gpu", devices=2)
    assert "\n" not in str(error.value)


class Unwaiting(SegmentationTask):
    """Waiting for the GPU is an error in some steps, from the batch's start to the last callback.

    The fifth step is the one that is recorded.
    """

    def on_train_batch_start(self, batch, batch_idx):
        torch.cuda.set_sync_debug_mode("error" if self.trainer.global_step in (1, 2, 5, 6) else "default")

    def on_train_batch_end(self, outputs, batch, batch_idx):
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("resident", "graph"), [(False, False), (True, False), (True, True)])
def test_a_step_does_not_wait_for_the_gpu(tmp_path, precision, resident, graph):
    task = small_task(
        steps=8,
        optimiser={"name": "adamw", "rate": 1e-3, "clip": 1.0},
        precision=precision,
        accelerator="gpu",
        graph=graph,
        ema_decay=0.9,
        **dict.fromkeys(("log_every", "validate_every", "save_every"), 100),
    )
    task.__class__ = Unwaiting
    transform = TrainTransform((32, 32))
    loaders = small_loaders(transform=transform, resident=True) if resident else small_loaders(workers=1)
    try:
        assert run(tmp_path / "run", 8, task=task, loaders=loaders).step == 8
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
@pytest.mark.parametrize("resident", [False, True])
def test_a_run_on_a_gpu_learns_in_every_precision(tmp_path, precision, resident):
    """With averaged weights, which stay on the GPU; what is saved is read again on the CPU."""
    options = {"validate_every": 20, "save_every": 100, "log_every": 5, "accelerator": "gpu", "precision": precision}
    options |= {"graph": resident and precision != "fp16", "ema_decay": 0.9}
    task = small_task(small_model(output_stride=8), steps=40, rate=0.05, channels_last=True, **options)
    splits = Stripes(size=(48, 64), block=16), Stripes("val", 3, (48, 64), 16)
    transform = TrainTransform((32, 32), ratios=(1.0, 1.0), distort=False) if resident else crop_32
    result = run(
        tmp_path / "run", 40, task=task, loaders=small_loaders(*splits, transform=transform, resident=resident)
    )
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        losses = [float(row["loss/plain"]) for row in csv.DictReader(file) if row["loss/plain"]]
    assert losses[-1] < 0.8 * losses[0]
    assert result.best_mean_iou > 0.2
    assert {value.device.type for value in cacseg.load(tmp_path / "run" / "last.safetensors").parameters()} == {"cpu"}


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::DeprecationWarning")  # torch's own inductor
def test_compiled_steps_on_a_gpu_are_the_plain_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # rounding grows from step to step
    losses = []
    for compile in (False, True):
        options = {"compile": compile, "accelerator": "gpu", "validate_every": 100, "save_every": 100}
        run(tmp_path / f"{compile}", 4, model=small_model(dropout=0.0, output_stride=8), **options)
        with (tmp_path / f"{compile}" / "metrics.csv").open(newline="") as file:
            losses.append([float(row["loss/total"]) for row in csv.DictReader(file) if row["loss/total"]])
    assert len(losses[0]) == 4
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)


def test_integer_buffers_are_copied_and_not_averaged(tmp_path):
    """Averaged with a decay of 0.99 and rounded, the counts of batches would stay at 0."""
    run(tmp_path / "run", 3, ema_decay=0.99)
    for name in ("last", "best"):
        state = cacseg.load(tmp_path / "run" / f"{name}.safetensors").state_dict()
        counts = [value.item() for key, value in state.items() if key.endswith("num_batches_tracked")]
        assert counts
        assert set(counts) == {3}


def test_averages_are_those_of_every_step(tmp_path):
    """The first step's weights as they are, then 0.8 of what was and 0.2 of what is."""
    task, expected = small_task(steps=4, ema_decay=0.8, validate_every=100, save_every=100), []

    def follow(optimiser, arguments, keywords):
        weights = [weight.detach().clone() for weight in task.parameters()]
        expected[:] = [0.8 * a + 0.2 * w for a, w in zip(expected, weights, strict=True)] if expected else weights

    def begin():
        task.trainer.optimizers[0].register_step_post_hook(follow)

    run(tmp_path / "run", task=task, passed=begin)
    saved = cacseg.load(tmp_path / "run" / "last.safetensors")
    for one, two in zip(saved.parameters(), expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-7)
    assert not torch.equal(saved.classifier.weight, task.model.classifier.weight)


def test_compile_runs(tmp_path, monkeypatch):
    """Traced for real; the code generator, which takes minutes, is torch's own business."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    task = small_task(small_model(classifier="plain", auxiliary=False), steps=1, compile=True)
    assert run(tmp_path / "run", task=task).step == 1
    assert all(not name.startswith("_orig") for name in task.model.state_dict())


def test_frozen_statistics_stay(tmp_path):
    model = small_model()
    before = {name: value.clone() for name, value in model.named_buffers() if "running" in name}
    weight = model.backbone.net.bn1.weight.clone()
    run(tmp_path / "run", 2, task=small_task(model, steps=2, freeze_batch_norm=True))
    assert before
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers() if name in before)
    assert not torch.equal(model.backbone.net.bn1.weight, weight)


class Wrong(Stripes):
    """One image of which is not like the others."""

    def __init__(self, split, length, bad):
        super().__init__(split, length)
        self.bad = bad

    def read(self, index):
        sample = super().read(index)
        labels = sample.labels.copy()
        if self.bad == "ignored":
            labels[:] = 255
        elif (self.bad == "late" and index == 7) or self.bad == "validation":
            labels[0, 0] = 9
        return Sample(sample.image, labels)


def test_a_validation_image_is_tried_before_the_first_step(tmp_path):
    passed = []
    loaders, options = small_loaders(validation=Wrong("val", 2, "validation")), {"passed": lambda: passed.append(True)}
    with pytest.raises(ValueError, match=r"ignore index 255; got 9 \(stripes, val: image_000\)"):
        run(tmp_path / "run", loaders=loaders, loggers=("csv", "tensorboard"), **options)
    assert {path.name for path in (tmp_path / "run").iterdir()} <= BEFORE_A_RUN
    assert passed == []
    run(tmp_path / "run", 1, **options)
    assert passed == [True]


def test_too_little_memory_is_said_in_the_dry_run(tmp_path, monkeypatch):
    def full(batch):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 80 GiB")

    task = small_task()
    monkeypatch.setattr(task, "losses", full)
    with pytest.raises(ValueError, match=r"too little memory for 4 images of 32x32 at a time.*training\.accumulate"):
        run(tmp_path / "run", task=task)


def test_labels_that_are_all_ignored_are_refused(tmp_path):
    with pytest.raises(ValueError, match="every pixel of the first 4 crops is 255, the ignore index"):
        run(tmp_path / "run", loaders=small_loaders(Wrong("train", 5, "ignored")))


def test_a_bad_image_read_by_a_worker_is_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"^labels must be in \[0, 3\).*got 9 \(stripes, train: image_007\)") as error:
        run(tmp_path / "run", 20, loaders=small_loaders(Wrong("train", 10, "late"), workers=1), validate_every=100)
    assert "Traceback" not in str(error.value)


class Killed(Stripes):
    """The system ends the process that reads the seventh image, as it does when memory runs out."""

    def read(self, index):
        if index == 7 and torch.utils.data.get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(index)


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_a_worker_that_the_system_killed_is_one_line(tmp_path):
    with pytest.raises(OSError, match=r"process that reads images.*memory.*training\.workers") as error:
        run(tmp_path / "run", 20, loaders=small_loaders(Killed("train", 10), workers=1), validate_every=100)
    assert "\n" not in str(error.value)
    assert "start the run again" in str(error.value)  # there is no checkpoint yet


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("DataLoader worker (pid 3) is killed by signal: Bus error. It is possible ..."), "--shm-size"),
        (RuntimeError("DataLoader worker (pid(s) 3, 4) exited unexpectedly"), "memory ran out"),
        (MemoryError("Caught MemoryError in DataLoader worker process 0.\nTraceback ..."), "no memory left"),
        (RuntimeError("DataLoader worker (pid 3) is killed by signal: Killed."), "signal: Killed"),
        (RuntimeError("DataLoader worker (pid 3) is killed by signal: Segmentation fault."), "cacseg data check"),
    ],
)
def test_how_a_reader_ended_is_explained(error, words):
    assert words in explain_reader(error)
    assert explain_reader(type(error)("something else")) is None


def test_an_empty_split_and_an_ignored_class_are_refused(tmp_path):
    with pytest.raises(ValueError, match="a split must have images; 'val' of stripes has none"):
        run(tmp_path / "run", loaders=small_loaders(validation=Stripes("val", 0)))
    data = Stripes()
    data.ignore_index = 1
    with pytest.raises(ValueError, match="must not be a class; got 1, which is 'right' of the 3 classes"):
        check_data(data, data)
    with pytest.raises(ValueError, match="same classes and ignore index; got 3 classes, 255 and 3, 1"):
        check_data(Stripes(), data)
    with pytest.raises(ValueError, match="ignore the same label; got 255 and 1"):
        check_model(small_model(), data)


def test_another_number_of_classes_is_refused(tmp_path):
    torch.manual_seed(0)
    task = small_task(cacseg.create_model("fcn", 5, backbone="test_resnet", head_channels=16))
    with pytest.raises(ValueError, match="got 5 for the 3 of stripes"):
        run(tmp_path / "run", task=task)


def test_a_batch_is_split_evenly_or_not_at_all(tmp_path):
    with pytest.raises(ValueError, match="got 4 images for 1 devices times 3"):
        run(tmp_path / "run", loaders=small_loaders(accumulate=3))


def test_batch_statistics_cannot_be_synchronised_on_cpus(tmp_path):
    with pytest.raises(ValueError, match=r"needs CUDA devices; got 2 of type cpu.*training\.freeze_batch_norm=true"):
        run(tmp_path / "run", devices=2)


def test_recorded_steps_of_several_processes_are_refused(tmp_path):
    """Nothing would exchange their gradients."""
    with pytest.raises(ValueError, match=r"on one device; this run has 2.*training\.graph=false"):
        run(tmp_path / "run", devices=2, graph=True)


def test_folders_that_cannot_be_used(tmp_path):
    check_folder(tmp_path / "new" / "run", resume=False)
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileExistsError, match="not empty; a run is never overwritten"):
        check_folder(tmp_path, resume=False)
    with pytest.raises(NotADirectoryError, match="is a file; a run needs a folder"):
        check_folder(tmp_path / "file", resume=False)
    with pytest.raises(FileNotFoundError, match="there is no run to resume"):
        check_folder(tmp_path / "nowhere", resume=True)
    with pytest.raises(PermissionError, match="/proc cannot be written to"):
        check_folder(Path("/proc/run"), resume=False)


def test_a_disk_without_room_is_refused_before_training(tmp_path):
    check_space(tmp_path / "run", 1000, 1000)
    with pytest.raises(OSError, match=r"room for the checkpoints, about 2000000000\.00 GB .* GB are free"):
        check_space(tmp_path / "run", 10**18, 0)


@pytest.mark.parametrize(
    ("crop", "scale", "ratios", "fits"),
    [
        ((100, 100), None, (0.5, 1.0), True),
        ((101, 100), None, (0.5, 1.0), False),
        ((200, 200), None, (0.5, 2.0), True),
        ((512, 512), (2048, 512), (0.5, 2.0), True),
        ((1025, 512), (2048, 512), (0.5, 2.0), False),
    ],
)
def test_a_crop_that_no_image_fills_is_refused(crop, scale, ratios, fits):
    data = Stripes(length=1, size=(100, 150), block=50)
    if fits:
        check_crop(crop, scale, ratios, data)
    else:
        with pytest.raises(ValueError, match="must fit into an image at its largest"):
            check_crop(crop, scale, ratios, data)


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="asks for wandb where there is none")
def test_wandb_is_asked_for_only_where_it_is(tmp_path):
    with pytest.raises(ModuleNotFoundError, match="pip install wandb"):
        run(tmp_path / "run", loggers=("wandb",))


def test_each_run_is_a_run_of_wandbs_own(tmp_path, monkeypatch):
    """Offline: nothing leaves this machine. A run that failed or was resumed is told apart as well."""
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    ids, rows, init, log = [], [], wandb.init, wandb.Run.log
    monkeypatch.setattr(wandb, "init", lambda **given: (ids.append(given["id"]), init(**given))[1])
    monkeypatch.setattr(wandb.Run, "log", lambda self, row, **given: (rows.append(row), log(self, row, **given))[1])
    for name in ("one", "two"):
        result = run(tmp_path / name, 3, loggers=("csv", "wandb"))
        assert wandb.run is None
        assert [row["trainer/global_step"] for row in rows] == [1, 2, 3, 3]
        assert {"loss/total", "loss/context", "rate"} <= rows[-2].keys()
        assert rows[-1]["val/mean_iou"] == result.best_mean_iou
        rows.clear()
        assert list((tmp_path / name / "wandb").glob("offline-run-*/*.wandb"))
    task = small_task()
    with pytest.raises(ValueError, match="not finite at step 5"):
        run(tmp_path / "three", 8, task=task, save_every=100, report=spoiling(task, 3), loggers=("wandb",))
    assert wandb.run is None
    run(tmp_path / "three", 8, resume=True, loggers=("wandb",))
    assert [name.split("-")[0] for name in ids] == ["one", "two", "three", "three"]
    assert ids[2] == ids[3]


def test_fewer_steps_than_an_interval_still_validate(tmp_path):
    assert run(tmp_path / "run", 1, validate_every=50).best_step == 1


def test_every_validation_scores_all_outputs_on_both_splits(tmp_path):
    """By the sums that `cacseg eval` makes; the sample of training images is always the same."""
    loaders = small_loaders(scored_train_images=4)
    assert loaders.sample == [0, 3, 6, 9]
    model = small_model(output_stride=8)
    model.class_names = list(CLASSES)
    run(tmp_path / "run", 2, loaders=loaders, model=model, validate_every=1)
    found = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert (found["step"], found["steps"], found["finished"], found["output"]) == (2, 2, True, "context")
    assert found["class_names"] == list(CLASSES)
    assert found["best"]["step"] in (1, 2)
    model = cacseg.load(tmp_path / "run" / "last.safetensors")
    for name, data in (("val", loaders.validation), ("train", Part(loaders.sample))):
        evaluation = evaluate(model, data, oracle=True, boundaries=False)
        split = found["splits"][name]
        assert split["images"] == len(data)
        assert split["labelled_pixels"] == evaluation.counts["plain"].sum(1).tolist()
        for output in ("plain", "context", "oracle"):
            expected = evaluation.scores(output)
            assert split["outputs"][output]["mean_iou"] == pytest.approx(expected.mean_iou, abs=1e-12)
            assert split["outputs"][output]["iou"] == pytest.approx(expected.iou.tolist(), abs=1e-12)
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        last = list(csv.DictReader(file))[-1]
    for split in ("val", "train"):
        for output in ("plain", "context", "oracle"):
            value = found["splits"][split]["outputs"][output]["mean_iou"]
            assert float(last[f"{split}/{output}_mean_iou"]) == value


class Part(Stripes):
    """Some of the training images."""

    def __init__(self, indices):
        super().__init__()
        self.indices = indices

    def __len__(self):
        return len(self.indices)

    def read(self, index):
        return super().read(self.indices[index])


def test_a_run_without_progress_stops_and_is_finished(tmp_path, monkeypatch):
    """Scores that never rise: the first validation is the best, and two more are waited for."""
    monkeypatch.setattr(SegmentationTask, "mean_iou", property(lambda task: 0.5))
    said, options = [], {"patience": 2, "validate_every": 2, "save_every": 100}
    result = run(tmp_path / "run", 30, report=said.append, **options)
    assert (result.step, result.best_step) == (6, 2)
    assert any("training.patience" in line for line in said)
    found = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert (found["step"], found["finished"]) == (6, True)
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        assert [row["step"] for row in csv.DictReader(file) if row["val/mean_iou"]] == ["2", "4", "6"]
    assert run(tmp_path / "run", 30, resume=True, **options).step == 6
    assert run(tmp_path / "run", 30, resume=True, **{**options, "patience": 3}).step == 8


def test_a_run_resumed_with_less_patience_is_finished(tmp_path, monkeypatch):
    """Without a step more: two validations were no better already."""
    monkeypatch.setattr(SegmentationTask, "mean_iou", property(lambda task: 0.5))

    def fail_after_step_6(text):
        if text.startswith("step 6/"):
            raise OSError("the machine goes down")

    with pytest.raises(OSError, match="goes down"):
        run(tmp_path / "run", 8, validate_every=2, patience=9, save_every=6, report=fail_after_step_6)
    assert run(tmp_path / "run", 8, resume=True, validate_every=2, patience=1, save_every=6).step == 4
    found = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert (found["step"], found["finished"]) == (4, True)
