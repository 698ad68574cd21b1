"""One job: what it sees, what it learns, and how it is scored."""

from dataclasses import replace

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import study_runs
from cacseg.engine.evaluate import evaluate
from cacseg.engine.inference import Inference
from cacseg.engine.resident import load_resident
from cacseg.recipes.build import make_model, open_split
from cacseg.recipes.config import change
from cacseg.study import job as job_module
from cacseg.study import training
from cacseg.study.file import parse_study, tomllib
from cacseg.study.job import load_data, run_job, score_model
from cacseg.study.plan import make_plan
from cacseg.study.training import Averaged, train_model

CPU = torch.device("cpu")
PLAN = make_plan(parse_study(tomllib.loads(study_runs.SMALL)))


@pytest.fixture(scope="module")
def data():
    return load_data(PLAN[0].config, None, CPU)


def made(config, data):
    torch.manual_seed(0)
    return make_model(config.model, data.source, print)


def test_a_record_holds_everything(data):
    plain, paper = (run_job(job, data, CPU) for job in PLAN)
    assert (plain["id"], plain["status"], plain["split"], plain["images"]) == (
        "scenes.fcn.adamw.3.plain.0",
        "done",
        "val",
        4,
    )
    assert list(plain["answers"]) == ["plain"]
    assert list(paper["answers"]) == ["plain", "context", "mean", "oracle"]
    assert (plain["default_output"], paper["default_output"]) == ("plain", "context")
    assert len(paper["answers"]["oracle"]["iou"]) == 8
    assert {"plain", "context", "oracle", "distillation", "total"} <= set(paper["losses"])
    assert 0.0 < plain["answers"]["plain"]["miou"] < 100.0
    assert plain["peak_mib"] is None
    assert plain["versions"]["torch"] == torch.__version__


def test_other_data_have_another_digest(data):
    again = load_data(PLAN[0].config, None, CPU)
    other = load_data(change(PLAN[0].config, {"data.val_length": 5}), None, CPU)
    assert data.digest == again.digest != other.digest


def test_data_without_a_labelled_pixel(monkeypatch):
    def unlabelled(*arguments):
        split = load_resident(*arguments)
        return replace(split, labels=torch.full_like(split.labels, split.ignore_index))

    monkeypatch.setattr(job_module, "load_resident", unlabelled)
    with pytest.raises(ValueError, match=r"no pixel of the split 'train' is labelled: all are 255, which is ignored"):
        load_data(PLAN[0].config, None, CPU)


def test_a_job_repeated_gives_the_same(data):
    first, again = (run_job(PLAN[1], data, CPU) for _ in range(2))
    assert first["answers"] == again["answers"]
    assert first["losses"] == again["losses"]


def test_arms_of_one_seed_see_the_same(data, monkeypatch):
    seen = []
    for job in PLAN:
        model = made(job.config, data)
        loss = model.loss
        monkeypatch.setattr(
            model, "loss", lambda images, labels, loss=loss: seen.append((images, labels)) or loss(images, labels)
        )
        train_model(job.config, model, data.train)
    assert len(seen) == 6
    for (images, labels), (others, their_labels) in zip(seen[:3], seen[3:], strict=True):
        assert torch.equal(images, others)
        assert torch.equal(labels, their_labels)
    assert not torch.equal(seen[0][0], seen[1][0])


def test_scores_are_those_of_an_evaluation(data):
    config = PLAN[1].config
    model = train_model(config, made(config, data), data.train).model
    found = score_model(config, model, data.scored)
    expected = evaluate(model, open_split(config.data, "val"), oracle=True)
    for name, one in found.items():
        assert one.mean_iou == pytest.approx(expected.scores(name).mean_iou, abs=1e-9)
        assert one.pixel_accuracy == pytest.approx(expected.scores(name).pixel_accuracy, abs=1e-9)


def test_scores_in_windows_are_those_of_an_evaluation(data):
    config = change(PLAN[1].config, {"data.window": (24, 20), "data.stride": (16, 12)})
    model = made(config, data)
    found = score_model(config, model, data.scored)
    windows = Inference(window=config.data.window, stride=config.data.stride)
    expected = evaluate(model, open_split(config.data, "val"), inference=windows, oracle=True)
    assert list(found) == ["plain", "context", "mean", "oracle"]
    for name, one in found.items():
        assert one.mean_iou == pytest.approx(expected.scores(name).mean_iou, abs=1e-9)
    assert found["context"].mean_iou != score_model(PLAN[1].config, model, data.scored)["context"].mean_iou


