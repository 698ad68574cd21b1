"""The examples run; given their time, they learn something."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FEW = 4  # steps
OWN = [("smp_plain_loop", 25, 50.0), ("own_dataset", 40, 50.0)]  # by chance 25
OWN += [("volumes", 30, 40.0), ("point_clouds", 60, 40.0)]  # by chance 25 and 20
OTHERS = [("transformers_trainer", 40, 50.0), ("torchvision_lightning", 40, 50.0)]
EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(
    ("name", "steps", "least"),
    [
        *((name, FEW, 0.0) for name, *_ in OWN),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (*OWN, *OTHERS)),
    ],
)
def test_an_example_trains(name, steps, least, tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--steps", str(steps)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    right = dict(re.findall(r"(context|plain) classifier: ([\d.]+)%", done.stdout))
    assert float(right["context"]) > least
    assert float(right["plain"]) > least
    assert not list(tmp_path.iterdir())
