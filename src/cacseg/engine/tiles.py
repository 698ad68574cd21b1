"""Large images in tiles that share one context.

A first pass over the tiles adds up each class's weighted features; the image's classifier is made once, from all of
them; a second pass applies it. Tiles overlap, and where they do their logits are blended. Tiles begin at multiples of
the network's stride, so that their features lie on the grid of the whole image's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from cacseg import designs, functional
from cacseg.classifier import ContextAwareClassifier
from cacseg.engine.context import Pool, classifier_of, logits_of
from cacseg.engine.inference import Tiling
from cacseg.models.model import SegmentationModel

HALO = 3 / 8  # of an overlap at the inner edge of a tile, which takes no part: its features saw the edge
ROWS = 128  # pixels, of scores at full size that are in memory at once


class Box(NamedTuple):
    """Pixels from top and left up to, but without, bottom and right."""

    top: int
    left: int
    bottom: int
    right: int


class Source(Protocol):
    """An image of which parts can be read."""

    @property
    def height(self) -> int: ...

    @property
    def width(self) -> int: ...

    def read(self, box: Box) -> Float[Tensor, "1 c h w"]:
        """Normalised pixels, on the model's device."""
        ...


@dataclass(frozen=True)
class Axis:
    """The tiles along one side of an image."""

    side: int
    tile: int
    overlap: int

    @property
    def starts(self) -> range:
        return range(0, max(1, self.side - self.overlap), self.tile - self.overlap)

    def span(self, index: int) -> tuple[int, int]:
        """What a tile reads."""
        start = self.starts[index]
        return start, min(start + self.tile, self.side)

    def finished(self, index: int) -> tuple[int, int]:
        """What is known when a tile and those before it are done: up to where the next one begins."""
        last = index + 1 == len(self.starts)
        return self.starts[index], self.side if last else self.starts[index + 1]

    def weights(self, index: int, places: Tensor) -> Tensor:
        """The share of a tile in the blend at some places, in pixels; the shares of all tiles add up to 1."""
        share = self._ramp(index, places)
        return share if index + 1 == len(self.starts) else share * (1.0 - self._ramp(index + 1, places))

    def _ramp(self, index: int, places: Tensor) -> Tensor:
        """From 0 to 1 in the middle of the overlap with the tile before."""
        if index == 0:
            return torch.ones_like(places)
        if self.overlap == 0:
            return (places >= self.starts[index]).to(places.dtype)
        share = (places - self.starts[index]) / self.overlap
        return ((share - HALO) / (1.0 - 2.0 * HALO)).clamp(0.0, 1.0)


class Part(NamedTuple):
    """Scores of a box of the image, at its size: one map for each output."""

    box: Box
    scores: tuple[Float[Tensor, "n h w"], ...]