def test_crops_too_small_for_a_dilation_are_noted():
    sizes = {"data.size": (128, 128), "data.crop": (32, 32), "schedule.steps": 1}
    config = change(PLAN[0].config, {"model.name": "deeplabv3plus", "model.output_stride": 8, **sizes})
    lines = run_job(replace(PLAN[0], config=config), load_data(config, None, CPU), CPU)["warnings"]
    for line, dilation in zip(lines, (4, 12), strict=True):
        assert f"crops of 32x32 (maps of 4x4) convolutions with a dilation of {dilation} have 8 of 9 taps" in line


def test_rates_follow_the_schedule(data, monkeypatch):
    config = change(PLAN[0].config, {"optimiser.multipliers": {"classifier": 10.0}, "schedule.power": 1.0})
    rates = []
    real = training.optimiser_of

    def optimiser_of(options, model):
        optimiser = real(options, model)
        optimiser.register_step_pre_hook(lambda one, *_: rates.append({group["lr"] for group in one.param_groups}))
        return optimiser

    monkeypatch.setattr(training, "optimiser_of", optimiser_of)
    train_model(config, made(config, data), data.train)
    for step, found in enumerate(rates):
        assert sorted(found) == pytest.approx([1e-3 * (1 - step / 3), 1e-2 * (1 - step / 3)])


def test_averages_are_those_of_torch(data):
    model = made(PLAN[0].config, data)
    ours, theirs = Averaged(model, 0.7), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.7))
    for _ in range(3):
        with torch.no_grad():
            for tensor in [*model.parameters(), *model.buffers()]:
                tensor.add_(1)
        ours.update()
        theirs.update_parameters(model)
    expected = theirs.module.state_dict()
    for name, tensor in ours.finish().state_dict().items():
        assert torch.allclose(tensor.double(), expected[name].double()), name


def test_what_is_scored_is_the_average(data):
    config = change(PLAN[0].config, {"training.ema_decay": 0.999, "training.freeze_batch_norm": True})
    start = made(config, data)
    trained = train_model(config, start, data.train)
    assert trained.model is not start
    assert any(not torch.equal(a, b) for a, b in zip(trained.model.parameters(), start.parameters(), strict=True))


def test_a_diverged_job_is_recorded_as_such(data):
    config = change(PLAN[0].config, {"optimiser.rate": 1e30, "optimiser.name": "sgd", "optimiser.clip": None})
    record = run_job(replace(PLAN[0], config=config), data, CPU)
    assert record["status"] == "diverged"
    assert record["losses"]["total"] is None


def test_held_out_images_are_not_trained_on():
    config = change(PLAN[0].config, {"data.length": 10})
    data = load_data(config, 0.2, CPU)
    assert (len(data.train), len(data.scored), data.split) == (8, 2, "train, held out")
    whole = load_data(config, None, CPU)
    assert torch.equal(data.scored.images, whole.train.images[8:])
    assert torch.equal(data.train.images, whole.train.images[:8])


@pytest.mark.gpu
def test_a_job_on_a_gpu():
    device = torch.device("cuda")
    config = change(
        PLAN[1].config, {"training.precision": "bf16", "training.channels_last": True, "training.ema_decay": 0.9}
    )
    job = replace(PLAN[1], config=config)
    record = run_job(job, load_data(config, None, device), device)
    assert record["status"] == "done"
    assert record["peak_mib"] > 0


@pytest.mark.gpu
@pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
@pytest.mark.parametrize("preset", ["paper", "tuned"])
def test_a_replayed_run_is_the_run(optimiser, preset):
    """Rates, positions, weights, averages and losses of twelve steps, of which eight are replayed."""
    device = torch.device("cuda")
    changes = {
        "model.preset": preset,
        "optimiser.name": optimiser,
        "schedule.steps": 12,
        "training.ema_decay": 0.9,
    }
    config = change(PLAN[1].config, changes)
    data = load_data(config, None, device)
    runs = []
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        for graphs in (False, True):
            model = made(config, data).to(device)
            model.classifier.dropout = 0.0  # random numbers are another matter
            runs.append(train_model(config, model, data.train, graphs=graphs))
    eager, replayed = runs
    assert eager.losses == pytest.approx(replayed.losses, rel=1e-3)
    start = made(config, data).state_dict()
    for (name, one), two in zip(eager.model.state_dict().items(), replayed.model.state_dict().values(), strict=True):
        if one.is_floating_point():
            moved = (one.cpu() - start[name]).abs().max()
            assert (one - two).abs().max() <= 0.02 * moved + 1e-6, name
        else:
            assert torch.equal(one, two), name
