"""The kernels on the CPU, through Triton's interpreter: it must be asked for before Triton is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


@pytest.mark.parametrize("chosen", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_the_kernels_pass_their_tests_in_the_interpreter(chosen):
    file = Path(__file__).with_name("test_kernels.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", chosen, str(file)]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout[-8000:] + finished.stderr[-2000:]
    assert "skipped" not in finished.stdout, finished.stdout[-2000:]
