"""A small 3-D U-Net on generated volumes, with a fixed and with a context-aware classifier.

    python examples/volumes.py [--steps 60]         half a minute on 2 cores

Every volume has an offset and a noise of its own, as scans of different machines have. Any network that gives features
[b, d, depth, height, width] takes the classifier in the same way, MONAI's among them; for theirs also `cacseg.convert`.
"""

import argparse

import torch
from torch import Tensor, nn

import cacseg

CLASSES, SIDE, CHANNELS = 4, 24, 16


def draw_volumes(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Volumes [count, 1, 24, 24, 24] and labels: eight regions of random classes, brighter or darker by volume."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.rand(count, 8, 3, generator=generator) * SIDE
    classes = torch.randint(0, CLASSES, (count, 8), generator=generator)
    grid = torch.stack(torch.meshgrid(*[torch.arange(SIDE)] * 3, indexing="ij"), -1).float()
    labels = classes.gather(1, torch.cdist(grid.view(1, -1, 3).expand(count, -1, -1), centres).argmin(-1))
    labels = labels.view(count, SIDE, SIDE, SIDE)
    shift = 0.4 * torch.randn(count, 1, 1, 1, generator=generator)
    values = labels / 2.0 + shift + 0.2 * torch.randn(labels.shape, generator=generator)
    return values[:, None], labels


def block(channels_in: int, channels_out: int) -> nn.Sequential:
    convolution = nn.Conv3d(channels_in, channels_out, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm3d(channels_out), nn.ReLU())


class UNet3d(nn.Module):
    """Two levels, then a classifier: a convolution, or ours in its place."""

    def __init__(self, context: bool) -> None:
        super().__init__()
        self.fine, self.coarse = block(1, CHANNELS), nn.Sequential(nn.MaxPool3d(2), block(CHANNELS, 2 * CHANNELS))
        self.up = nn.Upsample(scale_factor=2, mode="trilinear")
        self.merge = block(3 * CHANNELS, CHANNELS)
        self.classifier = (
            cacseg.ContextAwareClassifier(CHANNELS, CLASSES) if context else nn.Conv3d(CHANNELS, CLASSES, 1)
        )
        self.objective = cacseg.ContextLoss()

    def features(self, volumes: Tensor) -> Tensor:
        fine = self.fine(volumes)
        return self.merge(torch.cat([fine, self.up(self.coarse(fine))], 1))

    def forward(self, volumes: Tensor) -> Tensor:
        return self.classifier(self.features(volumes))

    def loss(self, volumes: Tensor, labels: Tensor) -> Tensor:
        features = self.features(volumes)
        if isinstance(self.classifier, cacseg.ContextAwareClassifier):
            return self.objective(self.classifier(features, labels), labels)["total"]
        return nn.functional.cross_entropy(self.classifier(features), labels)


def train(context: bool, steps: int) -> float:
    torch.manual_seed(0)
    network = UNet3d(context)
    optimiser = torch.optim.AdamW(network.parameters(), lr=3e-3)
    for step in range(steps):
        loss = network.loss(*draw_volumes(2, seed=step + 1))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    volumes, labels = draw_volumes(8, seed=0)
    with torch.no_grad():
        return float((network.eval()(volumes).argmax(1) == labels).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    for name, context in (("plain", False), ("context", True)):
        print(f"{name} classifier: {train(context, steps):.1%} of the voxels are right", flush=True)


if __name__ == "__main__":
    main()
