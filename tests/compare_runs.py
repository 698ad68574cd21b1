"""Comparisons for tests; a module of its own, so that a run's process can import it."""

from cacseg.recipes.pool import train_run

TINY = [
    *("synthetic", "--devices", "cpu", "--set", "data.length=8", "--set", "data.val_length=3"),
    *("--set", "data.size=64,64", "--set", "data.crop=64,64", "--set", "training.batch=2"),
    *("--set", "training.workers=0", "--set", "model.auxiliary=false", "--set", "model.head_channels=16"),
]


def scores(
    output="plain", *, iou=(0.5, 0.25), labelled=(99, 1), steps=10, finished=True, train=False, confusion=None, **others
):
    """The content of scores.json; `iou` and `confusion` of the own output, `others` of further ones."""
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
    if confusion is not None:
        split["outputs"][output]["confusion"] = confusion
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


def fail_one(run, folder, recipe):
    """A run of tuned fails."""
    if run.arm == "tuned":
        raise ValueError("no luck\n  with this one")
    train_run(run, folder, recipe)
