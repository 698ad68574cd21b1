"""A model of segmentation_models_pytorch in a plain PyTorch loop, on generated scenes.

    python examples/smp_plain_loop.py [--steps 40]

One line makes the classifier context-aware, one call gives the losses.
"""

import argparse

import torch
from torch import Tensor

import cacseg
from cacseg._torchvision import ensure_torchvision_imports

ensure_torchvision_imports()  # its own wheels do not import beside a CPU build of torch
import segmentation_models_pytorch as smp

CLASSES, SIZE = 4, 64


def draw_scenes(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images [count, 3, 64, 64] and labels: blocks of 16 pixels, each class its own colour, under a random light."""
    labels = torch.randint(0, CLASSES, (count, 4, 4), generator=generator)
    labels = labels.repeat_interleave(SIZE // 4, 1).repeat_interleave(SIZE // 4, 2)
    colours = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.5, 0.5, 0.5]])
    light = 0.3 * torch.randn(count, 3, 1, 1, generator=generator)
    noise = 0.2 * torch.randn(count, 3, SIZE, SIZE, generator=generator)
    return colours[labels].permute(0, 3, 1, 2) + light + noise, labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)

    model = cacseg.convert(smp.Unet("resnet18", encoder_weights=None, classes=CLASSES))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, steps + 1):
        losses = model.loss(*draw_scenes(4, generator))
        optimiser.zero_grad()
        losses["total"].backward()
        optimiser.step()
        if step % 10 == 0 or step == steps:
            print(f"step {step:3d}  " + "  ".join(f"{name} {value:.3f}" for name, value in losses.items()))

    images, labels = draw_scenes(16, generator)
    with torch.no_grad():
        model.eval()
        for name, scores in (("context", model(images)), ("plain", model.plain(images))):
            print(f"{name} classifier: {(scores.argmax(1) == labels).float().mean():.1%} of the pixels are right")


if __name__ == "__main__":
    main()
