"""Arguments and options that several commands share."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from cacseg.cli._console import note, typer

if TYPE_CHECKING:
    from cacseg.data.layout import Rules
    from cacseg.engine.inference import Inference
    from cacseg.recipes.config import Config, DataConfig


IgnoreIndex = Annotated[
    int | None, typer.Option(help="The value of ignored pixels in a folder of your own; 255 by default.")
]
ShapeOverlap = Annotated[str, typer.Option(help="Where shapes overlap, the later or the smaller one is on top.")]
Uncovered = Annotated[
    str, typer.Option(help="Pixels that no shape covers: background makes them a class, ignore ignores them.")
]
Crowd = Annotated[str, typer.Option(help="COCO's crowd regions: class keeps their class, ignore ignores them.")]
EmptyClasses = Annotated[
    str, typer.Option(help="Where labels are shapes: keep or drop classes that no image of any split has.")
]
Scale = Annotated[
    str | None,
    typer.Option(help="Longest and shortest side that images are fitted into, e.g. 2048,512; 'own' leaves them."),
]
Slide = Annotated[str | None, typer.Option(help="Use sliding windows of this size: 769, or HEIGHTxWIDTH.")]
Stride = Annotated[str | None, typer.Option(help="Step from one window to the next: 513, or HEIGHTxWIDTH.")]
Whole = Annotated[bool, typer.Option("--whole", help="Use whole images where the data set's protocol has windows.")]
MultiScale = Annotated[
    bool, typer.Option("--multi-scale", help="Average probabilities over ratios 0.5 to 1.75, mirrored too.")
]
Flip = Annotated[bool, typer.Option("--flip", help="Average probabilities with the mirror image's.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...; auto takes the best there is.")]
MODEL = "The folder of a run, a .safetensors file, or a name on the Hugging Face Hub."
Precision = Annotated[str, typer.Option(help="fp32, bf16 or fp16.")]
AutoPrecision = Annotated[
    str, typer.Option(help="fp32, bf16 or fp16; auto is bf16 on a GPU that has it and a CPU with AMX, else fp32.")
]
Batch = Annotated[int, typer.Option(min=1, help="Images of one size in a batch.")]
Workers = Annotated[
    int,
    typer.Option(min=0, help="Threads that read ahead; by default one for each core, at most 8.", show_default=False),
]
WindowBatch = Annotated[int, typer.Option(min=1, help="Windows in a batch.")]

Tile = Annotated[
    int | None,
    typer.Option(help="Cut images into tiles of so many pixels a side (a multiple of 32), with one context for all."),
]
TILE = 1024  # pixels a side
Overlap = Annotated[int, typer.Option(help="How far neighbouring tiles overlap, in pixels (a multiple of 32).")]
TileContext = Annotated[
    str, typer.Option(help="image: one classifier from all tiles. tile: each tile has its own, from itself alone.")
]
Keep = Annotated[
    float,
    typer.Option(metavar="MIB", min=0.0, help="With --tile: memory for features; those beyond it are computed twice."),
]

MaxPixels = Annotated[
    float | None,
    typer.Option(min=1, help="Refuse a file of more pixels that would be decoded whole; 256e6 by default."),
]
RunMaxPixels = Annotated[
    float | None,
    typer.Option(
        min=1,
        help="Refuse a file of more pixels that would be decoded whole; by default data.max_pixels of the run, else "
        "256e6.",
    ),
]

WORKERS = min(8, os.cpu_count() or 1)


def open_recipe(text: str) -> tuple[str, Config]:
    """Name and configuration of a recipe, of an earlier run or its config.json, or of what --print-config wrote."""
    from cacseg.recipes.files import read_recipe
    from cacseg.recipes.named import RECIPES, find_recipe

    if text not in RECIPES and (text.endswith(".json") or Path(text).is_dir()):
        return read_recipe(text)
    return text, find_recipe(text)


def integers(option: str, text: str) -> tuple[int, ...]:
    try:
        values = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{option} must be whole numbers between commas; got {text!r}.") from None
    if len(set(values)) < len(values):
        raise ValueError(f"{option} must be different numbers; got {text!r}.")
    return values


def read_changes(settings: list[str] | None, root: str | None) -> dict[str, Any]:
    """What --set and --root change in a recipe."""
    from cacseg.recipes.config import parse_setting

    changes = dict(parse_setting(text) for text in settings or ())
    return changes if root is None else {**changes, "data.root": root}


def make_rules(
    ignore_index: int | None,
    overlap: str,
    uncovered: str,
    crowd: str,
    empty_classes: str,
    bands: int | None = None,
    max_pixels: float | None = None,
) -> Rules:
    """How labels are read."""
    from cacseg.data import layout

    for option, value, kind in (
        ("--overlap", overlap, layout.Overlap),
        ("--uncovered", uncovered, layout.Uncovered),
        ("--crowd", crowd, layout.Crowd),
        ("--empty-classes", empty_classes, layout.EmptyClasses),
    ):
        if value not in get_args(kind):
            raise ValueError(f"{option} must be {' or '.join(get_args(kind))}; got {value!r}.")
    most = pixels(max_pixels)
    return layout.Rules(ignore_index, overlap, uncovered, crowd, empty_classes, bands, most)  # type: ignore[arg-type]


def pixels(asked: float | None) -> int:
    """Of a file that is decoded whole."""
    from cacseg.runtime.decode import MAX_PIXELS

    if asked is not None and not math.isfinite(asked):
        raise ValueError(f"--max-pixels must be a number of pixels, such as 1e9; got {asked}.")
    return MAX_PIXELS if asked is None else int(asked)


def tiles_of_large(max_pixels: float | None) -> int | None:
    """Tiles, where the limit is raised: a network that saw such images whole would not fit into memory."""
    from cacseg.runtime.decode import MAX_PIXELS

    if pixels(max_pixels) <= MAX_PIXELS:
        return None
    note(
        f"--max-pixels is raised: images are cut into tiles of {TILE} pixels, with one context for all (or --whole).",
        "",
    )
    return TILE


def parse_pair(text: str, what: str, separator: str = "x") -> tuple[int, int]:
    """'769' or '512x1024' (or with a comma)."""
    parts = text.replace(",", separator).split(separator)
    if not 1 <= len(parts) <= 2 or not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"{what} must be one or two whole numbers, e.g. 769 or 512{separator}1024; got {text!r}.")
    return int(parts[0]), int(parts[-1])


def parse_scale(text: str | None, usual: tuple[int, int] | None) -> tuple[int, int] | None:
    if text is None:
        return usual
    if text == "own":
        return None
    long, short = parse_pair(text, "--scale", ",")
    return max(long, short), min(long, short)


def options_of_tiles(overlap: int, tile_context: str, keep: float) -> list[str]:
    """Those that are given, which without tiles do nothing."""
    given = {"--overlap": overlap != 128, "--tile-context": tile_context != "image", "--keep": keep != 1024}
    return [name for name, is_given in given.items() if is_given]


def make_inference(
    data: DataConfig | None,
    slide: str | None,
    stride: str | None,
    whole: bool,
    multi_scale: bool,
    flip: bool,
    window_batch: int,
    tile: int | None = None,
    overlap: int = 128,
    tile_context: str = "image",
    keep: float = 1024,
) -> Inference:
    """What was asked for, else what the protocol of the data has."""
    from cacseg.engine.inference import MULTI_SCALE, Inference, Tiling

    if tile is None and (names := options_of_tiles(overlap, tile_context, keep)):
        raise ValueError(f"{', '.join(names)} must come with --tile. Give --tile {TILE} too, or leave it out.")
    if tile is not None:
        if slide is not None or stride is not None or multi_scale:
            raise ValueError("--tile excludes --slide, --stride and --multi-scale. Leave one out.")
        return Inference(flip=flip, tiling=Tiling(tile, overlap, tile_context, keep))  # type: ignore[arg-type]
    if whole and (slide is not None or stride is not None):
        raise ValueError("--whole and --slide exclude each other. Leave one out.")
    if stride is not None and slide is None:
        raise ValueError("--stride belongs to --slide. Give the size of the windows too.")
    window = steps = None
    if slide is not None:
        window = parse_pair(slide, "--slide")
        # Without a stride, two thirds: windows overlap by a third, as in the published protocols.
        steps = (-(-window[0] * 2 // 3), -(-window[1] * 2 // 3)) if stride is None else parse_pair(stride, "--stride")
    elif data is not None and not whole:
        window, steps = data.window, data.stride
    ratios = MULTI_SCALE if multi_scale else (1.0,)
    return Inference(window, steps, ratios, flip or multi_scale, window_batch)
