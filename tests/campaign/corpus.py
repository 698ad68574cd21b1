"""The well-made files that the campaign damages: small, and the same each time.

They are made once, by `python -m campaign.corpus FOLDER` in a process of its own: processes that load damaged files are
forked from one that has not computed anything yet.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import numpy as np

SIZE = (24, 32)
TRAINING = {
    "data.length": 4, "data.val_length": 2, "data.size": (64, 64), "data.crop": (64, 64), "training.batch": 2,
    "training.workers": 0, "model.backbone": "test_resnet", "model.auxiliary": False, "model.head_channels": 8,
    "schedule.steps": 2, "schedule.warmup_steps": 0, "training.validate_every": 2, "training.save_every": 1,
    "training.loggers": ("csv",), "training.accelerator": "cpu", "training.devices": 1, "data.resident": False,
    "training.log_every": 1, "training.scored_train_images": 0,
}  # fmt: skip
BANDS = 4

Tree = dict[str, bytes]


def read_tree(folder: Path) -> Tree:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def write_tree(folder: Path, tree: Tree) -> None:
    for name, content in tree.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def make_corpus(folder: Path) -> Path:
    """Makes the files below `folder`, or leaves them where they are there."""
    if not (folder / "whole").is_file():
        tests = str(Path(__file__).resolve().parents[1])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([tests, *sys.path])}
        command = [sys.executable, "-m", "campaign.corpus", str(folder)]
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return folder


def write_images(folder: Path) -> None:
    from PIL import Image

    coarse = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
    picture = Image.fromarray(coarse).resize(SIZE[::-1], Image.Resampling.BICUBIC)
    folder.mkdir(parents=True)
    for name, how in {
        "a.png": {}, "b.jpg": {}, "c.webp": {}, "d.bmp": {}, "e.tif": {}, "f.tiff": {"compression": "tiff_lzw"},
        "g.jpeg": {"progressive": True, "exif": Image.Exif()}, "i.tif": {"compression": "jpeg"},
    }.items():  # fmt: skip
        picture.save(folder / name, **how)
    picture.quantize(16).save(folder / "h.png")
    picture.convert("LA").save(folder / "j.png")
    frames = [picture.convert("P"), picture.rotate(180).convert("P")]
    frames[0].save(folder / "k.gif", save_all=True, append_images=frames[1:])
    shutil.copy(folder / "k.gif", folder / "gif_called.png")


def write_bands(folder: Path) -> None:
    import cv2
    import rasterio

    rng = np.random.default_rng(1)
    folder.mkdir(parents=True)
    values = rng.integers(0, 60_000, (*SIZE, BANDS))
    np.save(folder / "a.npy", values.astype(np.float32))
    np.save(folder / "b.npy", values.transpose(2, 0, 1).astype(np.uint16))
    cv2.imwrite(str(folder / "c.png"), values.astype(np.uint16))
    place = rasterio.Affine(10, 0, 5e5, 0, -10, 5e6)
    profiles = {
        "d.tif": {"dtype": "uint16"},
        "e.tif": {"dtype": "float32", "nodata": -1.0, "tiled": True, "blockxsize": 16, "blockysize": 16},
        "f.tif": {"dtype": "float32", "crs": "EPSG:32632", "compress": "deflate"},
        "g.tif": {"dtype": "int16", "compress": "lzw", "predictor": 2, "interleave": "pixel"},
    }  # fmt: skip
    for name, profile in profiles.items():
        shape = {"driver": "GTiff", "height": SIZE[0], "width": SIZE[1], "count": BANDS, "transform": place}
        with rasterio.open(folder / name, "w", **shape, **profile) as target:
            target.write((values % 30_000).transpose(2, 0, 1).astype(profile["dtype"]))


def write_videos(folder: Path) -> None:
    import cv2

    folder.mkdir(parents=True)
    rng = np.random.default_rng(2)
    for name, code in (("a.mp4", "mp4v"), ("b.avi", "MJPG")):
        writer = cv2.VideoWriter(str(folder / name), cv2.VideoWriter.fourcc(*code), 10.0, (64, 48))
        for _ in range(4):
            writer.write(cv2.resize(rng.integers(0, 256, (6, 8, 3), np.uint8), (64, 48)))
        writer.release()


def write_labels(folder: Path) -> None:
    import data_trees as trees
    import label_trees as labels

    trees.folder(folder / "index")
    trees.folder(folder / "colour", "road 128 64 128\ncar 0 0 142\nsky 70 130 180\n[ignore] 0 0 0\n")
    colours = np.array([[128, 64, 128], [0, 0, 142], [70, 130, 180]], np.uint8)
    for k, path in enumerate(sorted((folder / "colour" / "labels").rglob("*.png"))):
        trees.write(path, colours[trees.raw_labels([0, 1, 2], k)])
    trees.pascal_context(folder / "mat", mat=True)
    zipped = folder / "zip"
    zipped.mkdir()
    trees.zipped(folder / "index", zipped / "data.zip")
    made = labels.scenes(count=1)
    labels.coco(folder / "coco", made)
    labels.coco(folder / "coco_runs", made, kind="compressed", style="roboflow")
    labels.labelme(folder / "labelme", made)
    labels.labelme(folder / "labelme_masks", made, kind="mask")
    labels.yolo(folder / "yolo", made)
    labels.voc(folder / "voc", made, palette=True)
    labels.roboflow_masks(folder / "masks", made)
    labels.label_studio(folder / "label_studio", made)


def small_model(bands: int | None = None):
    import torch

    from cacseg.models import create_model

    torch.manual_seed(4)
    how = {} if bands is None else {"bands": bands, "mean": [3e4] * bands, "std": [1e4] * bands}
    model = create_model("fcn", 3, backbone="test_resnet", head_channels=8, **how)
    model.class_names, model.palette = ["road", "car", "sky"], [[128, 64, 128], [0, 0, 142], [70, 130, 180]]
    return model.eval()


def write_models(folder: Path) -> None:
    import torch

    folder.mkdir(parents=True)
    model = small_model()
    model.save(folder / "model.safetensors")
    small_model(BANDS).save(folder / "bands.safetensors")
    torch.save(
        {"state_dict": model.state_dict(), "meta": {"CLASSES": ("a", "b", "c"), "epoch": 3}}, folder / "weights.pth"
    )
    torch.save(model.state_dict(), folder / "old.pth", _use_new_zipfile_serialization=False)
    if find_spec("onnx") is None:
        return
    from onnx_files import Small, write_small

    for output in ("logits", "classes", "probabilities"):
        names = {"class_names": ["road", "car", "sky"], "palette": model.palette}
        write_small(folder / f"{output}.onnx", Small(3), output, **names)


def write_runs(folder: Path) -> None:
    import torch

    import cacseg
    from cacseg.engine.callbacks import Interrupt, Stopped
    from cacseg.recipes.build import run
    from cacseg.recipes.compare import choose_arms, describe, write_comparison
    from cacseg.recipes.config import change
    from cacseg.recipes.hub import read_source, write_folder
    from cacseg.recipes.named import find_recipe

    torch.set_num_threads(1)
    config = change(find_recipe("synthetic"), TRAINING)
    how = {"recipe": "synthetic", "report": lambda text: None, "progress": False}
    asked = Interrupt.wanted
    Interrupt.wanted = lambda self, trainer: trainer.global_step >= 1
    with suppress(Stopped):
        run(config, folder / "stopped", **how)
    Interrupt.wanted = asked
    shutil.copytree(folder / "stopped", folder / "run")
    run(config, folder / "run", resume=True, **how)
    model, source = cacseg.load(folder / "run"), read_source(folder / "run")
    (folder / "hub").mkdir()
    write_folder(folder / "hub", model, source, name="me/mine", license="cc0-1.0", picture=None)
    arms = choose_arms("plain,tuned")
    write_comparison(_made(folder / "comparison"), describe("synthetic", config, arms))
    for arm, settings in arms.items():
        for seed in (0, 1):
            place = folder / "comparison" / "runs" / f"{arm}-2-{seed}"
            run(change(config, {**settings, "training.seed": seed}), place, **how)
            for name in ("last.ckpt", "last.safetensors", "best.safetensors"):
                (place / name).unlink(missing_ok=True)
    write_arms(folder / "arms")
    write_eval(folder / "evaluation", folder / "run")


def write_arms(folder: Path) -> None:
    _made(folder)
    (folder / "arms.toml").write_text(
        '[plain]\n\n[slow]\n"model.preset" = "paper"\noptimiser.rate = 1e-4\n\n[wide.model]\nhead_channels = 16\n'
        'loss_arguments.kl_weight = 2.0\n\n[crop]\n"data.crop" = [48, 48]\n'
    )


def write_eval(folder: Path, run: Path) -> None:
    from cacseg.cli import app

    app(["eval", str(run), "-o", str(folder), "--no-report", "--device", "cpu"], standalone_mode=False)


def write_journal(folder: Path) -> None:
    from cacseg.runtime.journal import COLUMNS

    folder.mkdir(parents=True)
    (folder / "predict.json").write_text(
        json.dumps({"weights_sha256": "0123456789abcdef", "scale": None, "plain": False})
    )
    for name, first in (("index.csv", 0), ("index.1-of-2.csv", 4), ("index.2-of-2.csv", 8)):
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(COLUMNS)
        rows.writerows(
            [f"day/{k}", "/dev/null", 32, 24, 1000 + k, 1_700_000_000_000_000_000 + k] for k in range(first, first + 4)
        )
        (folder / name).write_text(text.getvalue())


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


PARTS = {
    "images": write_images,
    "bands": write_bands,
    "videos": write_videos,
    "labels": write_labels,
    "models": write_models,
    "journal": write_journal,
    "runs": write_runs,
}


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for name, write in PARTS.items():
        write(folder / name)
    (folder / "whole").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
