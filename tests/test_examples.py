"""The examples for other libraries run, and learn something."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

OTHERS = [("transformers_trainer", 40), ("torchvision_lightning", 40)]
EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(
    ("name", "steps"),
    [("smp_plain_loop", 25), ("own_dataset", 40), *(pytest.param(*one, marks=pytest.mark.slow) for one in OTHERS)],
)
def test_an_example_trains(name, steps, tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--steps", str(steps)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    right = dict(re.findall(r"(context|plain) classifier: ([\d.]+)%", done.stdout))
    assert float(right["context"]) > 50.0  # 25 by chance
    assert float(right["plain"]) > 50.0
    assert not list(tmp_path.iterdir())
