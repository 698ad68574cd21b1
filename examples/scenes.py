"""Scenes to learn from, for the examples: nothing to download."""

import torch
from torch import Tensor

SIZE = 64
COLOURS = torch.tensor(
    [[0.9, 0.2, 0.2], [0.2, 0.8, 0.3], [0.2, 0.3, 0.9], [0.8, 0.8, 0.2], [0.7, 0.3, 0.8], [0.4, 0.4, 0.4]]
)


def draw_scenes(count: int, seed: int, *, classes: int = 4, light: float = 0.2) -> tuple[Tensor, Tensor]:
    """Images [count, 3, 64, 64] and labels: nine regions of random classes, of up to six, under a random light.

    Every scene is lit by a colour of its own, so a class looks different from image to image.
    """
    generator = torch.Generator().manual_seed(seed)
    centres = torch.rand(count, 9, 2, generator=generator) * SIZE
    classes_of_regions = torch.randint(0, classes, (count, 9), generator=generator)
    grid = torch.stack(torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij"), -1).float()
    nearest = torch.cdist(grid.view(1, -1, 2).expand(count, -1, -1), centres).argmin(-1)
    labels = classes_of_regions.gather(1, nearest).view(count, SIZE, SIZE)
    shift = light * torch.randn(count, 3, 1, 1, generator=generator)
    noise = 0.15 * torch.randn(count, 3, SIZE, SIZE, generator=generator)
    return COLOURS[labels].permute(0, 3, 1, 2) + shift + noise, labels
