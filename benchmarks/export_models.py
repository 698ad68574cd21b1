"""Exports models to ONNX and records how far each file is from its model: docs/export.md.

python benchmarks/export_models.py -o benchmarks/results/export_models.json [MODEL ...]
python benchmarks/export_models.py -o benchmarks/results/export_converted.json --converted [ARCHITECTURE ...]

The eleven models; or what `convert` knows of other libraries, small ones of each architecture (tests/architectures.py).
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn

import cacseg
from cacseg.bench.compare import describe_machine
from cacseg.engine.export import export
from cacseg.models import MODELS, create_model

TESTS = Path(__file__).resolve().parent.parent / "tests"
NORMALISATION: Mapping[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def measure(name: str, folder: Path, classes: int = 150) -> dict[str, Any]:
    """A model with random weights and batch statistics; its projectors are not those of `tuned`, which give 0."""
    torch.manual_seed(0)
    model = create_model(name, classes, preset="released")
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None and module.running_var is not None:
            nn.init.uniform_(module.running_mean, -0.2, 0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return write(model, folder)


def measure_converted(name: str, folder: Path) -> dict[str, Any]:
    """One of tests/architectures.py, converted; or the reason why it cannot be exported."""
    architectures = importlib.import_module("architectures")
    model = cacseg.convert(architectures.build(name), preset="released").eval()
    try:
        return write(model, folder, **NORMALISATION)
    except (ValueError, RuntimeError) as error:
        return {"reason": str(error)}


def write(model: nn.Module, folder: Path, **arguments: Any) -> dict[str, Any]:
    written = export(model, folder / "model.onnx", **arguments)
    size_mib = written.path.stat().st_size / 2**20
    others = {node.domain for node in onnx.load(written.path).graph.node} - {""}
    written.path.unlink()
    if others:
        raise ValueError(f"a file must have standard operators alone; this one has some of {', '.join(others)}.")
    checks = [check._asdict() for check in written.checks]
    return {"seconds": round(written.seconds), "size_mib": round(size_mib, 1), "checks": checks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--converted", action="store_true", help="models of other libraries")
    options = parser.parse_args()
    if options.converted:
        sys.path.insert(0, str(TESTS))
        names, classes = list(importlib.import_module("architectures").ARCHITECTURES), 5
    else:
        names, classes = list(MODELS), 150
    found: dict[str, Any] = {}
    if options.output.exists():  # goes on where it was stopped
        found = json.loads(options.output.read_text())["models"]
    with tempfile.TemporaryDirectory() as folder:
        for name in (one for one in options.models or names if one not in found):
            found[name] = (measure_converted if options.converted else measure)(name, Path(folder))
            print(name, found[name], flush=True)
            content = {**describe_machine(torch.device("cpu")), "classes": classes, "models": found}
            options.output.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
