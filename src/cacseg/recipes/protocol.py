"""The data and protocol that a model is evaluated with: those of its run, else those of the data set's recipes."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open

from cacseg._text import parse_json, read_json
from cacseg.data import SegmentationData, open_data
from cacseg.data.check import guess_name
from cacseg.data.hold_out import hold_out
from cacseg.data.layout import ALL, Rules
from cacseg.data.open import open_layout
from cacseg.data.python import PythonData
from cacseg.recipes.config import DataConfig
from cacseg.recipes.files import CONFIG, is_run, read_config
from cacseg.recipes.named import PAPER_DATA


def data_of_run(weights: Path) -> DataConfig | None:
    """The data section of the configuration beside a file of weights; None where there is none.

    That of a model on the Hub names no root, and none is taken from it: the file may be anybody's.
    """
    file = weights.parent / CONFIG
    if is_run(weights.parent):
        return read_config(file).config.data
    stated = read_json(file, dict).get("data") if file.is_file() else None
    try:
        return None if stated is None else DataConfig.model_validate({**stated, "root": None})
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file} describes its data in a way that this version does not know: {stated}.") from error


def data_to_evaluate(
    weights: Path, *, name: str | None = None, root: str | None = None, split: str | None = None
) -> DataConfig:
    """The data that the run of the weights was validated on, with the given changes.

    For another data set than the run's, or weights without a run, the published protocol of that data set holds;
    where none is published, images are shown whole, at their own size. Without a name it is guessed by the layout.
    """
    run = data_of_run(weights)
    if run is not None and run.name == "synthetic" and name is None and root is not None:
        raise ValueError(
            f"{weights} was trained on 'synthetic', which has no folder; got --data {root}. Give the --name of what "
            "is there (folder, camvid, ...), or leave --data out."
        )
    if run is not None and run.name == PythonData.name and root is not None:
        data = _in_files(run.model_copy(update={"root": root}), name)
    elif run is not None and name in (None, run.name):
        data = run if root is None else run.model_copy(update={"root": root})
    elif name is None and root is None:
        raise ValueError(f"nothing says what {weights} was trained on: give the data set with --data, and its --name.")
    else:
        name = name or guess_name(str(root))
        known = PAPER_DATA[name].data if name in PAPER_DATA else DataConfig(name=name, crop=(1, 1))
        data = known.model_copy(update={"root": root})
    if (bands := bands_of(weights)) is not None:
        data = data.model_copy(update={"bands": bands})
    return data if split is None else data.model_copy(update={"val_split": split, "val_share": None})


def bands_of(weights: str | Path) -> int | None:
    """The bands of images that a saved model takes, by the head of its file; what is wrong with it, loading says."""
    try:
        with safe_open(weights, "np") as file:
            found = parse_json((file.metadata() or {}).get("arguments", "{}")).get("bands")
    except (OSError, ValueError, AttributeError, SafetensorError):
        return None
    return found if isinstance(found, int) else None


def open_split(data: DataConfig, split: str) -> SegmentationData:
    """The training ("train") or the validation split ("val") of a configuration."""
    if data.name == PythonData.name:
        data = _in_files(data)
    if data.val_share is not None:
        return open_held_out(data)[split == "val"]
    if data.val_group is not None:
        raise ValueError("data.val_group belongs to data.val_share, which is not set. Set it, e.g. data.val_share=0.2.")
    name, length = (data.train_split, data.length) if split == "train" else (data.val_split, data.val_length)
    own = length if name == split else None  # generated scenes of another split have its own number
    return _open(data, name, own)


def open_held_out(data: DataConfig) -> tuple[SegmentationData, SegmentationData]:
    """Both parts of the training split; where nothing is split, of all images."""
    if data.name == "synthetic":
        raise ValueError("data.val_share belongs to images in files; 'synthetic' has data.val_length.")
    assert data.val_share is not None
    split = data.train_split
    if data.root is not None and split == "train":
        rules = Rules(**{key: getattr(data, key) for key in Rules._fields})
        layout, files, top, _ = open_layout(data.name, data.root, rules)
        split = ALL if list(layout.splits(files, top)) == [ALL] else split
    return hold_out(_open(data, split, None), data.val_share, data.val_group)


def of_python() -> ValueError:
    return ValueError(
        "the data of this run came from a Python program, which alone can open them: resume it there, with "
        "cacseg.train(..., resume=True); eval and report take files with the same classes, by --data."
    )


def _in_files(data: DataConfig, name: str | None = None) -> DataConfig:
    """Files in place of what a Python program gave a run, shown to the model as those were."""
    if data.root is None:
        raise of_python()
    return data.model_copy(update={"name": name or guess_name(data.root), "val_share": None, "val_group": None})


def _open(data: DataConfig, split: str, length: int | None) -> SegmentationData:
    return open_data(
        data.name,
        data.root,
        split,
        ignore_index=data.ignore_index,
        overlap=data.overlap,
        uncovered=data.uncovered,
        crowd=data.crowd,
        empty_classes=data.empty_classes,
        bands=data.bands,
        max_pixels=data.max_pixels,
        size=data.size,
        length=length,
    )
