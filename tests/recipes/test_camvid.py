"""Street scenes from given MobileNetV2 weights (ImageNet, de-quantised): 70 steps on a CPU."""

import csv

import pytest

import shared_files
from cacseg.recipes import change, find_recipe
from cacseg.recipes.build import run

HALF = [0.5, 0.5, 0.5]


@pytest.mark.slow
def test_seventy_steps_on_camvid(tmp_path):
    root, weights = shared_files.CAMVID, shared_files.MOBILENETV2
    if not root.is_dir() or not weights.is_file():
        pytest.skip(shared_files.MISSING)
    changes = {
        "data.root": str(root),
        "data.scale": [240, 180],
        "data.crop": [128, 192],
        "data.val_scale": [240, 180],
        "model.backbone_weights": str(weights),
        "model.padding": "same",
        "model.mean": HALF,
        "model.std": HALF,
        "schedule.steps": 70,
        "schedule.warmup_steps": 5,
        "training.batch": 4,
        "training.log_every": 1,
        "training.workers": 0,
        "training.accelerator": "cpu",
        "training.devices": 1,
        "training.loggers": ["csv"],
    }
    said = []
    result = run(change(find_recipe("camvid"), changes), tmp_path / "run", report=said.append, progress=False)
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        losses = [float(row["loss/plain"]) for row in csv.DictReader(file) if row["loss/plain"]]
    print(*said, sep="\n")
    assert len(losses) == 70
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])  # batches of 4 differ: means over ten
    # One class everywhere scores at most 1/11 (its IoU); 70 steps of 4 see three quarters of the images once.
    assert result.best_mean_iou > 0.15
