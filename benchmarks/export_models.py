"""Exports the eleven models to ONNX and records how far each file is from its model: docs/export.md.

python benchmarks/export_models.py -o benchmarks/results/export_models.json [MODEL ...]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cacseg.bench.compare import describe_machine
from cacseg.engine.export import export
from cacseg.models import MODELS, create_model


def measure(name: str, folder: Path, classes: int = 150) -> dict[str, Any]:
    """A model with random weights and batch statistics; its projectors are not those of `tuned`, which give 0."""
    torch.manual_seed(0)
    model = create_model(name, classes, preset="released")
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None and module.running_var is not None:
            nn.init.uniform_(module.running_mean, -0.2, 0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    written = export(model, folder / f"{name}.onnx")
    size_mib = written.path.stat().st_size / 2**20
    written.path.unlink()
    checks = [check._asdict() for check in written.checks]
    return {"seconds": round(written.seconds), "size_mib": round(size_mib, 1), "checks": checks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    if options.output.exists():  # goes on where it was stopped
        found = json.loads(options.output.read_text())["models"]
    with tempfile.TemporaryDirectory() as folder:
        for name in (one for one in options.models if one not in found):
            found[name] = measure(name, Path(folder))
            print(name, found[name], flush=True)
            content = {**describe_machine(torch.device("cpu")), "classes": 150, "models": found}
            options.output.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
