"""The measuring scripts of tools/ that docs name."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def measure_theta():
    spec = importlib.util.spec_from_file_location("measure_theta", ROOT / "tools" / "measure_theta.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_lengths(measure_theta):
    weight, prototypes = torch.tensor([[3.0, 4.0], [0.0, 1.0]]), torch.full((2, 2, 2), 2.0)
    shared = torch.tensor([[[6.0, 8.0]], [[0.0, 0.0]]]).expand(2, 2, 2)  # of each image, the same for its classes
    expected = [3.0, 8.0**0.5, 5.0, 0.0, 5.0]
    assert measure_theta.lengths(weight, prototypes, shared) == pytest.approx(expected)
    by_class = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]]).expand(2, 2, 2)
    assert measure_theta.lengths(weight, prototypes, by_class)[2:] == pytest.approx([1.0, 1.0, 0.0])


def test_theta_is_measured_while_a_job_trains(measure_theta, capsys, monkeypatch):
    """It starts at 0 and grows; arms without a projector are named."""
    asked = ["studies/scenes.toml", "--only", "optimisers=adamw", "--only", "arms=plain,fixed,tuned", "--steps", "3"]
    smaller = ["--set", "data.length=8", "--set", "data.val_length=2", "--set", "training.batch=2"]
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["measure_theta.py", *asked, *smaller, "--every", "1"])
    measure_theta.main()
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [f"{arm} has no theta and is left out." for arm in ("plain", "fixed")]
    _, _, *rows = printed.out.splitlines()
    cells = [row.strip("| ").split(" | ") for row in rows]
    assert [row[:2] for row in cells] == [["`tuned`", "1"], ["`tuned`", "2"], ["`tuned`", "3"]]
    theta = [float(row[4]) for row in cells]
    assert theta[0] == 0.0 < theta[2]


def test_a_wrong_command_line_is_an_error(measure_theta, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    for given, words in (
        (["none.toml"], "there is no study none.toml"),
        (["studies/scenes.toml", "--every", "0"], "--every must be at least 1; got 3 and 0."),
        (["studies/scenes.toml", "--only", "arms"], "--only must be NAME=VALUE; got 'arms'."),
        (["studies/scenes.toml", "--only", "arms=best"], "there is no value of arms 'best'"),
    ):
        monkeypatch.setattr(sys, "argv", ["measure_theta.py", *given, "--steps", "3"])
        with pytest.raises(SystemExit):
            measure_theta.main()
        assert words in capsys.readouterr().err
