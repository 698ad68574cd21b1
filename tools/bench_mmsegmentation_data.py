"""Our training pipeline beside mmsegmentation's, on the same files, in turns on one core.

    python tools/bench_mmsegmentation_data.py --theirs ENVIRONMENT/bin/python [--rounds 9] [--images 100] [--json FILE]

ENVIRONMENT has mmsegmentation, as lite_mmcv.py says, and no cacseg.

Files: generated 683x512 JPEGs with PNG labels in ADE20K's layout (`cacseg.bench.data.write_generated`). Both read,
resize by a random ratio, crop 512x512, flip, distort and give tensors, as mmsegmentation's ADE20K configuration says.
Each is one process with one thread on one and the same core; they take turns, their own processor time is counted (so
that other programs do not matter much), and the ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PIPELINE: list[dict[str, Any]] = [
    {"type": "LoadImageFromFile"},
    {"type": "LoadAnnotations", "reduce_zero_label": True},
    {"type": "RandomResize", "scale": (2048, 512), "ratio_range": (0.5, 2.0), "keep_ratio": True},
    {"type": "RandomCrop", "crop_size": (512, 512), "cat_max_ratio": 0.75},
    {"type": "RandomFlip", "prob": 0.5},
    {"type": "PhotoMetricDistortion"},
    {"type": "PackSegInputs"},
]


def our_step(root: Path) -> tuple[Callable[[int], object], dict[str, str]]:
    """Position -> crop, and the versions it runs on."""
    import cv2
    import numpy as np

    from cacseg.data import TrainTransform, open_data, start_worker
    from cacseg.data.transforms import NUMBERS

    start_worker(0)
    data, transform = open_data("ade20k", root, "train"), TrainTransform((512, 512), (2048, 512))

    def step(position: int) -> object:
        return transform(data.read(position % len(data)), np.random.default_rng((0, position)).random(NUMBERS))

    return step, {"opencv": cv2.__version__, "numpy": np.__version__}


def their_step(root: Path) -> tuple[Callable[[int], object], dict[str, str]]:
    """The same with mmsegmentation."""
    import cv2
    import lite_mmcv  # noqa: F401  (before mmseg: stands in for what is not installed)
    import mmseg
    import numpy as np
    import torch
    from mmcv.transforms import Compose
    from mmengine.registry import init_default_scope
    from mmseg.datasets import transforms  # noqa: F401  (fills the registry)

    init_default_scope("mmseg")
    cv2.setNumThreads(0)
    torch.set_num_threads(1)
    pipeline = Compose(PIPELINE)
    base = root / "ADEChallengeData2016"
    pairs = [
        (str(path), str(base / "annotations/training" / f"{path.stem}.png"))
        for path in sorted((base / "images/training").glob("*.jpg"))
    ]

    def step(position: int) -> object:
        image, labels = pairs[position % len(pairs)]
        described = {"img_path": image, "seg_map_path": labels, "label_map": None, "reduce_zero_label": True}
        return pipeline({**described, "seg_fields": []})

    return step, {"mmsegmentation": mmseg.__version__, "opencv": cv2.__version__, "numpy": np.__version__}


def work(kind: str, root: Path, core: int) -> None:
    """A process that answers each line of stdin, 'FIRST COUNT', with the seconds that many images took."""
    os.sched_setaffinity(0, {core})
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever a library prints is no answer
    step, versions = (our_step if kind == "ours" else their_step)(root)
    print(json.dumps(versions), file=answers, flush=True)
    for line in sys.stdin:
        first, count = map(int, line.split())
        start = time.process_time()
        for position in range(first, first + count):
            step(position)
        print(time.process_time() - start, file=answers, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--theirs", help="the Python of an environment with mmsegmentation")
    parser.add_argument("--ours", default=sys.executable, help="the Python of an environment with cacseg")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--images", type=int, default=100, help="a round")
    parser.add_argument("--core", type=int, default=min(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path, help="also write the result there")
    parser.add_argument("--work", nargs=2, metavar=("KIND", "ROOT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work[0], Path(arguments.work[1]), arguments.core)
        return
    if arguments.theirs is None:
        parser.error("--theirs is needed: the Python of an environment with mmsegmentation")

    from cacseg.bench.data import write_generated
    from cacseg.bench.machine import processor_name

    with tempfile.TemporaryDirectory() as scratch:
        write_generated(Path(scratch), 64)
        sizes = [path.stat().st_size for path in Path(scratch).rglob("*.jpg")]
        kinds = {"ours": arguments.ours, "theirs": arguments.theirs}
        processes = {
            kind: subprocess.Popen(
                [python, __file__, "--core", str(arguments.core), "--work", kind, scratch],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for kind, python in kinds.items()
        }

        def ask(kind: str, line: str | None) -> str:
            process = processes[kind]
            assert process.stdin is not None
            assert process.stdout is not None
            if line is not None:
                print(line, file=process.stdin, flush=True)
            answer = process.stdout.readline()
            if not answer:
                sys.exit(f"the process of {kind} ended; its error stands above")
            return answer

        versions = {kind: json.loads(ask(kind, None)) for kind in processes}
        speeds: dict[str, list[float]] = {kind: [] for kind in processes}
        for number in range(arguments.rounds + 1):
            order = list(processes)[:: 1 if number % 2 else -1]
            for kind in order:
                seconds = float(ask(kind, f"{number * arguments.images} {arguments.images}"))
                if number:  # the first round fills caches
                    speeds[kind].append(arguments.images / seconds)
        for process in processes.values():
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
    medians = {kind: statistics.median(values) for kind, values in speeds.items()}
    result = {
        "images_per_second": medians,
        "ratio": medians["ours"] / medians["theirs"],
        "rounds": speeds,
        "images": arguments.images,
        "jpeg_bytes": statistics.mean(sizes),
        "versions": versions,
        "processor": processor_name(),
        "date": time.strftime("%Y-%m-%d"),
    }
    for kind, median in medians.items():
        print(f"{kind:>7}: {median:6.1f} images a second ({min(speeds[kind]):.1f} to {max(speeds[kind]):.1f})")
    print(f"  ratio: {result['ratio']:.2f}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
