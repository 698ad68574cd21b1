"""Compares our models with mmsegmentation's, weight for weight: python tools/compare_with_mmsegmentation.py FOLDER

FOLDER holds a file NAME.pt for each model of `cacseg.models.MODELS`, written by make_mmsegmentation_reference.py in an
environment with mmsegmentation: a state dict, and for two images, "512" (1 x 3 x 512 x 512) and "odd" (1 x 3 x 200 x
264: no level is a multiple of Swin's window), the features, the logits and the auxiliary logits, none upsampled.

Errors are relative: the largest difference over the largest value. The command fails where one is above --limit.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from cacseg.models import MODELS, create_model
from cacseg.models.released import convert_state_dict

PARTS = ("features", "logits", "aux")
IMAGES = ("512", "odd")


def relative_error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference over the largest value."""
    if ours.shape != theirs.shape:
        raise ValueError(f"the shapes must agree; got {tuple(ours.shape)} and {tuple(theirs.shape)}.")
    return float((ours - theirs).abs().max() / theirs.abs().max())


@torch.no_grad()
def compare(name: str, path: Path) -> list[float]:
    """The relative errors of one model, in the order of the table's columns."""
    reference = torch.load(path, weights_only=True)
    report = convert_state_dict(reference["state_dict"], name)
    model = create_model(**report.arguments).eval()
    model.load_state_dict(report.state)
    assert model.auxiliary is not None  # every model of the table has one
    errors = []
    for tag in IMAGES:
        pyramid = model.backbone(reference[f"image_{tag}"])
        auxiliary = model.auxiliary(pyramid)
        features = model.features(reference[f"image_{tag}"])
        ours = {"features": features, "logits": model.classifier(features), "aux": auxiliary}
        errors += [relative_error(ours[part], reference[f"{part}_{tag}"]) for part in PARTS]
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare our models with mmsegmentation's, weight for weight.")
    parser.add_argument("folder", type=Path, help="holds NAME.pt for each model; see the top of this file")
    parser.add_argument("names", nargs="*", default=list(MODELS), help="the models to compare; all of them by default")
    parser.add_argument("--limit", type=float, default=1e-3, help="the largest relative error allowed")
    arguments = parser.parse_args()
    columns = [f"{part} {tag}" for tag in IMAGES for part in PARTS]
    print("| model | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    worst = 0.0
    for name in arguments.names:
        errors = compare(name, arguments.folder / f"{name}.pt")
        worst = max(worst, *errors)
        print(f"| {name} | " + " | ".join(f"{error:.1e}" for error in errors) + " |", flush=True)
    if not worst <= arguments.limit:
        raise SystemExit(f"the largest relative error is {worst:.1e}, above the limit of {arguments.limit:.1e}.")


if __name__ == "__main__":
    main()
