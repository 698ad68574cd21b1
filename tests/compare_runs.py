"""Comparisons for tests. As a program: `cacseg` with `ARGUMENTS`, where each run also leaves its scores.json."""

import json
import sys

from cacseg.recipes import compare, pool
from cacseg.recipes.files import read_config

TINY = [
    *("synthetic", "--devices", "cpu", "--set", "data.length=8", "--set", "data.val_length=3"),
    *("--set", "data.size=64,64", "--set", "data.crop=64,64", "--set", "training.batch=2"),
    *("--set", "training.workers=0", "--set", "model.auxiliary=false"),
]


def scores(output="plain", *, iou=(0.5, 0.25), labelled=(99, 1), steps=10, finished=True, train=False, **others):
    """The content of scores.json; `iou` of the own output, `others` of further ones."""
    outputs = {output: iou, **others}
    split = {
        "images": 2,
        "labelled_pixels": list(labelled),
        "outputs": {
            name: {
                "mean_iou": sum(values) / len(values),
                "mean_accuracy": 0.5,
                "pixel_accuracy": 0.75,
                "iou": list(values),
            }
            for name, values in outputs.items()
        },
    }
    return {
        "format": "cacseg scores 1",
        "step": steps,
        "steps": steps,
        "finished": finished,
        "output": output,
        "class_names": [f"class {k}" for k in range(len(labelled))],
        "splits": {"val": split, **({"train": split} if train else {})},
        "best": {"step": steps, "mean_iou": split["outputs"][output]["mean_iou"]},
        "seconds": 1.5,
        "peak_mib": None,
        "device": "cpu",
    }


def train_and_score(run, folder, recipe):
    """What a run of `cacseg train` does, and its scores.json if it has none."""
    import cacseg
    from cacseg.engine.evaluate import evaluate
    from cacseg.engine.views import output_names
    from cacseg.metrics import tally
    from cacseg.recipes.build import open_split

    pool.train_run(run, folder, recipe)  # in its own process nobody has replaced it
    if compare.is_finished(folder):
        return
    model, data = cacseg.load(folder / "last.safetensors"), open_split(read_config(folder).config.data, "val")
    found = evaluate(model, data, oracle="oracle" in output_names(model, oracle=True), batch=1, workers=0)
    counts = {name: one for name, one in found.counts.items() if name != "mean"}
    content = scores(
        found.output,
        iou=[0.0] * len(found.class_names),
        labelled=tally(found.counts["plain"]).labelled.tolist(),
        steps=run.steps,
    )
    content["class_names"] = list(found.class_names)
    content["splits"]["val"]["images"] = len(data)
    content["splits"]["val"]["outputs"] = {
        name: {
            "mean_iou": found.scores(name).mean_iou,
            "mean_accuracy": found.scores(name).mean_accuracy,
            "pixel_accuracy": found.scores(name).pixel_accuracy,
            "iou": [None if value != value else value for value in found.scores(name).iou.tolist()],
        }
        for name in counts
    }
    (folder / "scores.json").write_text(json.dumps(content))


def fail_one(run, folder, recipe):
    """A run of tuned fails."""
    if run.arm == "tuned":
        raise ValueError("no luck\n  with this one")
    train_and_score(run, folder, recipe)


if __name__ == "__main__":
    import compare_runs
    from cacseg.cli import main

    pool.train_run = compare_runs.train_and_score
    sys.argv[0] = "cacseg"
    main()