class TiledImage:
    """One image, cut into tiles, before a model; `outputs` are those of `SegmentationModel.all_logits`."""

    def __init__(self, model: SegmentationModel, source: Source, tiling: Tiling, outputs: Sequence[str]) -> None:
        if "oracle" in outputs:
            raise ValueError("the oracle sees images whole. Leave out --tile or --oracle.")
        # The mean is made of blended logits, the others are blended.
        self.outputs, both = tuple(outputs), ("plain", "context")
        self._blended = tuple(name for name in both if name in outputs or "mean" in outputs)
        adapts = isinstance(model.classifier, ContextAwareClassifier) and "context" in self._blended
        if adapts and tiling.context == "image" and model.num_classes == 1:
            raise ValueError("tiles with the context of the image need a model of two classes or more; got one logit.")
        self.model, self.source, self.tiling = model, source, tiling
        self.rows, self.columns = (Axis(side, tiling.tile, tiling.overlap) for side in (source.height, source.width))
        self.needs_context = adapts and tiling.context == "image"
        self.stride = 0  # pixels from one feature to the next, known after the first tile
        self._kept: dict[tuple[int, int], Tensor] = {}

    @property
    def passes(self) -> int:
        return 2 if self.needs_context else 1

    @property
    def tiles(self) -> int:
        return len(self.rows.starts) * len(self.columns.starts)

    @torch.no_grad()
    def parts(self, step: Callable[[], None] = lambda: None) -> Iterator[Part]:
        """All scores, each pixel once, in bands from the top; `step` is called after each tile of each pass."""
        own = self._own_classifier(step) if self.needs_context else None
        above: dict[int, Tensor] = {}  # logits of the tiles of the band before, as far as this band needs them
        for row in range(len(self.rows.starts)):
            below: dict[int, Tensor] = {}
            left: Tensor | None = None
            for column in range(len(self.columns.starts)):
                logits = self._logits(self._features(row, column), own)
                self._kept.pop((row, column), None)
                tiles = {(row, column): logits}
                tiles |= {} if left is None else {(row, column - 1): left}
                tiles |= {(row - 1, place): above[place] for place in (column - 1, column) if place in above}
                yield from self._blend(tiles, row, column)
                if row + 1 < len(self.rows.starts):
                    first = (self.rows.starts[row + 1] - self.rows.starts[row]) // self.stride
                    below[column] = logits[:, max(0, first - 1) :].clone()
                left = logits
                step()
            above = below

    def _own_classifier(self, step: Callable[[], None]) -> Float[Tensor, "1 n d"]:
        """A_p of Eq. (5), from the features of all tiles, each cell by its share in the blend."""
        classifier, pool, held = self.model.classifier, Pool(), 0
        assert isinstance(classifier, ContextAwareClassifier)
        if designs.needs_prototypes(classifier.context_design):
            for row in range(len(self.rows.starts)):
                for column in range(len(self.columns.starts)):
                    features = self._features(row, column)
                    weights = [
                        axis.weights(index, self._cell_places(axis, index, length, features.device))
                        for axis, index, length in (
                            (self.rows, row, features.shape[2]),
                            (self.columns, column, features.shape[3]),
                        )
                    ]
                    plain = classifier.plain_logits(features)[0].flatten(1)
                    pool.add(features[0].flatten(1), plain, (weights[0][:, None] * weights[1]).flatten())
                    if held + features.nbytes <= self.tiling.keep * 2**20:
                        held += features.nbytes
                        self._kept[row, column] = features
                    step()
        return classifier_of(pool, classifier)

    def _cell_places(self, axis: Axis, index: int, length: int, device: torch.device) -> Tensor:
        """The centres of a tile's features, in pixels of the image."""
        return axis.starts[index] + (torch.arange(length, device=device, dtype=torch.float32) + 0.5) * self.stride

    def _features(self, row: int, column: int) -> Float[Tensor, "1 d h w"]:
        if (row, column) in self._kept:
            return self._kept[row, column]
        (top, bottom), (left, right) = self.rows.span(row), self.columns.span(column)
        features = self.model.features(self.source.read(Box(top, left, bottom, right)))
        if self.stride == 0:
            self.stride = self.model.stride or 2 ** round(_log2((bottom - top) / features.shape[2]))
        return features

    def _logits(self, features: Tensor, own: Tensor | None) -> Float[Tensor, "n h w"]:
        """Of all blended outputs, one after another along n."""
        return torch.cat([self._logits_of(name, features, own)[0].float() for name in self._blended])

    def _logits_of(self, name: str, features: Tensor, own: Tensor | None) -> Float[Tensor, "1 n h w"]:
        classifier = self.model.classifier
        if not isinstance(classifier, ContextAwareClassifier):
            return classifier(features)
        if name == "plain":
            return classifier.plain_logits(features)
        return classifier(features) if own is None else logits_of(own, features, classifier)

    def _outputs(self, blended: Float[Tensor, "n h w"]) -> tuple[Float[Tensor, "n h w"], ...]:
        found = dict(zip(self._blended, blended.chunk(len(self._blended)), strict=True))
        if "mean" in self.outputs:
            found["mean"] = functional.mean_logits(found["plain"][None], found["context"][None])[0]
        return tuple(found[name] for name in self.outputs)

    def _blend(self, tiles: dict[tuple[int, int], Tensor], row: int, column: int) -> Iterator[Part]:
        (top, bottom), (left, right) = self.rows.finished(row), self.columns.finished(column)
        for first in range(top, bottom, ROWS):
            box = Box(first, left, min(first + ROWS, bottom), right)
            own = tiles[row, column]
            total = own.new_zeros((own.shape[0], box.bottom - box.top, box.right - box.left))
            for place, logits in tiles.items():
                vertical, shares, cells = self._overlap(self.rows, place[0], logits.shape[1], box.top, box.bottom)
                horizontal, more, others = self._overlap(self.columns, place[1], logits.shape[2], box.left, box.right)
                if len(shares) and len(more):
                    found = _sample(_sample(logits, cells.to(logits.device), 1), others.to(logits.device), 2)
                    total[:, vertical, horizontal] += found * (shares[:, None] * more).to(logits.device)
            yield Part(box, self._outputs(total))

    def _overlap(self, axis: Axis, index: int, length: int, start: int, end: int) -> tuple[slice, Tensor, Tensor]:
        """Where a tile has a share in the pixels from start to end, its shares there, and its features' places."""
        pixels = torch.arange(start, end, dtype=torch.float32) + 0.5
        shares = axis.weights(index, pixels)
        kept = shares.nonzero().flatten().tolist()
        where = slice(kept[0], kept[-1] + 1) if kept else slice(0, 0)
        return where, shares[where], self._cells(axis, index, length, pixels[where])

    def _cells(self, axis: Axis, index: int, length: int, places: Tensor) -> Tensor:
        """Where pixels lie among the features of a tile, of which only the last `length` may be there.

        As where the whole image's logits are upsampled: by the stride, or to the image's own size.
        """
        start, end = axis.span(index)
        whole = -(-axis.side // self.stride)
        cell = self.stride if self.model.stride is not None else axis.side / whole
        missing = -(-(end - start) // self.stride) - length
        return places / cell - 0.5 - start // self.stride - missing


def _sample(maps: Tensor, places: Tensor, dim: int) -> Tensor:
    """Values between those of a dimension, the outer ones beyond its ends."""
    places = places.clamp(0.0, maps.shape[dim] - 1.0)
    before = places.floor().long().clamp_max(max(0, maps.shape[dim] - 2))
    share = (places - before)[:, None] if dim == 1 else places - before
    after = (before + 1).clamp_max(maps.shape[dim] - 1)
    return torch.lerp(maps.index_select(dim, before), maps.index_select(dim, after), share)


def _log2(value: float) -> float:
    return torch.log2(torch.tensor(value)).item()
