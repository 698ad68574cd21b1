"""The same small network with a fixed and with a context-aware classifier, on scenes whose colours shift.

    python examples/quickstart.py                 about a minute on 2 cores
    python examples/quickstart.py --steps 50      a quick look

Every scene is lit by a colour of its own, so a class looks different from image to image: a classifier that is the
same for all images must err, one that looks at the whole image first can do better. The network sees only a few pixels
around each point. Whatever comes out is printed; the data are made to favour adaptation, so the gain says nothing about
photographs.
"""

import argparse
import sys
import time

import torch
from scenes import draw_scenes
from torch import Tensor, nn
from torch.nn import functional as F

import cacseg

CLASSES, LIGHT = 6, 0.35


class Network(nn.Module):
    """Features at half resolution, then a classifier: a convolution, or ours in its place."""

    def __init__(self, context: bool) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 3, stride=2, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
        )
        self.classifier = cacseg.ContextAwareClassifier(64, CLASSES) if context else nn.Conv2d(64, CLASSES, 1)
        self.objective = cacseg.ContextLoss()
        self.context = context

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images))

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        features = self.features(images)
        if self.context:
            return self.objective(self.classifier(features, labels), labels)["total"]
        return cacseg.upsampled_cross_entropy(self.classifier(features), labels)


def mean_iou(network: Network, images: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        scores = F.interpolate(network.eval()(images), size=labels.shape[1:], mode="bilinear")
    pairs = torch.bincount((labels * CLASSES + scores.argmax(1)).flatten(), minlength=CLASSES**2)
    confusion = pairs.view(CLASSES, CLASSES).float()
    hits = confusion.diag()
    return float((hits / (confusion.sum(0) + confusion.sum(1) - hits)).mean())


def train(context: bool, seed: int, steps: int) -> float:
    torch.manual_seed(seed)
    network, kind = Network(context), "context-aware" if context else "fixed"
    optimiser = torch.optim.AdamW(network.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.01, steps)
    for step in range(steps):
        images, labels = draw_scenes(8, seed=1000 * (seed + 1) + step, classes=CLASSES, light=LIGHT)
        loss = network.train().loss(images, labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if sys.stdout.isatty():
            print(f"\r  {kind:>13} classifier, seed {seed}: step {step + 1}/{steps}, loss {loss.item():.3f}  ", end="")
    score = mean_iou(network, *draw_scenes(64, seed=0, classes=CLASSES, light=LIGHT))
    print(f"\r  {kind:>13} classifier, seed {seed}: mIoU {100 * score:.1f}{'':30}", flush=True)
    return score


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    start = time.perf_counter()
    scores = {
        context: torch.tensor([train(context, seed, arguments.steps) for seed in range(arguments.seeds)])
        for context in (False, True)
    }
    print(f"\nmIoU on 64 scenes never trained on, {arguments.steps} steps of 8, {arguments.seeds} seeds")
    for context, values in scores.items():
        listed = ", ".join(f"{100 * value:.1f}" for value in values.tolist())
        print(f"  {'context-aware' if context else 'fixed':>13}: {100 * values.mean():.1f}   ({listed})")
    print(f"{time.perf_counter() - start:.0f} s on {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
