"""Long jobs: what they take does not grow with what they have done."""

import json
import os
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from statistics import median

import pytest

import long_runs
from cacseg.bench.machine import processor_name

GROWTH = 8.0  # MiB, from the second quarter to the last: memory settles while caches fill
RECORD = "CACSEG_LONG_RUNS"  # an environment variable: the file that is to have the curves


@pytest.mark.slow
@pytest.mark.parametrize("what", ["predict", "train"])
def test_memory_and_descriptors_are_flat(what, tmp_path):
    """Over 2,000 images and over 2,000 steps, child processes included; pytest -s shows the curve."""
    command = [sys.executable, long_runs.__file__, what, str(tmp_path), "2000"]
    environment, begun = {**os.environ, "OMP_NUM_THREADS": "1"}, time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])
    assert len(rows) >= long_runs.ROWS - 1
    print(f"\n{what}: done, MiB, descriptors, processes")
    print(*(f"{count:5d} {mib:8.1f} {opened:4d} {processes:2d}" for count, mib, opened, processes in rows), sep="\n")
    if record := os.environ.get(RECORD):
        add_to_record(Path(record), what, rows, time.monotonic() - begun)
    quarter = len(rows) // 4
    early, late = rows[quarter : 2 * quarter], rows[-quarter:]
    assert median(mib for _, mib, *_ in late) - median(mib for _, mib, *_ in early) < GROWTH
    assert max(opened for _, _, opened, _ in late) <= max(opened for _, _, opened, _ in early)
    assert len({processes for *_, processes in (*early, *late)}) == 1


def add_to_record(path, what, rows, seconds):
    runs = json.loads(path.read_text())["runs"] if path.is_file() else {}
    runs[what] = {"seconds": round(seconds), "rows": rows}
    facts = {"command": f"{RECORD}={path} pytest -m slow tests/test_long_runs.py", "processor": processor_name()}
    facts |= {"date": datetime.now(timezone.utc).date().isoformat()}
    facts |= {"minutes": round(sum(one["seconds"] for one in runs.values()) / 60, 1), "runs": runs}
    path.write_text(json.dumps(facts, indent=1) + "\n")
