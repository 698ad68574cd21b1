"""Little landscapes, drawn from (seed, split, index): the same pixels on every machine, nothing on disk.

Each scene has a light of its own, added to every colour and as large as the differences between the classes: grass in
one picture has the colour of water in another. A classifier that is the same for all images must err; one that looks
at the image first can do better. The data are made for that, so a gain on them says nothing about photographs.

Every number comes from PCG64's doubles through + - * / sqrt and comparisons alone, element by element, all of which
IEEE 754 rounds in one way; sines, sums and normal deviates differ between machines and are not used.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cacseg.data.label_map import IGNORE
from cacseg.data.sample import Sample
from cacseg.runtime.colours import Colour

Floats = npt.NDArray[np.float64]

CLASSES = ("sky", "hill", "meadow", "water", "road", "house", "tree", "balloon")
# Colours in neutral light, of which a scene keeps the direction: 0 to 1.
COLOURS = np.array(
    [
        [0.35, 0.60, 0.95],
        [0.55, 0.35, 0.75],
        [0.45, 0.85, 0.25],
        [0.10, 0.30, 0.70],
        [0.50, 0.50, 0.50],
        [0.90, 0.55, 0.25],
        [0.10, 0.45, 0.15],
        [0.95, 0.20, 0.45],
    ]
)
PALETTE: tuple[Colour, ...] = (
    *((135, 206, 250), (147, 112, 176), (124, 205, 80), (30, 90, 180)),
    *((128, 128, 128), (230, 145, 70), (34, 120, 50), (235, 60, 110)),
)
LENGTHS = {"train": 1000, "val": 200}
CONTRAST, LIGHT = 0.50, 0.50  # of the classes' colours, and of the light added to them


class SyntheticData:
    """Scenes of one split. `size` is (height, width); scenes of another length or size are other scenes."""

    name = "synthetic"
    class_names = CLASSES
    palette = PALETTE
    ignore_index = IGNORE

    def __init__(
        self, split: str = "train", *, size: tuple[int, int] = (128, 128), length: int | None = None, seed: int = 0
    ) -> None:
        if split not in LENGTHS:
            raise ValueError(f"there is no split {split!r} of 'synthetic'. There are {', '.join(LENGTHS)}.")
        if min(size) < 16 or max(size) > 4096:
            raise ValueError(f"scenes are 16 to 4096 pixels high and wide; got size={size}.")
        if length is not None and length < 1:
            raise ValueError(f"length must be at least 1; got {length}.")
        if seed < 0:
            raise ValueError(f"seed must not be negative; got {seed}.")
        self.split, self.size, self.seed = split, size, seed
        self.length = LENGTHS[split] if length is None else length

    def __len__(self) -> int:
        return self.length

    def image_name(self, index: int) -> str:
        self._check(index)
        return f"{index:06d}"

    def read(self, index: int) -> Sample:
        self._check(index)
        numbers = np.random.Generator(np.random.PCG64([self.seed, list(LENGTHS).index(self.split), index]))
        height, width = self.size
        labels = _draw_labels(numbers, height, width)
        return Sample(_paint(numbers, labels), labels)

    def _check(self, index: int) -> None:
        if not 0 <= index < self.length:
            raise IndexError(f"index must be in [0, {self.length}); got {index}.")


class Grid(NamedTuple):
    """Coordinates of pixel centres: y downwards in [0, 1], x in [0, width / height]."""

    y: Floats  # [H, 1]
    x: Floats  # [1, W]
    end: float  # the largest x


def _draw_labels(numbers: np.random.Generator, height: int, width: int) -> npt.NDArray[np.uint8]:
    grid = Grid((np.arange(height)[:, None] + 0.5) / height, (np.arange(width)[None] + 0.5) / height, width / height)
    labels = np.zeros((height, width), np.uint8)
    horizon = 0.30 + 0.25 * numbers.random()
    ridge = horizon - 0.22 * _wave(numbers, width, 5)
    labels[(grid.y > ridge) & (grid.y <= horizon)] = CLASSES.index("hill")
    ground = np.broadcast_to(grid.y > horizon, labels.shape)
    labels[ground] = CLASSES.index("meadow")
    for _ in range(_count(numbers, 1, 2)):  # ponds
        centre = (horizon + (1.0 - horizon) * numbers.random(), grid.end * numbers.random())
        radii = (0.06 + 0.10 * numbers.random(), 0.15 + 0.30 * numbers.random())
        labels[_ellipse(grid, centre, radii) & ground] = CLASSES.index("water")
    if numbers.random() < 0.8:
        labels[_road(numbers, grid, horizon) & ground] = CLASSES.index("road")
    things = [(horizon + (0.95 - horizon) * numbers.random(), numbers.random()) for _ in range(_count(numbers, 3, 7))]
    for base, kind in sorted(things):  # far ones first, so that near ones stand before them
        across, near = grid.end * numbers.random(), 0.5 + base
        if kind < 0.5:
            tall, wide = near * (0.10 + 0.08 * numbers.random()), near * (0.07 + 0.06 * numbers.random())
            crown = _ellipse(grid, (base - 1.3 * tall, across), (tall, wide))
            trunk = (abs(grid.x - across) < 0.2 * wide) & (grid.y > base - tall) & (grid.y < base)
            labels[crown | trunk] = CLASSES.index("tree")
        else:
            tall, wide = near * (0.10 + 0.10 * numbers.random()), near * (0.08 + 0.08 * numbers.random())
            walls = (abs(grid.x - across) < wide) & (grid.y > base - tall) & (grid.y < base)
            roof = (grid.y > base - 1.6 * tall + 0.6 * tall * abs(grid.x - across) / wide) & (grid.y <= base - tall)
            labels[walls | (roof & (abs(grid.x - across) < wide))] = CLASSES.index("house")
    for _ in range(_count(numbers, 0, 3)):
        radius = 0.04 + 0.07 * numbers.random()
        centre = (0.05 + 0.75 * numbers.random(), grid.end * numbers.random())
        labels[_ellipse(grid, centre, (1.15 * radius, radius))] = CLASSES.index("balloon")
    return labels


def _road(numbers: np.random.Generator, grid: Grid, horizon: float) -> npt.NDArray[np.bool_]:
    """From a point on the horizon to the lower edge, wider the nearer it is."""
    far, near = grid.end * numbers.random(), grid.end * numbers.random()
    width = 0.10 + 0.12 * numbers.random()
    depth = (grid.y - horizon) / (1.0 - horizon)
    middle = far + (near - far) * depth
    return abs(grid.x - middle) < 0.01 + width * depth


def _paint(numbers: np.random.Generator, labels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Colours under the scene's light, shading, the texture of each class, grain."""
    height, width = labels.shape
    light = LIGHT * (numbers.random(3) - 0.5)
    contrast = 0.8 + 0.4 * numbers.random()
    coarse = _smooth_noise(numbers, height, width, 6)
    fine = _smooth_noise(numbers, height, width, 24)
    rows, columns = np.arange(height)[:, None] * (128.0 / height), np.arange(width)[None] * (128.0 / height)
    slope = 0.10 * (numbers.random() - 0.5)
    shade = slope * (np.arange(width)[None] / width - 0.5) + 0.05 * coarse
    amounts = np.array([0.01, 0.06, 0.04, 0.03, 0.015, 0.02, 0.10, 0.01])[labels]
    shade = shade + amounts * fine
    # What a class looks like close to: waves on water, courses of bricks, stripes of a balloon.
    shade = shade + np.where(labels == 3, 0.05 * _triangle(rows / 5.0 + fine), 0.0)
    shade = shade + np.where(labels == 5, 0.05 * _triangle((rows + 0.01 * columns) / 7.0), 0.0)
    shade = shade + np.where(labels == 7, 0.05 * _triangle(columns / 6.0), 0.0)
    shade = shade + np.where(labels == 2, 0.04 * _triangle((rows + columns) / 3.0 + 2.0 * fine), 0.0)
    colours = 0.5 + CONTRAST * contrast * (COLOURS - 0.5) + light  # [n, 3]
    grain = 0.05 * (numbers.random((height, width, 3)) - 0.5)
    values = 255.0 * (colours[labels] + shade[..., None] + grain) + 0.5
    return np.floor(np.minimum(np.maximum(values, 0.0), 255.0)).astype(np.uint8)


