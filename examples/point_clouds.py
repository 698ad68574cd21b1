"""A small point network on clouds of different sizes, with a fixed and with a context-aware classifier.

    python examples/point_clouds.py [--steps 60]    half a minute on 2 cores

Clouds are packed: the points of all clouds of a batch in one table [N, ...], and `offsets` [b + 1], where each begins.
Every cloud is lit by a colour of its own.
"""

import argparse
from itertools import pairwise

import torch
from torch import Tensor, nn

import cacseg

CLASSES, CHANNELS, NEIGHBOURS = 5, 32, 8
COLOURS = torch.tensor([[0.9, 0.2, 0.2], [0.2, 0.8, 0.3], [0.2, 0.3, 0.9], [0.8, 0.8, 0.2], [0.7, 0.3, 0.8]])


def draw_clouds(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Places [N, 3], colours [N, 3] and labels [N] of clouds of 200 to 400 points, and their offsets [count + 1]."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(200, 401, (count,), generator=generator)
    places, colours, labels = [], [], []
    for size in sizes.tolist():
        points, centres = torch.rand(size, 3, generator=generator), torch.rand(8, 3, generator=generator)
        classes = torch.randint(0, CLASSES, (8,), generator=generator)[torch.cdist(points, centres).argmin(1)]
        light = 0.35 * torch.randn(3, generator=generator)
        places.append(points)
        colours.append(COLOURS[classes] + light + 0.2 * torch.randn(size, 3, generator=generator))
        labels.append(classes)
    return torch.cat(places), torch.cat(colours), torch.cat(labels), torch.cat([torch.zeros(1).long(), sizes.cumsum(0)])


def find_neighbours(places: Tensor, offsets: Tensor) -> Tensor:
    """The rows [N, 8] of the nearest points of the same cloud."""
    edges = offsets.tolist()
    return torch.cat(
        [
            first + torch.cdist(places[first:last], places[first:last]).topk(NEIGHBOURS, largest=False).indices
            for first, last in pairwise(edges)
        ]
    )


class PointNetwork(nn.Module):
    """Each point's colour and what its neighbours look like from there, then a classifier."""

    def __init__(self, context: bool) -> None:
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(9, CHANNELS), nn.ReLU(), nn.Linear(CHANNELS, CHANNELS))
        self.point = nn.Sequential(nn.Linear(CHANNELS, CHANNELS), nn.BatchNorm1d(CHANNELS), nn.ReLU())
        self.classifier = cacseg.ContextAwareClassifier(CHANNELS, CLASSES) if context else nn.Linear(CHANNELS, CLASSES)
        self.objective = cacseg.ContextLoss()

    def features(self, places: Tensor, colours: Tensor, offsets: Tensor) -> Tensor:
        near = find_neighbours(places, offsets)
        own = colours[:, None].expand(-1, NEIGHBOURS, -1)
        edges = torch.cat([places[near] - places[:, None], colours[near], own], -1)  # [N, 8, 9]
        return self.point(self.edge(edges).mean(1))

    def forward(self, places: Tensor, colours: Tensor, offsets: Tensor) -> Tensor:
        features = self.features(places, colours, offsets)
        if isinstance(self.classifier, cacseg.ContextAwareClassifier):
            return self.classifier(features, offsets=offsets)
        return self.classifier(features)

    def loss(self, places: Tensor, colours: Tensor, labels: Tensor, offsets: Tensor) -> Tensor:
        features = self.features(places, colours, offsets)
        if isinstance(self.classifier, cacseg.ContextAwareClassifier):
            return self.objective(self.classifier(features, labels, offsets), labels)["total"]
        return nn.functional.cross_entropy(self.classifier(features), labels)


def train(context: bool, steps: int) -> float:
    torch.manual_seed(0)
    network = PointNetwork(context)
    optimiser = torch.optim.AdamW(network.parameters(), lr=3e-3)
    for step in range(steps):
        loss = network.loss(*draw_clouds(8, seed=step + 1))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    places, colours, labels, offsets = draw_clouds(32, seed=0)
    with torch.no_grad():
        return float((network.eval()(places, colours, offsets).argmax(1) == labels).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    for name, context in (("plain", False), ("context", True)):
        print(f"{name} classifier: {train(context, steps):.1%} of the points are right", flush=True)


if __name__ == "__main__":
    main()
