"""Data that a Python program holds: any collection of images and masks with a length, those of Hugging Face too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from pathlib import Path
from threading import RLock
from typing import Any

from torch.utils.data import IterableDataset

from cacseg._checks import first_few
from cacseg.data.arrays import image_array, labels_of, mask_array
from cacseg.data.label_map import IGNORE
from cacseg.data.layout import name_splits
from cacseg.data.sample import Sample, check_one_size, ignoring_gaps
from cacseg.runtime.colours import MAX_CLASSES, Colour, distinct_colours

# Of a sample that is a dict, and of the columns of Hugging Face; the first that is there.
IMAGE_KEYS = ("image", "img", "images")
MASK_KEYS = ("annotation", "mask", "segmentation", "segmentation_mask", "label", "labels", "annotations", "masks")

_READING = RLock()  # what is written for a DataLoader need not bear threads


class PythonData:
    """One split of pairs of an image and its mask, or of dicts with both, as any torch Dataset gives them.

    Args:
        samples: with a length and an index; what stands at an index must not change from one reading to the next.
        split: "train" or "val".
        class_names, palette: of the classes 0 to n - 1.
        ignored: the number that marks ignored pixels in the masks, which no class has; in samples it is 255.
        bands: of images, in units of their own, which are arrays [H, W, bands] or [bands, H, W]; None: 8-bit colours.
        names: of the images; None is their places.
    """

    name = "python"
    ignore_index = IGNORE

    def __init__(
        self,
        samples: Any,
        split: str,
        class_names: Sequence[str],
        palette: Sequence[Sequence[int]] | None = None,
        *,
        ignored: int = IGNORE,
        names: Sequence[str] | None = None,
        bands: int | None = None,
    ) -> None:
        if isinstance(samples, IterableDataset) or not isinstance(samples, Sized):
            raise TypeError(
                f"data to train on have a length and an index; got {type(samples).__name__}. Streams have neither: "
                "save them to files first, or hold them in a list of (image, mask)."
            )
        self.samples = _needed_columns(samples)
        self.split, self.names, self.bands = split, names, bands
        self.class_names = tuple(class_names)
        count = len(self.class_names)
        self.palette = distinct_colours(count) if palette is None else [_colour(one) for one in palette]
        if len(self.palette) != count or not 2 <= count <= MAX_CLASSES:
            raise ValueError(
                f"there are 2 to {MAX_CLASSES} classes, each with a colour; got {count} names and {len(self.palette)} "
                "colours."
            )
        if 0 <= ignored < count:
            raise ValueError(f"ignore_index must be no class; {ignored} is {self.class_names[ignored]!r} of {count}.")
        self.ignored = ignored
        if names is not None and (len(names) != len(samples) or len(set(names)) < len(names)):
            raise ValueError(
                f"names must be one for each image, none twice; got {len(names)}, {len(set(names))} of them different, "
                f"for {len(samples)} images."
            )

    def __len__(self) -> int:
        return len(self.samples)

    def image_name(self, index: int) -> str:
        return f"{index:06d}" if self.names is None else str(self.names[index])

    def read(self, index: int) -> Sample:
        where = f"{self.split}[{index}]"
        with _READING:
            image, mask = pair_of(self.samples[index], where)
        pixels = image_array(image, where, self.bands)
        labels = labels_of(mask_array(mask, where), len(self.class_names), self.ignored, where)
        check_one_size(pixels, labels, where, "its mask")
        return ignoring_gaps(pixels, labels, self.ignore_index)


def pair_of(sample: Any, where: str) -> tuple[Any, Any]:
    """The image and the mask of a sample."""
    if isinstance(sample, Mapping):
        return sample[find_key(sample, IMAGE_KEYS, where)], sample[find_key(sample, MASK_KEYS, where)]
    if isinstance(sample, Sequence) and not isinstance(sample, str) and len(sample) == 2:
        return sample[0], sample[1]
    size = f" of {len(sample)}" if isinstance(sample, Sequence) else ""
    raise TypeError(
        f"a sample is a pair (image, mask), or a dict with both; {where} is a {type(sample).__name__}{size}. Give a "
        "Dataset whose __getitem__ returns both."
    )


def find_key(names: Any, keys: Sequence[str], where: str = "the data") -> str:
    """The first of the keys that is there."""
    if found := next((key for key in keys if key in names), None):
        return found
    raise ValueError(
        f"a sample has one of {', '.join(keys)}; {where} has {first_few(list(names), 8) or 'nothing'}. Rename one "
        f"(of Hugging Face: dataset.rename_column(NAME, {keys[0]!r}))."
    )


def split_in_two(data: Any) -> tuple[Any, Any]:
    """The training and the validation part of a dict of splits; of anything else itself, and None.

    A path is that of a folder that Hugging Face's `save_to_disk` wrote.
    """
    if isinstance(data, str | Path):
        data = _load_saved(Path(data))
    if not isinstance(data, Mapping):
        return data, None
    there = name_splits(data)
    if "train" not in there:
        raise ValueError(f"a dict of splits needs 'train'; got {', '.join(map(str, data)) or 'none'}.")
    return data[there["train"]], data.get(there.get("val"))


def _load_saved(path: Path) -> Any:
    if not any((path / name).is_file() for name in ("dataset_dict.json", "dataset_info.json")):
        raise ValueError(
            f"{path} is no folder that Hugging Face's save_to_disk wrote. For a data set in files give "
            f"cacseg.data.open_data('folder', {str(path)!r}, 'train')."
        )
    try:
        from datasets import load_from_disk
    except ModuleNotFoundError as error:
        message = f"{path} needs datasets, which is not installed: pip install datasets"
        raise ModuleNotFoundError(message, name=error.name) from error
    return load_from_disk(str(path))


def _needed_columns(samples: Any) -> Any:
    """Of a Dataset of Hugging Face, recognised by its class, only the two columns: it decodes whatever it has."""
    if not any(kind.__module__.partition(".")[0] == "datasets" for kind in type(samples).__mro__):
        return samples
    return samples.select_columns([find_key(samples.column_names, keys) for keys in (IMAGE_KEYS, MASK_KEYS)])


def _colour(values: Sequence[int]) -> Colour:
    red, green, blue = map(int, values)
    return red, green, blue
