"""A whole model in one safetensors file that needs no other knowledge to be loaded, and where that file is."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from cacseg._hub import CONFIG, HubOptions, download, is_hub_name
from cacseg._tensors import check_finite
from cacseg._text import parse_json
from cacseg._version import __version__
from cacseg.models.files import FORMAT, TensorFile, check_classes, keep_preset, read_tensors
from cacseg.models.model import SegmentationModel
from cacseg.models.zoo import create_model

BEST, LAST = "best.safetensors", "last.safetensors"  # in the folder of a run
MODEL = "model.safetensors"  # in the folder of save_pretrained


def load(
    source: str | Path,
    device: str | torch.device = "cpu",
    *,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    token: str | bool | None = None,
    local_files_only: bool = False,
    force_download: bool = False,
) -> SegmentationModel:
    """A saved model, with its class names and palette, in evaluation mode.

        load("model.safetensors")        a file of model.save
        load("runs/mine")                the folder of a run: its best model, else its last
        load("folder")                   a folder of model.save_pretrained
        load("owner/name")               a name on the Hugging Face Hub, if there is no such path

    The other arguments are those of huggingface_hub, for names on the Hub only.
    """
    path = find_weights(source, HubOptions(revision, cache_dir, token, local_files_only, force_download))
    file, arguments = read_model_file(path)
    try:
        kept = keep_preset(arguments, _read_json(file, "preset_values", path))
        with torch.device("meta"):  # without memory: a small file may claim a model of gigabytes
            ours = create_model(**kept).state_dict()
    except Exception as error:  # of any kind: the arguments may be anything
        raise ValueError(f"{path} describes a model that cannot be built: {error}") from error
    unknown, missing = sorted(file.tensors.keys() - ours.keys()), sorted(ours.keys() - file.tensors.keys())
    wrong = [name for name in ours.keys() & file.tensors.keys() if file.tensors[name].shape != ours[name].shape]
    if unknown or missing or wrong:
        raise ValueError(
            f"{path} does not fit the model it describes ({arguments['name']}): {len(missing)} tensors are missing "
            f"{missing[:3]}, {len(unknown)} unknown {unknown[:3]}, {len(wrong)} of another shape {wrong[:3]}. "
            f"It was written by cacseg {file.metadata.get('cacseg_version')}; this is {__version__}."
        )
    model = create_model(**kept)
    model.class_names, model.palette = (_read_json(file, key, path) for key in ("class_names", "palette"))
    check_classes(model.class_names, model.palette, model.num_classes, str(path))
    model.to(file.tensors["classifier.weight"].dtype).load_state_dict(file.tensors)
    model.source = Path(path)
    return model.to(device).eval()


def find_weights(source: str | Path, hub: HubOptions | None = None) -> Path:
    """The file that `load` reads: itself, one in a folder, or one on the Hub, downloaded."""
    if not isinstance(source, str | Path):
        raise TypeError(f"a saved model is a path, or a name on the Hugging Face Hub; got {type(source).__name__}.")
    path = Path(source).expanduser()
    if path.is_dir():
        for name in (BEST, LAST, MODEL):
            if (path / name).is_file():
                return path / name
        if runs := sorted(path.glob(f"runs/*/{BEST}")):  # a comparison
            remedy = f"Give one of its {len(runs)} runs, e.g. {runs[0].parent}."
        elif (path / CONFIG).is_file():
            remedy = "The first validation of a run writes them: `cacseg train --resume` goes on with it."
        else:
            remedy = "Give the folder of a run or of save_pretrained, or a file."
        raise FileNotFoundError(f"{path} is a folder without {BEST}, {LAST} or {MODEL}. {remedy}")
    if not path.exists() and is_hub_name(source):
        return _download_model(str(source), hub)
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no model {path}. Give a .safetensors, the folder of a run or of save_pretrained, or a name on "
            "the Hugging Face Hub, owner/name."
        )
    if path.suffix.lower() == ".onnx":
        raise ValueError(
            f"{path} is an exported file, which predicts and no more: cacseg.Predictor({str(path)!r}), or `cacseg "
            "predict`. For all else give the model that it was exported from."
        )
    if path.suffix.lower() == ".pt2":
        raise ValueError(
            f"{path} is an exported program, which torch runs: torch.export.load({str(path)!r}).module(), or "
            "torch._inductor.aoti_load_package of an AOTInductor file. Give the model that it was exported from."
        )
    if path.suffix == ".ckpt":
        raise ValueError(f"{path} is for resuming a run. Give the run's folder, or a .safetensors in it.")
    return path


def _download_model(name: str, hub: HubOptions | None) -> Path:
    """config.json first: it is small, and says whether the model is ours."""
    found = _read_format(download(name, CONFIG, hub))
    if found != FORMAT:
        raise ValueError(
            f"{name} on the Hub is not a model of cacseg: the format in its {CONFIG} must be {FORMAT!r}; got "
            f"{found!r}. A model of another library: load it there, and pass it to cacseg.convert."
        )
    return download(name, MODEL, hub)


def _read_format(config: Path) -> Any:
    content = None
    with suppress(ValueError):  # no JSON, or no UTF-8
        content = parse_json(config.read_bytes())
    return content.get("format") if isinstance(content, dict) else None


def _read_json(file: TensorFile, key: str, path: str | Path) -> Any:
    try:
        return parse_json(file.metadata.get(key, "null"))
    except ValueError as error:
        raise ValueError(f"{path} has a damaged description of its model ({key}: {error}).") from error


def read_model_file(path: str | Path) -> tuple[TensorFile, dict[str, Any]]:
    """The tensors of a saved model, and the arguments of `create_model` that it was built with."""
    file = read_tensors(path)
    if file.metadata.get("format") != FORMAT:
        folder, config = Path(path).parent, Path(path).with_name(CONFIG)
        if Path(path).name == MODEL and config.is_file() and _read_format(config) != FORMAT:
            raise ValueError(
                f"{folder} must be of save_pretrained of a model of cacseg; it is of another library's. Load it there "
                "(smp.from_pretrained, from_pretrained of transformers) and pass it to cacseg.convert, with "
                f"saved={str(folder)!r} where it had been converted."
            )
        found = f"the format {file.metadata['format']!r}" if "format" in file.metadata else "no description of one"
        raise ValueError(
            f"{path} is not a model saved by model.save (format {FORMAT!r}): it has {found}. For checkpoints of the "
            "authors or of mmsegmentation use `cacseg import-weights`, for weights of a backbone "
            "create_model(..., backbone_weights=PATH), in a recipe model.backbone_weights, and for a converted model "
            "cacseg.convert(..., saved=FOLDER)."
        )
    arguments = _read_json(file, "arguments", path)
    # A file must not be able to start a download, to read other files or to claim sizes that it does not hold.
    allowed = set(inspect.signature(create_model).parameters) - {"pretrained", "backbone_weights"}
    if not isinstance(arguments, Mapping) or not {"name"} <= set(arguments) <= allowed:
        extra = sorted(set(arguments) - allowed) if isinstance(arguments, Mapping) else arguments
        raise ValueError(
            f"{path} describes its model with arguments that this version ({__version__}) does not know: {extra}. "
            f"It was written by cacseg {file.metadata.get('cacseg_version')}."
        )
    weight, claimed = file.tensors.get("classifier.weight"), arguments.get("num_classes")
    if weight is None or weight.ndim != 4 or weight.shape[0] != claimed:
        held = "no classifier" if weight is None else f"a classifier of shape {tuple(weight.shape)}"
        raise ValueError(f"{path} does not fit the model it describes: it claims {claimed} classes and holds {held}.")
    branches = {name.split(".")[2] for name in file.tensors if name.startswith("head.branches.")}
    dilations = arguments.get("dilations")
    if isinstance(dilations, list) and len(dilations) > len(branches):
        counts = f"it claims {len(dilations)} dilations and holds {len(branches)} branches"
        raise ValueError(f"{path} does not fit the model it describes: {counts}.")
    check_finite(file.tensors.items(), path)
    return file, dict(arguments)
