"""Long jobs: what they take does not grow with what they have done."""

import json
import os
import subprocess
import sys
from statistics import median

import pytest

import long_runs

GROWTH = 8.0  # MiB, from the second quarter to the last: memory settles while caches fill


@pytest.mark.slow
@pytest.mark.parametrize("what", ["predict", "train"])
def test_memory_and_descriptors_are_flat(what, tmp_path):
    """Over 2,000 images and over 2,000 steps; pytest -s shows the curve."""
    command = [sys.executable, long_runs.__file__, what, str(tmp_path), "2000"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])
    assert len(rows) >= long_runs.ROWS - 1
    print(f"\n{what}: done, MiB, descriptors")
    print(*(f"{count:5d} {mib:8.1f} {opened:4d}" for count, mib, opened in rows), sep="\n")
    quarter = len(rows) // 4
    early, late = (median(mib for _, mib, _ in part) for part in (rows[quarter : 2 * quarter], rows[-quarter:]))
    assert late - early < GROWTH, (early, late)
    early, late = (max(opened for *_, opened in part) for part in (rows[quarter : 2 * quarter], rows[-quarter:]))
    assert late <= early
