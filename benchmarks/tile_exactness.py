"""How far tiles are from the whole image, head by head: python benchmarks/tile_exactness.py frame.png

Models of random weights, so the figures say nothing about scores: only how much of the image a head sees beyond a tile.
The tiles share the context of the whole image.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor

import cacseg
from cacseg._files import write_file
from cacseg.bench.compare import describe_machine
from cacseg.engine.device import choose_device
from cacseg.engine.inference import Tiling, normalise_views, view_image
from cacseg.engine.tiled import tiled_networks
from cacseg.runtime.images import as_image

HEADS = ("fcn", "deeplabv3plus", "ocrnet", "upernet")


def compare(whole: Tensor, tiled: Tensor) -> dict[str, float]:
    """Pixels whose class differs, and the largest difference of a logit over the range of the logits."""
    return {
        "changed": (whole.argmax(1) != tiled.argmax(1)).float().mean().item(),
        "difference": ((whole - tiled).abs().max() / (whole.max() - whole.min())).item(),
        "mean_difference": ((whole - tiled).abs().mean() / (whole.max() - whole.min())).item(),
    }


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", type=Path)
    parser.add_argument("--backbone", default="mobilenetv2_100")
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--classes", type=int, default=11)
    parser.add_argument("--tile", type=int, default=256)
    parser.add_argument("--overlap", type=int, default=64)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.json")
    options = parser.parse_args()
    image, tiling, rows = as_image(options.image), Tiling(options.tile, options.overlap), []
    for head in HEADS:
        torch.manual_seed(0)
        model = cacseg.create_model(
            head, options.classes, backbone=options.backbone, head_channels=options.channels
        ).eval()
        views = [view_image(image, None, (1.0,))]
        (images,) = normalise_views(views, tuple(model.mean), tuple(model.std), torch.float32, torch.device("cpu"))
        whole = [model.plain(images), model(images)]
        tiled = tiled_networks(model, ["plain", "context"], tiling)(images, None)
        found = dict(zip(("plain", "context"), map(compare, whole, tiled), strict=True))
        shown = (
            f"{name} {100 * one['changed']:.2f} % of pixels, logits {one['difference']:.1e}"
            for name, one in found.items()
        )
        print(f"{head}: {'; '.join(shown)}", flush=True)
        rows.append({"head": head, **found})
    if options.output is not None:
        facts = {key: getattr(options, key) for key in ("backbone", "channels", "classes", "tile", "overlap")}
        facts |= {"image": options.image.name, "size": list(image.shape[:2]), "rows": rows}
        text = json.dumps({**describe_machine(choose_device("cpu")), **facts}, indent=2)
        write_file(options.output, text + "\n")


if __name__ == "__main__":
    main()