def _count(numbers: np.random.Generator, low: int, high: int) -> int:
    return low + int((high - low + 1) * numbers.random())


def _ellipse(grid: Grid, centre: tuple[float, float], radii: tuple[float, float]) -> npt.NDArray[np.bool_]:
    down, across = (grid.y - centre[0]) / radii[0], (grid.x - centre[1]) / radii[1]
    return down * down + across * across < 1.0


def _triangle(values: Floats) -> Floats:
    """A wave of period 1 between -1 and 1, straight between its turns."""
    return 4.0 * abs(values - np.floor(values) - 0.5) - 1.0


def _positions(length: int, cells: int) -> tuple[npt.NDArray[np.intp], Floats]:
    places = np.arange(length) * (cells / length)
    left = np.floor(places)
    rest = places - left
    return left.astype(np.intp), rest * rest * (3.0 - 2.0 * rest)  # a smooth step


def _wave(numbers: np.random.Generator, length: int, cells: int) -> Floats:
    """[length] in [0, 1): random heights, joined smoothly."""
    heights = numbers.random(cells + 1)
    left, rest = _positions(length, cells)
    return heights[left] * (1.0 - rest) + heights[left + 1] * rest


def _smooth_noise(numbers: np.random.Generator, height: int, width: int, cells: int) -> Floats:
    """[H, W] in [-1, 1): a coarse grid of random values, joined smoothly."""
    values = 2.0 * numbers.random((cells + 1, cells + 1)) - 1.0
    (top, down), (left, across) = _positions(height, cells), _positions(width, cells)
    rows = values[top] * (1.0 - down)[:, None] + values[top + 1] * down[:, None]
    return rows[:, left] * (1.0 - across) + rows[:, left + 1] * across
