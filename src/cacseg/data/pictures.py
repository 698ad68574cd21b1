"""Pictures of labels and predictions: contact sheets, legends, strips, changed pixels."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from cacseg._files import write_file
from cacseg.data.label_map import IGNORE
from cacseg.runtime.colours import Colour, Picture, colour

# Okabe and Ito's blue, orange and violet.
BETTER, WORSE, NEITHER = (0, 114, 178), (230, 159, 0), (204, 121, 167)
CHANGES = {"became right": BETTER, "became wrong": WORSE, "changed, wrong before and after": NEITHER}
Labels = npt.NDArray[np.uint8]  # [H, W]


def save_picture(path: str | Path, picture: Picture, *, overwrite: bool = False) -> None:
    """A PNG, or a file of the kind that the suffix says. Written atomically."""
    _save(path, Image.fromarray(picture), overwrite)


def contact_sheet(
    rows: Sequence[Sequence[Picture]], *, titles: Sequence[str] = (), names: Sequence[str] = (), height: int = 160
) -> Picture:
    """One picture of many: each row's pictures side by side, at one height; a column is as wide as its widest.

    `titles` stand over the columns, `names` under the rows.
    """
    if not rows or not all(rows) or len({len(row) for row in rows}) != 1:
        raise ValueError(f"a sheet has rows of one length; got {[len(row) for row in rows][:10]}.")
    scaled = [[_fit(picture, height) for picture in row] for row in rows]
    widths = [max(row[column].shape[1] for row in scaled) for column in range(len(rows[0]))]
    gap, line = 6, 18
    strips = [_strip(titles, widths, line, gap)] if titles else []
    for index, row in enumerate(scaled):
        wide = [*(width + gap for width in widths[:-1]), widths[-1]]  # each cell with the gap after it
        cells = [
            np.pad(picture, ((0, 0), (0, width - picture.shape[1]), (0, 0)), constant_values=255)
            for picture, width in zip(row, wide, strict=True)
        ]
        strips.append(np.concatenate(cells, axis=1))
        strips.append(_strip(names[index : index + 1], [sum(widths) + gap * (len(widths) - 1)], line, gap))
    return np.pad(np.concatenate(strips), ((gap, gap), (gap, gap), (0, 0)), constant_values=255)


def legend(names: Sequence[str], palette: Sequence[Colour], width: int) -> Picture:
    """Class names on their colours, as many in a line as the width holds."""
    cell, line = 150, 20
    columns = max(1, width // cell)
    lines = -(-len(names) // columns)
    picture = np.full((lines * line + 4, width, 3), 255, np.uint8)
    for index, (name, shade) in enumerate(zip(names, palette, strict=True)):
        top, left = index // columns * line + 2, index % columns * cell
        picture[top + 3 : top + 15, left + 2 : left + 20] = shade
        _write(picture, name[:18], left + 25, top + 13)
    return picture


def compare_masks(before: Labels, after: Labels, labels: Labels, ignore_index: int) -> dict[str, npt.NDArray[np.bool_]]:
    """Where `after` differs from `before`, by what became of it (the keys of CHANGES)."""
    changed = (before != after) & (labels != ignore_index)
    right = changed & (after == labels)
    wrong = changed & (before == labels)
    return dict(zip(CHANGES, (right, wrong, changed & ~right & ~wrong), strict=True))


def draw_changes(image: Picture, before: Labels, after: Labels, labels: Labels, ignore_index: int) -> Picture:
    """The image in pale grey with its changed pixels in colour; striped where both are wrong."""
    grey = cv2.resize(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), labels.shape[::-1], interpolation=cv2.INTER_AREA)
    picture = np.repeat((150 + grey // 3)[..., None], 3, axis=2).astype(np.uint8)
    rows, columns = np.indices(labels.shape)
    for title, where in compare_masks(before, after, labels, ignore_index).items():
        picture[where] = CHANGES[title]
        if CHANGES[title] == NEITHER:
            picture[where & ((rows + columns) % 6 < 2)] = (60, 60, 60)
    return picture


def draw_strip(
    image: Picture,
    labels: Labels,
    answers: Mapping[str, Labels],
    palette: Sequence[Colour],
    ignore_index: int = IGNORE,
) -> Picture:
    """input | truth | each answer, by its title; of two answers also where the second changes the first."""
    pictures = [image, colour(labels, palette), *(colour(one, palette) for one in answers.values())]
    titles = ["input", "truth", *answers]
    if len(answers) == 2:
        before, after = answers.values()
        pictures.append(draw_changes(image, before, after, labels, ignore_index))
        titles.append("blue: better, orange: worse")
    return contact_sheet([pictures], titles=titles)


def text_picture(
    text: str, width: int, height: int, ink: Colour = (0, 0, 0), background: Colour = (255, 255, 255)
) -> Picture:
    """Words in lines, as many as fit."""
    picture = np.empty((height, width, 3), np.uint8)
    picture[:] = background
    for place, line in enumerate(textwrap.wrap(text, max(1, (width - 8) // 7))[: max(1, (height - 6) // 15)]):
        _write(picture, line, 4, 15 * (place + 1), ink)
    return picture


def unique_colours(palette: Sequence[Colour]) -> list[Colour]:
    """The palette with the least change of blue that makes each colour unique, and none black, as ignored pixels are.

    A pixel's colour then tells its class; the eye sees no difference.
    """
    found: dict[Colour, None] = {(0, 0, 0): None}
    for red, green, blue in palette:
        nearest = sorted(range(256), key=lambda other: abs(other - blue))
        found[next(one for other in nearest if (one := (red, green, other)) not in found)] = None
    return list(found)[1:]


def _fit(picture: Picture, height: int) -> Picture:
    width = max(1, round(picture.shape[1] * height / picture.shape[0]))
    return np.asarray(cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA), np.uint8)


def _strip(texts: Sequence[str], widths: Sequence[int], height: int, gap: int) -> Picture:
    strip = np.full((height, sum(widths) + gap * (len(widths) - 1), 3), 255, np.uint8)
    left = 0
    for text, width in zip(texts, widths, strict=False):
        _write(strip, text[: max(1, width // 6)], left, height - 6)
        left += width + gap
    return strip


def _write(picture: Picture, text: str, left: int, base: int, ink: Colour = (0, 0, 0)) -> None:
    plain = text.encode("ascii", "replace").decode()  # OpenCV's strokes know no other letters
    cv2.putText(picture, plain, (left, base), cv2.FONT_HERSHEY_SIMPLEX, 0.38, ink, 1, cv2.LINE_AA)


def _save(path: str | Path, picture: Image.Image, overwrite: bool) -> None:
    suffix = Path(path).suffix.lower()
    known = Image.registered_extensions()
    if not Path(path).is_dir() and suffix not in known:
        raise ValueError(f"a picture's name must end in .png or the like; got {path}.")
    content = io.BytesIO()
    picture.save(content, known.get(suffix, "PNG"))
    write_file(path, content.getvalue(), overwrite=overwrite)
