"""The examples for other libraries run, and learn something, in well under a minute each."""

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("name", ["smp_plain_loop", "transformers_trainer", "torchvision_lightning"])
def test_an_example_trains(name, tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    before = _children_seconds()
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert _children_seconds() - before < 60  # of the processor: other programs may run beside
    right = dict(re.findall(r"(context|plain) classifier: ([\d.]+)%", done.stdout))
    assert float(right["context"]) > 50.0  # 25 by chance
    assert float(right["plain"]) > 50.0
    assert not list(tmp_path.iterdir())


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
