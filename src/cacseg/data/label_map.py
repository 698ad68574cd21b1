"""Maps raw values of a label file to classes; a value that is neither a class nor ignored is an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cv2
import numpy as np
import numpy.typing as npt

from cacseg._checks import first_few
from cacseg.data.decode import Labels
from cacseg.runtime.colours import Colour

IGNORE = 255  # in every sample, whatever the files say
MASK_HINT = "Where 255 marks the class in the label files, write 1 there: 255 is ignored."


class LabelMap:
    """What each raw value, and each colour where there are colours, stands for.

    `table` maps a raw value to a class or to IGNORE; `known` says which raw values may occur at all. `by_colour`: files
    with a palette are read by its colours, whatever their indices are, and grey ones as colours too.
    """

    def __init__(
        self,
        classes_of: Mapping[int, int],
        *,
        num_classes: int,
        colours: Sequence[Colour] = (),
        ignored_colours: Sequence[Colour] = (),
        by_colour: bool = False,
    ) -> None:
        length = max(256, max(classes_of) + 1)
        self.num_classes = num_classes
        self.table = np.full(length, IGNORE, np.uint8)
        self.known = np.zeros(length, np.uint8)
        for value, label in classes_of.items():
            self.table[value], self.known[value] = label, 1
        self._unknown = 1 - self.known[:256]
        self._identity = bool((self.table[:256] == np.arange(256))[self.known[:256] == 1].all())
        packed = [_pack(np.array(colour, np.int32)).item() for colour in (*colours, *ignored_colours)]
        labels = [*range(len(colours)), *([IGNORE] * len(ignored_colours))]
        order = np.argsort(packed, kind="stable")
        self._codes = np.array(packed, np.int32)[order]
        self._labels_of_codes = np.array(labels, np.uint8)[order]
        self._colours = tuple(colours)
        self._by_colour = by_colour

    def __call__(self, raw: Labels, where: str) -> npt.NDArray[np.uint8]:
        """Classes, uint8 [H, W]."""
        if raw.indices is not None:
            if self._by_colour:
                return self._from_palette(raw.indices, raw.palette, where)
            if raw.palette is not None and self._colours:
                self._check_palette(raw.indices, raw.palette, where)
            return self._from_indices(raw.indices, where)
        assert raw.colours is not None
        if len(self._codes):
            return self._from_colours(raw.colours, where)
        coloured = (raw.colours != raw.colours[..., :1]).any(-1)
        if not coloured.any():  # an index file saved with three channels
            return self._from_indices(np.ascontiguousarray(raw.colours[..., 0]), where)
        first = raw.colours[coloured][0].tolist()
        raise ValueError(
            f"{where} holds colours, {tuple(first)} among them, and nothing says which class they stand for. "
            "Write the colour behind each class in classes.txt ('road 128 64 128'), or give an index PNG."
        )

    def _from_indices(self, values: npt.NDArray[np.integer], where: str) -> npt.NDArray[np.uint8]:
        if values.dtype == np.uint8:
            if cv2.countNonZero(cv2.LUT(values, self._unknown)):
                raise self._out_of_range(values, where)
            return np.asarray(values if self._identity else cv2.LUT(values, self.table[:256]), np.uint8)
        low, high = int(values.min()), int(values.max())
        if low < 0 or high >= len(self.known) or not self.known[values].all():
            raise self._out_of_range(values, where)
        return self.table[values]

    def _out_of_range(self, values: npt.NDArray[np.integer], where: str) -> ValueError:
        found, counts = np.unique(values, return_counts=True)
        allowed = np.flatnonzero(self.known)
        wrong = ~np.isin(found, allowed)
        ignored = allowed[self.table[allowed] == IGNORE].tolist()
        classes = allowed[self.table[allowed] != IGNORE]
        gaps = " with gaps" if len(classes) != classes[-1] - classes[0] + 1 else ""
        return ValueError(
            f"{where} holds the label {first_few(found[wrong].tolist())} in {counts[wrong].sum()} of {values.size} "
            f"pixels. The {self.num_classes} classes are {classes[0]} to {classes[-1]}{gaps}; ignored is "
            f"{first_few(ignored) or 'nothing'}. Mend the file, the list of classes or the ignore index."
        )

    def _from_colours(self, colours: npt.NDArray[np.uint8], where: str) -> npt.NDArray[np.uint8]:
        codes = cv2.cvtColor(colours, cv2.COLOR_RGB2BGRA).view("<u4").ravel()  # as _pack, below an opaque 255
        # Looked up once for each run of equal pixels, of which there are fewer.
        starts = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))
        lengths = np.diff(starts, append=len(codes))
        labels = self._of_codes((codes[starts] & 0xFFFFFF).astype(np.int32), lengths, where)
        return np.repeat(labels, lengths).reshape(colours.shape[:2])

    def _from_palette(
        self, indices: npt.NDArray[np.integer], palette: npt.NDArray[np.uint8] | None, where: str
    ) -> npt.NDArray[np.uint8]:
        table = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, 1) if palette is None else palette
        if int(indices.max(initial=0)) >= len(table):
            raise ValueError(f"{where} has more values than colours. Export it again as a mask in colours.")
        codes, values = _pack(table.astype(np.int32)), indices.astype(np.uint8, copy=False)
        labels, unknown = np.zeros(256, np.uint8), np.zeros(256, np.uint8)
        unknown[: len(table)] = ~np.isin(codes, self._codes)
        if cv2.countNonZero(cv2.LUT(values, unknown)):
            used, counts = np.unique(values, return_counts=True)
            self._of_codes(codes[used], counts, where)  # which refuses one
        labels[: len(table)] = self._labels_of_codes[np.searchsorted(self._codes, codes).clip(max=len(self._codes) - 1)]
        return np.asarray(cv2.LUT(values, labels), np.uint8)

    def _of_codes(
        self, codes: npt.NDArray[np.int32], pixels: npt.NDArray[np.integer], where: str
    ) -> npt.NDArray[np.uint8]:
        """The labels of packed colours, each of so many pixels."""
        places = np.searchsorted(self._codes, codes).clip(max=len(self._codes) - 1)
        wrong = self._codes[places] != codes
        if wrong.any():
            strange = np.unique(codes[wrong])
            listed = ", ".join(f"({code >> 16}, {code >> 8 & 255}, {code & 255})" for code in strange[:3].tolist())
            raise ValueError(
                f"{where} holds the colour {listed}{', ...' if len(strange) > 3 else ''} in {int(pixels[wrong].sum())} "
                f"of {int(pixels.sum())} pixels, which is no class of classes.txt. Add it there ('[ignore] R G B' for "
                "what is to be ignored), or mend the file (a resized or JPEG-compressed mask has mixed colours)."
            )
        return self._labels_of_codes[places]

    def _check_palette(self, indices: npt.NDArray[np.integer], palette: npt.NDArray[np.uint8], where: str) -> None:
        """A palette file whose colours are those of classes.txt in another order was numbered by some program."""
        for index in np.unique(indices).tolist():
            if index >= len(palette) or index >= len(self._colours):
                return
            colour = tuple(int(part) for part in palette[index])
            if colour != self._colours[index] and colour in self._colours:
                raise ValueError(
                    f"{where} shows index {index} as {colour}, the colour of class {self._colours.index(colour)} "
                    "in classes.txt. Convert the file to RGB if its colours count, or take the colours out of "
                    "classes.txt if its indices do."
                )


def identity_map(
    num_classes: int,
    ignore_index: int = IGNORE,
    colours: Sequence[Colour] = (),
    ignored_colours: Sequence[Colour] = (),
) -> LabelMap:
    """Values are classes already; `ignore_index` is ignored."""
    if 0 <= ignore_index < num_classes:
        raise ValueError(
            f"ignore_index must be no class number; {ignore_index} is one of the {num_classes} classes "
            f"(0 to {num_classes - 1}). Take the class out of the list, or give the value that marks ignored pixels."
        )
    if not 0 <= ignore_index <= 65535:
        raise ValueError(f"ignore_index must be a value that an image file can hold, 0 to 65535; got {ignore_index}.")
    values = {label: label for label in range(num_classes)} | {ignore_index: IGNORE}
    return LabelMap(values, num_classes=num_classes, colours=colours, ignored_colours=ignored_colours)


def _pack(colours: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    return colours[..., 0] << 16 | colours[..., 1] << 8 | colours[..., 2]
