"""Holds images out of a training split, so that settings can be chosen without the validation images.

    python tools/hold_out.py data/msrc21 held/msrc21 --every 5
    python tools/hold_out.py data/camvid held/camvid --last 0.2

The new folder has the rest as `train` and what was held out as `val`, as links. Frames of a film are alike, so hold out
its end (--last) and not every fifth.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def hold_out(root: Path, folder: Path, every: int | None = None, last: float | None = None) -> tuple[int, int]:
    """How many images were kept for training, and how many held out."""
    images = sorted((root / "images" / "train").iterdir())
    count = len(images)
    held = set(images[every - 1 :: every] if every else images[count - round((last or 0.0) * count) :])
    if not held or len(held) == count:
        raise SystemExit(f"{len(held)} of the {count} images in {root / 'images' / 'train'} would be held out.")
    labels = {path.stem: path for path in (root / "labels" / "train").iterdir()}
    for image in images:
        split = "val" if image in held else "train"
        for kind, path in (("images", image), ("labels", labels[image.stem])):
            link = folder / kind / split / path.name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path.resolve())
    (folder / "classes.txt").write_bytes((root / "classes.txt").read_bytes())
    return count - len(held), len(held)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="has images/train, labels/train and classes.txt")
    parser.add_argument("folder", type=Path, help="is made")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--every", type=int, metavar="N", help="hold out every Nth image in the order of names")
    which.add_argument("--last", type=float, metavar="SHARE", help="hold out the last share in the order of names")
    options = parser.parse_args()
    kept, held = hold_out(options.root, options.folder, options.every, options.last)
    print(f"{options.folder}: {kept} images to train on, {held} held out")


if __name__ == "__main__":
    main()
