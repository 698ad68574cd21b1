"""The examples for other libraries run, and learn something, in well under a minute each."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("name", ["smp_plain_loop", "transformers_trainer", "torchvision_lightning"])
def test_an_example_trains(name, tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert time.perf_counter() - start < 60
    right = dict(re.findall(r"(context|plain) classifier: ([\d.]+)%", done.stdout))
    assert float(right["context"]) > 50.0  # 25 by chance
    assert float(right["plain"]) > 50.0
    assert not list(tmp_path.iterdir())
