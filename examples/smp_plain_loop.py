"""A model of segmentation_models_pytorch in a plain PyTorch loop, on generated scenes.

    python examples/smp_plain_loop.py [--steps 40]

One line makes the classifier context-aware, one call gives the losses.
"""

import argparse

import torch
from scenes import draw_scenes

import cacseg  # first: it lets torchvision import beside a CPU build of torch

# isort: split
import segmentation_models_pytorch as smp

CLASSES = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    steps = parser.parse_args().steps
    torch.manual_seed(0)

    model = cacseg.convert(smp.Unet("resnet18", encoder_weights=None, classes=CLASSES))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, steps + 1):
        losses = model.loss(*draw_scenes(4, seed=step))
        optimiser.zero_grad()
        losses["total"].backward()
        optimiser.step()
        if step % 10 == 0 or step == steps:
            print(f"step {step:3d}  " + "  ".join(f"{name} {value:.3f}" for name, value in losses.items()))

    images, labels = draw_scenes(16, seed=0)
    with torch.no_grad():
        model.eval()
        for name, scores in (("context", model(images)), ("plain", model.plain(images))):
            print(f"{name} classifier: {(scores.argmax(1) == labels).float().mean():.1%} of the pixels are right")


if __name__ == "__main__":
    main()
