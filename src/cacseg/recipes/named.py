"""The recipes by name. A recipe is a function that returns a whole configuration; most derive from another.

def my_streets() -> Config:
    return change(camvid(), {"data.root": "streets", "schedule.steps": 20_000})
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

from cacseg.engine.options import OptimiserOptions, ScheduleOptions, TrainingOptions
from cacseg.models import MODELS
from cacseg.recipes.config import Config, DataConfig, ModelConfig, change, suggest


class Recipe(NamedTuple):
    """A configuration, and what one should know of it."""

    make: Callable[[], Config]
    note: str = ""


class PaperData(NamedTuple):
    """A data set of the paper, as its models are trained on it."""

    data: DataConfig
    steps: int
    batch: int
    note: str = ""


_ADE20K = DataConfig(name="ade20k", crop=(512, 512), scale=(2048, 512), val_scale=(2048, 512))
_PASCAL_CONTEXT = DataConfig(
    name="pascal_context59",
    crop=(480, 480),
    scale=(520, 520),
    val_scale=(520, 520),
    window=(480, 480),
    stride=(320, 320),
)
PAPER_DATA: dict[str, PaperData] = {
    "ade20k": PaperData(_ADE20K, steps=160_000, batch=16),
    "cocostuff164k": PaperData(
        _ADE20K.model_copy(update={"name": "cocostuff164k"}), 160_000, 16, "schedule not stated in the paper: ADE20K's"
    ),
    "cityscapes": PaperData(
        DataConfig(name="cityscapes", crop=(512, 1024), scale=(2048, 1024), val_scale=(2048, 1024)), 80_000, 8
    ),
    "pascal_context59": PaperData(_PASCAL_CONTEXT, 80_000, 16),
    "pascal_context60": PaperData(_PASCAL_CONTEXT.model_copy(update={"name": "pascal_context60"}), 80_000, 16),
}

SGD = OptimiserOptions(name="sgd", rate=0.01, momentum=0.9, weight_decay=5e-4)
ADAMW = OptimiserOptions(name="adamw", rate=6e-5, betas=(0.9, 0.999), weight_decay=0.01, decay_normalisation=False)
# Pascal-Context has rates of its own, by head; those of the other two heads are not stated.
PASCAL_RATES = {"deeplabv3plus": 4e-3, "ocrnet": 1e-3}


def paper(data_name: str, model_name: str) -> Config:
    """A model of the paper's main table on one of its data sets, with the published schedule."""
    of_data, head = PAPER_DATA[data_name], MODELS[model_name].head
    blocks: Literal["first", "auto"] = "first" if "mobilenetv2" in model_name else "auto"
    optimiser, schedule, batch = SGD, ScheduleOptions(steps=of_data.steps, power=0.9, minimum=1e-4), of_data.batch
    if "swin" in model_name:
        optimiser, batch = ADAMW, 16
        schedule = ScheduleOptions(steps=of_data.steps, power=1.0, warmup_steps=1500, warmup_ratio=1e-6)
    elif data_name.startswith("pascal_context"):
        rate = PASCAL_RATES.get(head, PASCAL_RATES["deeplabv3plus"])
        optimiser = SGD.model_copy(update={"rate": rate, "weight_decay": 1e-4})
    return Config(
        model=ModelConfig(name=model_name, preset="released", pretrained=True, dilated_blocks=blocks),
        data=of_data.data,
        optimiser=optimiser,
        schedule=schedule,
        training=TrainingOptions(batch=batch, validate_every=schedule.steps // 10, save_every=2000),
    )


def paper_note(data_name: str, model_name: str) -> str:
    """What of a recipe the paper does not state."""
    unknown_rate = "swin" not in model_name and MODELS[model_name].head not in PASCAL_RATES
    if data_name.startswith("pascal_context") and unknown_rate:
        return "rate not stated for this head: DeepLabV3+'s"
    return PAPER_DATA[data_name].note


def folder() -> Config:
    """Images and labels of one's own: images/{train,val}, labels/{train,val}, classes.txt."""
    return Config(
        model=ModelConfig(name="upernet", backbone="mobilenetv2_100", head_channels=256),
        data=DataConfig(name="folder", crop=(512, 512)),
        optimiser=OptimiserOptions(name="adamw", rate=5e-4, weight_decay=0.01, decay_normalisation=False, clip=5.0),
        schedule=ScheduleOptions(steps=10_000, warmup_steps=200),
        training=TrainingOptions(batch=16, validate_every=500, save_every=500),
    )


def folder_base() -> Config:
    """The same data with a current backbone from timm's ImageNet weights, for a GPU."""
    model = {"model.backbone": "convnext_tiny", "model.head_channels": 512, "model.pretrained": True}
    optimiser = {"optimiser.rate": 1e-4, "optimiser.weight_decay": 0.05, "model.drop_path": 0.2}
    run = {"schedule.steps": 20_000, "schedule.warmup_steps": 500, "training.precision": "bf16"}
    return change(folder(), {**model, **optimiser, **run, "training.channels_last": True})


def camvid() -> Config:
    """Street scenes of 480x360."""
    own = {"data.name": "camvid", "data.crop": (352, 480), "schedule.steps": 4000}
    return change(folder(), own)


def msrc21() -> Config:
    """Photographs of 320x213 or so, not scaled, which is worth 2 points of mIoU to a plain FCN (77.0 to 79.3)."""
    return change(camvid(), {"data.name": "msrc21", "data.crop": (208, 256), "data.ratios": (1.0, 1.0)})


def synthetic() -> Config:
    """Generated scenes, nothing to download: minutes on a CPU."""
    model = {"model.name": "fcn", "model.backbone": "mobilenetv2_035", "model.output_stride": 16}
    model |= {"model.head_channels": 512}
    own = {"data.name": "synthetic", "data.crop": (128, 128), "data.ratios": (0.75, 1.5), "data.size": (128, 128)}
    run = {"schedule.steps": 400, "schedule.warmup_steps": 20, "training.batch": 8, "training.validate_every": 100}
    return change(
        camvid(), {**model, **own, **run, "optimiser.rate": 1e-3, "training.workers": 2, "training.log_every": 10}
    )


RECIPES: dict[str, Recipe] = {
    "folder": Recipe(folder, "one's own data; needs data.root; model.pretrained=true helps"),
    "folder_base": Recipe(folder_base, "one's own data on a GPU; needs data.root; downloads weights of ConvNeXt-T"),
    "camvid": Recipe(camvid, "needs data.root; model.pretrained=true helps"),
    "msrc21": Recipe(msrc21, "needs data.root; model.pretrained=true helps"),
    "synthetic": Recipe(synthetic, "generated scenes, no files needed"),
    **{
        f"{data_name}/{model_name}": Recipe(partial(paper, data_name, model_name), paper_note(data_name, model_name))
        for data_name in PAPER_DATA
        for model_name in MODELS
    },
}


def find_recipe(name: str) -> Config:
    """The configuration of a recipe; a mistyped name gets the nearest."""
    if name in RECIPES:
        return RECIPES[name].make()
    raise ValueError(f"there is no recipe {name!r}. {suggest(name, RECIPES, '`cacseg train --list` shows them.')}")
