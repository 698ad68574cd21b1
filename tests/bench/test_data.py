"""`cacseg bench data`: the files it makes are an ADE20K tree, and what it reports belongs together."""

import json
import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from cacseg.bench.data import measure, one_thread, write_generated
from cacseg.cli import app
from cacseg.data import TrainTransform, open_data

ROOT = Path(__file__).parents[2]


def test_generated_files_are_an_ade20k_tree(tmp_path):
    write_generated(tmp_path, 3)
    data = open_data("ade20k", tmp_path, "train")
    assert len(data) == 3
    scenes = open_data("synthetic", None, "train", size=(512, 683), length=3)
    for index in range(3):
        sample, scene = data.read(index), scenes.read(index)
        assert sample.image.shape == (512, 683, 3)
        assert abs(sample.image.astype(int) - scene.image).mean() < 6  # JPEG, red and blue in their places
        pairs = np.unique(np.stack([sample.labels.ravel(), scene.labels.ravel()]), axis=1)
        assert len(set(pairs[0])) == len(set(pairs[1])) == pairs.shape[1]  # one class of theirs for each of ours


def test_reported_numbers_belong_together():
    data = open_data("synthetic", None, "train", size=(64, 64), length=4)
    done = []
    result = measure(data, TrainTransform((32, 32)), images=5, rounds=3, progress=done.append)
    assert done == [0, 1, 2, 3]
    assert len(result.rounds) == 3
    assert result.images_per_second == sorted(result.rounds)[1]
    assert 1e3 / result.images_per_second == pytest.approx(result.read_ms + result.transform_ms, rel=0.5)
    with pytest.raises(ValueError, match=r"at least 1; got 0 and 3"):
        measure(data, TrainTransform((32, 32)), images=0, rounds=3)


def test_threads_are_as_they_were():
    before = cv2.getNumThreads(), torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert (cv2.getNumThreads(), torch.get_num_threads()) == before


def test_the_command(tmp_path):
    runner = CliRunner()
    write_generated(tmp_path, 2)
    arguments = ["bench", "data", "--images", "2", "--rounds", "1", "--crop", "64", "64"]
    words = runner.invoke(app, arguments)
    assert words.exit_code == 0, words.output
    assert "images a second a core" in words.output
    answer = json.loads(runner.invoke(app, [*arguments, "--json", str(tmp_path)]).stdout)
    assert answer["crop"] == [64, 64]
    assert answer["data"] == str(tmp_path)
    assert answer["images_per_second"] > 0
    assert answer["opencv"] == cv2.__version__


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="cores are chosen as Linux does")
def test_our_half_of_the_comparison(tmp_path):
    """The process that tools/bench_mmsegmentation_data.py asks; the other half needs mmsegmentation."""
    write_generated(tmp_path, 2)
    core = str(min(os.sched_getaffinity(0)))
    command = [sys.executable, str(ROOT / "tools/bench_mmsegmentation_data.py"), "--core", core, "--work", "ours"]
    done = subprocess.run([*command, str(tmp_path)], input="0 2\n2 3\n", capture_output=True, text=True, check=True)
    versions, *seconds = done.stdout.splitlines()
    assert json.loads(versions)["opencv"] == cv2.__version__
    assert len(seconds) == 2
    assert all(float(value) > 0 for value in seconds)
