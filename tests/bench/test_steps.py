import json

import pytest
import torch
from torch.nn import functional as F
from typer.testing import CliRunner

import cacseg
from cacseg.bench.steps import inference_steps, looped_loss, loss_steps, train_steps, use_usual_pyramid, usual_loss
from cacseg.cli import app
from cacseg.models.levels import concatenate_levels

CPU = torch.device("cpu")
OURS = "plain, upsampled_cross_entropy"
LOSS_ROWS = ["plain", OURS, "released", "looped", "tuned", "paper"]
TINY = ["--device", "cpu", "--batch", "1", "--classes", "5", "--rounds", "1", "--threads", "1"]


def draw():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 5, (2, 16, 20), generator=generator)
    labels[0, 0, 0] = 255
    return torch.randn(2, 16, 4, 5, generator=generator), labels


def test_the_looped_row_computes_what_we_compute():
    features, labels = draw()
    classifier = cacseg.ContextAwareClassifier(16, 5, preset="released")
    losses = cacseg.ContextLoss()(classifier(features, labels), labels)
    torch.testing.assert_close(looped_loss(classifier, features, labels), losses["total"], rtol=1e-4, atol=1e-4)
    plain = classifier.plain_logits(features)
    truth = F.cross_entropy(F.interpolate(plain, size=(16, 20), mode="bilinear"), labels, ignore_index=255)
    torch.testing.assert_close(usual_loss(plain, labels), truth)


def test_the_usual_pyramid_is_concatenated():
    torch.manual_seed(0)
    model = cacseg.create_model("upernet", 5, "plain", backbone="test_resnet", head_channels=64).eval()
    pyramid = [torch.randn(1, 64, 32 // 2**level, 32 // 2**level) for level in range(4)]
    with torch.no_grad():
        apart = model.head.fuse(pyramid)
        use_usual_pyramid(model)
        joined = model.head.fuse(pyramid)
        truth = model.head.fuse.norm(model.head.fuse.conv(concatenate_levels(pyramid))).relu()
    assert torch.equal(joined, truth)
    assert not torch.equal(apart, truth)
    torch.testing.assert_close(apart, truth, rtol=1e-4, atol=1e-4)


def test_every_step_runs():
    sizes = dict(batch=1, classes=5, channels=16, size=4, ratio=2)
    steps = loss_steps(CPU, torch.float32, **sizes)
    assert list(steps) == LOSS_ROWS
    for step in steps.values():
        step()
    steps = train_steps("fcn_mobilenetv2", CPU, torch.float32, batch=2, classes=5, size=32)
    assert list(steps) == ["plain", OURS, "context"]
    for step in steps.values():
        step()
    steps = inference_steps("fcn_mobilenetv2", CPU, torch.float32, classes=5, size=32)
    shapes = {step().shape for step in steps.values()}
    assert shapes == {(1, 5, 32, 32)}


def test_a_preset_is_timed_and_written(tmp_path):
    file = tmp_path / "infer.json"
    command = ["bench", "infer", "--model", "fcn_mobilenetv2", "--device", "cpu", "--dtype", "float32", "--sizes", "32"]
    command += ["--classes", "5", "--rounds", "1", "--threads", "1", "--preset", "paper", "--json", str(file)]
    assert CliRunner().invoke(app, command).exit_code == 0
    (written,) = json.loads(file.read_text())
    assert (written["preset"], list(written["rows"])) == ("paper", ["plain", "context"])
    file = tmp_path / "step.json"
    command = ["bench", "step", *TINY, "--model", "fcn_mobilenetv2", "--size", "32", "--batch", "2"]
    assert CliRunner().invoke(app, [*command, "--no-auxiliary", "--json", str(file)]).exit_code == 0
    written = json.loads(file.read_text())
    assert (written["auxiliary"], list(written["rows"])) == (False, ["plain", OURS, "context"])
    for name in ("step", "infer"):
        with pytest.raises(ValueError, match="--preset must be one of 'tuned', 'released', 'paper'; got 'none'"):
            CliRunner().invoke(app, ["bench", name, "--device", "cpu", "--preset", "none"], catch_exceptions=False)


@pytest.mark.parametrize("auxiliary", [True, False])
def test_both_plain_steps_compute_the_same_loss(auxiliary, monkeypatch):
    """Of equal models, with and without the auxiliary head; only the second calls our cross-entropy, for each head."""
    losses, calls = [], []
    backward, ours = torch.Tensor.backward, cacseg.ops.upsampled_cross_entropy

    def count(*arguments, **named):
        calls.append(len(losses))
        return ours(*arguments, **named)

    monkeypatch.setattr(torch.Tensor, "backward", lambda loss: (losses.append(loss.item()), backward(loss)))
    monkeypatch.setattr(cacseg.ops, "upsampled_cross_entropy", count)
    options = dict(batch=2, classes=5, size=64, auxiliary=auxiliary)
    steps = train_steps("fcn_mobilenetv2", CPU, torch.float32, **options)
    for name in ("plain", OURS):
        torch.manual_seed(0)  # dropout
        steps[name]()
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert calls == ([1, 1] if auxiliary else [1])


def test_the_command_writes_what_it_shows(tmp_path):
    file = tmp_path / "loss.json"
    command = ["bench", "loss", *TINY, "--channels", "16", "--size", "4", "--ratio", "2", "--json", str(file)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "released" in result.output
    written = json.loads(file.read_text())
    assert list(written["rows"]) == LOSS_ROWS
    assert written["rows"]["plain"]["time_ratio"] == 1.0
    assert (written["dtype"], written["size"], written["mode"]) == ("float32", 4, "eager")
    with pytest.raises(FileExistsError, match=r"loss.json exists already"):
        CliRunner().invoke(app, command, catch_exceptions=False)


def test_what_is_refused():
    def run(*arguments):
        return CliRunner().invoke(app, ["bench", *arguments], catch_exceptions=False)

    with pytest.raises(ValueError, match="--dtype must be one of 'float32', 'bfloat16', 'float16'; got 'int8'"):
        run("loss", *TINY, "--dtype", "int8")
    with pytest.raises(ValueError, match="mode 'graph' needs a CUDA device; got cpu"):
        run("loss", *TINY, "--channels", "16", "--size", "4", "--mode", "graph")
    with pytest.raises(OSError, match="/proc/no cannot be made"):
        run("loss", *TINY, "--json", "/proc/no/x.json")
    with pytest.raises(ValueError, match=r"--sizes must be whole numbers between commas; got '5x'"):
        run("infer", *TINY, "--sizes", "5x")
