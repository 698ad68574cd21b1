"""Builds sdist and wheel, installs the wheel into a fresh environment and uses it there.

    python tools/package.py [-o dist]            the environment sees this one's packages, not its cacseg; no network
    python tools/package.py --empty [-c FILE]    pip installs everything that the extra `train` declares

The wheel is built from the sdist, so both are whole. What is tried: import, convert, two steps, cacseg.train, predict,
`cacseg --version`, `cacseg predict`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LARGEST = 2**20  # bytes of either file: no pictures, records or vectors
SMOKE = """
import sys
from pathlib import Path

import cacseg
import torch
from PIL import Image
from cacseg.data.synthetic import SyntheticData
from torch import nn

assert Path(cacseg.__file__).is_relative_to(sys.prefix), cacseg.__file__

torch.manual_seed(0)
model = cacseg.convert(nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 8, 1)), seam="2")
optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(2):
    losses = model.loss(torch.randn(2, 3, 32, 32), torch.randint(0, 8, (2, 32, 32)))
    optimiser.zero_grad()
    losses["total"].backward()
    optimiser.step()
assert losses["total"].isfinite()

model = cacseg.create_model("fcn", 8, backbone="test_resnet", head_channels=16)
scenes, held_out = (SyntheticData(split, size=(48, 48), length=4) for split in ("train", "val"))
steps = {"schedule.steps": 2, "schedule.warmup_steps": 0, "training.validate_every": 2}
few = {"training.batch": 2, "training.workers": 0, "training.accelerator": "cpu", "training.devices": 1}
cacseg.train(model, scenes, held_out, folder="run", settings={"data.crop": (32, 32), **steps, **few}, progress=False)
assert Path("run/report.html").is_file()
result = cacseg.load("run").predict(held_out.read(0).image)
assert result.mask.shape == (48, 48) and sum(result.classes.values()) > 0.999, result
Image.fromarray(held_out.read(0).image).save("scene.png")
"""
PREDICT = ["predict", "run", "scene.png", "-o", "out", "--device", "cpu"]


def build(folder: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel made from it."""
    command = [sys.executable, "-m", "build", "--no-isolation", "-o", str(folder), str(ROOT)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def check_content(sdist: Path, wheel: Path) -> None:
    """All of src/cacseg is in both, licences too, and nothing large."""
    with tarfile.open(sdist) as archive:
        ours = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as archive:
        theirs = set(archive.namelist())
    package = [path for path in (ROOT / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    wanted = {path.relative_to(ROOT).as_posix() for path in package}
    needed = {"pyproject.toml", "README.md", "LICENSE", "NOTICE", "CHANGELOG.md", "CITATION.cff"}
    if missing := sorted((wanted | needed) - ours) + sorted({name[4:] for name in wanted} - theirs):
        raise SystemExit(f"missing in {sdist.name} or {wheel.name}: {', '.join(missing)}")
    if more := sorted({name.split("/")[0] for name in ours} - needed - {"src", "examples", "PKG-INFO", ".gitignore"}):
        raise SystemExit(f"{sdist.name} also holds {', '.join(more)}")
    for file in (sdist, wheel):
        if (size := file.stat().st_size) > LARGEST:
            raise SystemExit(f"{file.name} has {size} bytes, more than {LARGEST}")
        print(f"{file.name}: {size / 2**10:.0f} KiB")


def make_environment(folder: Path, wheel: Path, empty: bool, constraint: Path | None) -> Path:
    """A virtual environment with the wheel; its folder of programs."""
    venv.create(folder, with_pip=False, symlinks=True)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    pip = [sys.executable, "-m", "pip", "--python", str(programs / "python"), "install", "--quiet", "--no-compile"]
    if empty:
        pinned = [] if constraint is None else ["-c", str(constraint)]
        subprocess.run([*pip, *pinned, f"{wheel}[train]"], check=True)
    else:
        packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
        # A folder on the path: its own .pth files, with the editable cacseg, are not read.
        (packages / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
        subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True)
    return programs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="keep sdist and wheel in this empty folder")
    parser.add_argument("--empty", action="store_true", help="install everything by pip")
    parser.add_argument("-c", "--constraint", type=Path, help="pip's constraints, with --empty")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        sdist, wheel = build(arguments.output or place / "dist")
        check_content(sdist, wheel)
        programs = make_environment(place / "environment", wheel, arguments.empty, arguments.constraint)
        outside = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        told = subprocess.run([programs / "cacseg", "--version"], check=True, env=outside, stdout=subprocess.PIPE)
        version = told.stdout.decode().strip()
        assert wheel.name.startswith(f"cacseg-{version}-"), (wheel.name, version)
        subprocess.run([programs / "python", "-c", SMOKE], check=True, env=outside, cwd=place)
        subprocess.run([programs / "cacseg", *PREDICT], check=True, env=outside, cwd=place)
        assert (place / "out" / "masks" / "scene.png").is_file(), "cacseg predict wrote no mask"
    print(f"cacseg {version}: built, installed, imported, converted, trained, predicted")


if __name__ == "__main__":
    main()
