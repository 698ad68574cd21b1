"""One split of a data set of files: pairs of paths, and the classes of raw label values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cacseg.data.decode import IMAGE_SUFFIXES, LABEL_SUFFIXES, Labels, decode_image, decode_labels
from cacseg.data.files import Files
from cacseg.data.label_map import IGNORE, LabelMap
from cacseg.data.sample import Colour, Sample, check_one_size


class Pair(NamedTuple):
    """An image and its labels, as paths, and their name within the split."""

    name: str
    image: str
    labels: str


class Listing(NamedTuple):
    """The files of a split: pairs, images without labels, labels without an image, and other problems."""

    pairs: tuple[Pair, ...]
    unpaired_images: tuple[str, ...]
    unpaired_labels: tuple[str, ...]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class FileData:
    """Reads in place: no copies, no caches, nothing prepared. Picklable; workers may share it."""

    name: str
    split: str
    class_names: tuple[str, ...]
    palette: tuple[Colour, ...]
    files: Files
    pairs: tuple[Pair, ...]
    label_map: LabelMap
    decode: Callable[[bytes, str], Labels] = decode_labels
    ignore_index: int = IGNORE

    def __len__(self) -> int:
        return len(self.pairs)

    def image_name(self, index: int) -> str:
        return self.pairs[index].name

    def read(self, index: int) -> Sample:
        pair = self.pairs[index]
        where_image, where_labels = self.files.where(pair.image), self.files.where(pair.labels)
        image = decode_image(self.files.read(pair.image), where_image)
        labels = self.label_map(self.decode(self.files.read(pair.labels), where_labels), where_labels)
        check_one_size(image, labels, where_image, where_labels)
        return Sample(image, labels)


def match_pairs(images: Sequence[tuple[str, str, str]], labels: Sequence[tuple[str, str]], files: Files) -> Listing:
    """Pairs by key, in the order of the images: images are (key, path, name), labels (key, path)."""
    problems: list[str] = []
    labels_by_key: dict[str, str] = {}
    for key, path in labels:
        if key in labels_by_key:
            problems.append(f"an image has one file of labels; there are {files.where(labels_by_key[key])} and {path}.")
        labels_by_key.setdefault(key, path)
    pairs: list[Pair] = []
    unpaired_images: list[str] = []
    seen: dict[str, str] = {}
    for key, path, name in images:
        if key in seen:
            problems.append(f"images must differ in more than their suffix: {files.where(seen[key])} and {path}.")
            continue
        seen[key] = path
        if key in labels_by_key:
            pairs.append(Pair(name, path, labels_by_key[key]))
        else:
            unpaired_images.append(path)
    unpaired_labels = tuple(path for key, path in labels_by_key.items() if key not in seen)
    return Listing(tuple(pairs), tuple(unpaired_images), unpaired_labels, tuple(problems))


def check_listing(listing: Listing, files: Files, where: str) -> None:
    """Every image has labels, every label file an image, and there is at least one pair."""
    if listing.problems:
        more = f" So it is with {len(listing.problems) - 1} more." if len(listing.problems) > 1 else ""
        raise ValueError(listing.problems[0] + more)
    for kind, other, suffixes, paths in (
        ("image", "labels", LABEL_SUFFIXES, listing.unpaired_images),
        ("label file", "image", IMAGE_SUFFIXES, listing.unpaired_labels),
    ):
        if paths:
            shown = ", ".join(files.where(path) for path in paths[:3]) + (", ..." if len(paths) > 3 else "")
            raise ValueError(
                f"every {kind} needs its {other}, of the same path and name; {len(paths)} of {where} have none: "
                f"{shown}. Add what is missing ({', '.join(suffixes)}) or remove these files."
            )
    if not listing.pairs:
        raise ValueError(f"{where} is empty: no image and label files there.")
