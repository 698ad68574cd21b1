"""The commands that are killed, and what they leave."""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from campaign.corpus import TRAINING, small_model

PATIENCE = 240.0  # seconds that a command may take
IMAGES = 40
FRESH = ("-m", "cacseg.cli")
TIMES = ("seconds", "date", "peak_mib")  # in scores.json
UNFINISHED = re.compile(r"\.tmp$|\.part")
STEPS = {"schedule.steps": 16, "training.validate_every": 4, "training.save_every": 2}


def _as_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return json.dumps(value).strip('"')


SETTINGS = [f"{key}={_as_text(value)}" for key, value in {**TRAINING, **STEPS}.items()]


class Job(NamedTuple):
    """A command."""

    name: str
    arguments: Callable[[Path, Path, bool], list[str]]  # of the inputs, the output, and whether it goes on
    output: Callable[[Path], Path]  # the folder or file that it writes, below a folder of its own


def sets(settings: Sequence[str]) -> list[str]:
    return [part for one in settings for part in ("--set", one)]


def _train(inputs: Path, output: Path, goes_on: bool) -> list[str]:
    how = ["--resume"] if goes_on else ["synthetic", *sets(SETTINGS)]
    return ["train", *how, "-o", str(output), "--no-progress", "--no-report"]


def _compare(inputs: Path, output: Path, goes_on: bool) -> list[str]:
    theirs = ("schedule.steps", "training.loggers", "training.devices", "training.accelerator", "data.resident")
    own = sets([one for one in SETTINGS if not one.startswith(theirs)])
    how = "--arms plain,tuned --seeds 1 --steps 8 --devices cpu --jobs 2 --no-report"
    return ["compare", "synthetic", *how.split(), *own, "-o", str(output)]


def _predict(inputs: Path, output: Path, goes_on: bool) -> list[str]:
    how = "--confidence --format labelme --workers 2 --device cpu"
    return ["predict", str(inputs / "model.safetensors"), str(inputs / "images"), "-o", str(output), *how.split()]


def _export(inputs: Path, output: Path, goes_on: bool) -> list[str]:
    again = ["--overwrite"] if output.exists() else []
    return ["export", str(inputs / "model.safetensors"), "-o", str(output), *again]


JOBS = {
    "train": Job("train", _train, lambda folder: folder / "run"),
    "compare": Job("compare", _compare, lambda folder: folder / "comparison"),
    "predict": Job("predict", _predict, lambda folder: folder / "masks"),
    "export": Job("export", _export, lambda folder: folder / "model.onnx"),
}


class Running:
    """A command in a process group of its own."""

    def __init__(self, arguments: Sequence[str], log: Path, python: Sequence[str] = ()) -> None:
        """`python`: what a new interpreter is started with; without, the process is forked from this one."""
        self.log = log
        if python:
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            with log.open("a") as file:
                command = [sys.executable, *python, *arguments]
                process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True, env=environment)
            self.pid = process.pid
            process.returncode = 0  # `wait` below is what waits for it
            return
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.setpgid(0, 0)
                target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                for stream in (1, 2):
                    os.dup2(target, stream)
                code = _run_main(arguments)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        with suppress(OSError):  # whichever of both comes first
            os.setpgid(self.pid, self.pid)

    def poll(self) -> int | None:
        found, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if found else None

    def wait(self, seconds: float = PATIENCE) -> int:
        until = time.monotonic() + seconds
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                self.kill()
                raise TimeoutError(f"no end after {seconds:.0f} s: {self.log.read_text()[-1000:]}")
            time.sleep(0.01)
        return code

    def kill(self) -> None:
        os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _run_main(arguments: Sequence[str]) -> int:
    from cacseg.cli import main

    sys.argv = ["cacseg", *arguments]
    try:
        main()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        return 70
    return 0


def make_inputs(folder: Path) -> Path:
    """A model and images, made in a process of its own."""
    if os.fork() == 0:
        from PIL import Image

        (folder / "images").mkdir(parents=True)
        small_model().save(folder / "model.safetensors")
        rng = np.random.default_rng(0)
        for k in range(IMAGES):
            side = int(rng.integers(40, 90))
            Image.fromarray(rng.integers(0, 256, (side, side + 8, 3), np.uint8)).save(
                folder / "images" / f"{k:03d}.png"
            )
        os._exit(0)
    _, status = os.wait()
    if status:
        raise RuntimeError("the inputs could not be made")
    return folder


def content_of(path: Path) -> dict[str, Any]:
    """Every file below a path by its name, as far as it must not differ from one job to the next."""
    files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
    return {one.relative_to(path.parent).as_posix(): _facts(one) for one in files}


def _facts(path: Path) -> Any:
    if path.name == ".lock" or path.suffix == ".log":
        return "there"  # a log has times
    if path.name == "last.ckpt":
        return _state(path)
    if path.suffix == ".safetensors":  # the order of what it says of itself is random
        content = path.read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        return json.loads(content[8:start]), content[start:]
    if path.name == "scores.json":
        return _scores(path.read_text())
    if path.name in ("costs.csv", "report.md") or path.suffix in (".pdf", ".svg"):
        return "there"
    if path.name == "index.csv":
        return sorted(csv.reader(path.read_text().splitlines()))
    if path.name == "config.json":
        return json.loads(path.read_text())
    return path.read_bytes()


def _scores(text: str) -> dict[str, Any]:
    """What scores.json holds but times and memory; a checkpoint before the first validation has none."""
    return {key: value for key, value in json.loads(text or "{}").items() if key not in TIMES}


def _state(path: Path) -> dict[str, Any]:
    """The parts of a checkpoint, each as bytes, but for the time that it took."""
    import torch

    from cacseg.engine.checkpoints import read_checkpoint

    found: dict[str, Any] = {}
    for key, value in read_checkpoint(path).items():
        if key == "scores":
            found[key] = _scores(value)
        elif key != "seconds":
            target = io.BytesIO()
            torch.save(value, target)
            found[key] = target.getvalue()
    return found


def differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    lost = [f"{name} is missing" for name in expected.keys() - found.keys()]
    left = [f"{name} is left over" for name in found.keys() - expected.keys()]
    return [
        *lost,
        *left,
        *(f"{name} differs" for name in found.keys() & expected.keys() if found[name] != expected[name]),
    ]


def in_child(work: Callable[[], Any]) -> Any:
    """Computes in a forked process, so that this one stays without threads."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(work(), pipe)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        found = pickle.load(pipe)
    os.waitpid(pid, 0)
    return found


def differing(output: Path, expected: dict[str, Any]) -> list[str]:
    """What an output has beside, without or otherwise than one that was left alone."""
    found = in_child(lambda: content_of(output))
    strange = [f"{one.name} is left over" for one in output.parent.iterdir() if one != output]
    return differences(found, expected) + strange


def last_line(log: Path) -> str:
    return " | ".join(log.read_text().strip().splitlines()[-2:])[-600:]
