"""Writes the measured tables of README.md and docs anew: make tables

A table stands between <!-- NAME: ... --> and <!-- /NAME -->. Results come from docs/records (what `cacseg compare` and
`cacseg ablate` wrote), times and memory from benchmarks/results (what `cacseg bench ... --json` wrote).
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from cacseg.recipes.ablate import TABLES
from cacseg.reports.comparison import CELL, ablation_table, averaged, grouped_classes, plus_minus
from cacseg.reports.tables import markdown_table

ROOT = Path(__file__).resolve().parent.parent
RECORDS, TIMES = ROOT / "docs" / "records", ROOT / "benchmarks" / "results"
KEPT_ASIDE = {
    "city": "Cityscapes, 19 classes, 512x256",
    "ccp": "Clothing Co-Parsing, 59 classes",
    "lmf": "LabelMeFacade, 8 classes",
}
DATA = {"camvid": "CamVid", "msrc21": "MSRC-21", "cityscapes_small": "Cityscapes, part, 512x256"}
MODELS = {
    "upernet on mobilenetv2_100": "UPerNet-MobileNetV2",
    "upernet": "UPerNet-MobileNetV2",
    "upernet on tf_efficientnet_lite2": "UPerNet-EfficientNet-Lite2",
    "fcn on mobilenetv2_100": "FCN-MobileNetV2",
}
TITLES = {"overlap": "plain, soft Jaccard", "unadapted": "`tuned`, one classifier for all"}
ARMS = ("plain", "overlap", "paper", "released", "unadapted", "tuned")
HEADS = {
    "deeplabv3plus": "DeepLabV3+, 512 channels",
    "fcn": "FCN, 512",
    "upernet": "UPerNet, 512",
    "upernet_256": "UPerNet, 256",
    "upernet_128": "UPerNet, 128",
}
OURS = "plain, upsampled_cross_entropy"


def shown_as(line: Any) -> str:
    """A mean, and in brackets its difference from plain at equal seeds."""
    difference = f" ({plus_minus(line.difference, line.difference_error, '+')})"
    return f"{line.mean:.1f}" + ("" if line.arm == "plain" else difference)


def titles(arms: Iterable[str]) -> list[str]:
    return [TITLES.get(arm, arm if arm == "plain" else f"`{arm}`") for arm in arms]


def shipped() -> pd.DataFrame:
    rows = pd.read_csv(RECORDS / "results.csv")
    return rows[(rows["own"] == "yes") & (rows["split"] == "val")]


def kept_aside() -> pd.DataFrame:
    rows = pd.read_csv(RECORDS / "kept_aside.csv").replace({"arm": {"plain_overlap": "overlap"}})
    return rows[rows["own"] == "yes"].rename(columns={"miou": "mean_iou"})


def gains(rows: pd.DataFrame, data: dict[str, str], arms: tuple[str, ...]) -> list[list[str]]:
    """Data, model, steps, and the mIoU of each arm; three seeds or nothing."""
    found = []
    for (name, model, steps), lines in averaged(rows, "plain", "mean_iou", CELL).groupby(CELL, sort=False):
        of_arm = {line.arm: shown_as(line) for line in lines.itertuples() if line.seeds >= 3}
        found.append([data[name], MODELS[model], str(steps), *(of_arm.get(arm, "") for arm in arms)])
    return sorted(found, key=lambda row: list(data.values()).index(row[0]))


def gains_table() -> list[str]:
    return markdown_table(["data", "model", "steps", *titles(ARMS)], gains(shipped(), DATA, ARMS))


def kept_aside_table() -> list[str]:
    arms = ("plain", "overlap", "released", "tuned")
    return markdown_table(["data", "model", "steps", *titles(arms)], gains(kept_aside(), KEPT_ASIDE, arms))


def readme_table() -> list[str]:
    arms = ("plain", "overlap", "released", "tuned")
    ours = shipped()
    main = ours[ours["model"] == "upernet on mobilenetv2_100"]
    rows = gains(kept_aside(), KEPT_ASIDE, arms) + gains(main, DATA, arms)
    return markdown_table(["data", "steps", *titles(arms)], [[row[0], *row[2:]] for row in rows])


def balance_table() -> list[str]:
    """`data.balance` beside plain and `tuned`, where the comparison had it: all classes, and the rare ones."""
    arms = ("plain", "plain_balance", "tuned", "tuned_balance")
    whole = averaged(shipped(), "plain", "mean_iou", CELL).assign(group="all classes")
    groups = averaged(grouped_classes(pd.read_csv(RECORDS / "classes.csv")), "plain", "iou", [*CELL, "group"])
    rows = []
    for (name, model, steps, group), lines in pd.concat([whole, groups]).groupby([*CELL, "group"], sort=False):
        of_arm = {line.arm: shown_as(line) for line in lines.itertuples()}
        if set(arms) <= set(of_arm) and not group.startswith("frequent"):
            rows.append([f"{DATA[name]}, {MODELS[model]}, {steps} steps", group, *(of_arm[arm] for arm in arms)])
    header = ["data", "classes", "plain", "plain, balanced", "`tuned`", "`tuned`, balanced"]
    return markdown_table(header, sorted(rows))


def group_table() -> list[str]:
    """The mean IoU of classes by their share of the labels, UPerNet-MobileNetV2."""
    rows = []
    lines = averaged(grouped_classes(pd.read_csv(RECORDS / "classes.csv")), "plain", "iou", [*CELL, "group"])
    lines = lines.sort_values("data", key=lambda one: one.map(list(DATA).index), kind="stable")
    for (name, model, steps, group), of_group in lines.groupby([*CELL, "group"], sort=False):
        if model != "upernet on mobilenetv2_100":
            continue
        of_arm = {line.arm: shown_as(line) for line in of_group.itertuples() if line.seeds >= 3}
        rows.append([f"{DATA[name]}, {steps} steps: {group}", *(of_arm.get(arm, "") for arm in ARMS)])
    return markdown_table(["classes by their share of the labels", *titles(ARMS)], rows)


def class_table() -> list[str]:
    """Of the classes of Cityscapes, kept aside, those whose IoU `tuned` changes by more than five points."""
    rows, arms = [], ("plain", "plain_overlap", "released", "tuned")
    recorded = pd.read_csv(RECORDS / "street_scenes_classes.csv")
    lines = averaged(recorded[recorded["own"] == "yes"], "plain", "iou", ["class"])
    for name, of_class in lines.groupby("class", sort=False):
        of_arm = {line.arm: line for line in of_class.itertuples()}
        if abs(of_arm["tuned"].difference) > 5.0:
            rows.append([str(name), *(shown_as(of_arm[arm]) for arm in arms)])
    return markdown_table(["IoU", *titles(("plain", "overlap", "released", "tuned"))], rows)


def adapting_table() -> list[str]:
    """`tuned` beside arms that share its losses and do not adapt, paired by seed."""
    both = pd.concat([kept_aside(), shipped()])
    against = {}
    for base in ("overlap", "unadapted"):
        lines = averaged(both, base, "mean_iou", CELL)
        for line in lines[(lines["arm"] == "tuned") & (lines["pairs"] >= 3)].itertuples():
            cell = line.data, line.model, line.steps
            against.setdefault(cell, {})[base] = plus_minus(line.difference, line.difference_error, "+")
    names = {**KEPT_ASIDE, **DATA}
    rows = [
        [f"{names[data]}, {MODELS[model]}, {steps} steps", *(found.get(base, "") for base in ("overlap", "unadapted"))]
        for (data, model, steps), found in against.items()
    ]
    return markdown_table(["mIoU of `tuned` beside", *titles(("overlap", "unadapted"))], rows)


def ablation(name: str) -> list[str]:
    table = ablation_table(pd.read_csv(RECORDS / f"ablation_{name}.csv"), name)
    return markdown_table(table.header, table.rows)


def timed(name: str) -> Any:
    return json.loads((TIMES / f"{name}.json").read_text())


def cost(rows: dict[str, Any], name: str) -> str:
    """A row's time beside plain, and its memory where that was measured."""
    row = rows[name]
    if name == "plain":
        return f"{row['time_ms']:.1f} ms" + ("" if row["memory_mib"] is None else f", {row['memory_mib']:.0f} MiB")
    shown = f"{row['time_ratio']:.2f}x" if row["time_ratio"] > 1.1 else f"{row['time_ratio']:.3f}x"
    return shown + ("" if row["memory_ratio"] is None else f", {row['memory_ratio']:.2f}x")


def readme_costs() -> list[str]:
    """The loss from the features on: on a CPU, and on a GPU as a CUDA graph with the memory of the eager run."""
    arm = timed("arm_cpu_float32")["rows"]
    runs = [(arm, arm)]
    runs += [
        (timed("h200_loss_graph")[index]["rows"], timed(f"h200_{dtype}")["rows"])
        for index, dtype in enumerate(("float32", "bfloat16"))
    ]
    rows = []
    shown = {"plain": "plain", OURS: "plain, `upsampled_cross_entropy`", "tuned": "`tuned`", "released": "`released`"}
    for key, title in shown.items():
        cells = []
        for graph, eager in runs:
            if key == "plain":
                cells.append(f"{graph[key]['time_ms']:.3g} ms, {eager[key]['memory_mib']:.0f} MiB")
            else:
                time, memory = graph[key]["time_ratio"], eager[key]["memory_ratio"]
                cells.append(f"{time:.2f}x time, {memory:.2f}x memory")
        rows.append([title, *cells])
    hardware = ["2 Arm cores, float32, b = 2", "H200, float32, b = 4, CUDA graph", "H200, bfloat16, b = 4, CUDA graph"]
    return markdown_table(["", *hardware], rows)


def loss_times() -> list[str]:
    rows = []
    for index, dtype in enumerate(("float32", "bfloat16")):
        eager, graph = timed(f"h200_{dtype}")["rows"], timed("h200_loss_graph")[index]["rows"]
        names = ("plain", OURS, "tuned", "released", "paper", "looped")
        rows.append([f"{dtype}, eager", *(cost(eager, name) for name in names)])
        rows.append([f"{dtype}, CUDA graph", *(cost(graph, name) for name in names[:-1]), ""])
    return markdown_table(
        ["time, memory", "plain", OURS, "`tuned`", "`released`", "`paper`", "`released`, looped"], rows
    )


def step_times() -> list[str]:
    rows = []
    for entry in timed("h200_step"):
        title = f"{entry['dtype']}{'' if entry['auxiliary'] else ', no auxiliary head'}"
        rows.append([title, *(cost(entry["rows"], name) for name in ("plain", OURS, "context"))])
    return markdown_table(["", "plain", "plain, `upsampled_cross_entropy`", "context-aware (`tuned`)"], rows)


def inference_times() -> list[str]:
    rows, modes = [], {"eager": "eager", "graph": "CUDA graph"}
    for entry in timed("h200_infer"):
        both = entry["rows"]
        rates = [f"{1e3 / both[name]['time_ms']:.1f}" for name in ("plain", "context")]
        title = f"{entry['size']}, {modes[entry['mode']]}"
        rows.append([title, *rates, *(cost(both, name) for name in ("plain", "context"))])
    return markdown_table(["size, mode", "plain, fps", "context, fps", "plain", "context"], rows)


def onnx_times() -> list[str]:
    """Exported models in ONNX Runtime on a CPU."""
    rows = []
    for entry in timed("onnx"):
        both = entry["rows"]
        title = f"{entry['model']}, {entry['size']}x{entry['size']}, {entry['classes']} classes"
        rows.append([title, *(cost(both, name) for name in ("plain", "context"))])
    return markdown_table(["model", "plain", "context"], rows)


def export_differences() -> list[str]:
    """How far the ONNX file of each model is from the model, at both sizes and over the range of the logits."""
    rows = []
    for name, found in timed("export_models")["models"].items():
        differences = [f"{check['difference']:.1e}" for check in found["checks"]]
        share = max(check["difference"] / check["allowed"] for check in found["checks"])
        rows.append([f"`{name}`", f"{found['size_mib']:.0f}", *differences, f"{share:.2f}"])
    return markdown_table(["model", "MiB", "1 x 130x97", "3 x 75x144", "of allowed"], rows)


def blocks() -> list[str]:
    rows = [
        [
            f"{row['stride']}, {row['blocks']}".replace("32, all", "32"),
            f"{row['miou']:.1f}",
            f"{row['correlation']:.2f}",
        ]
        for row in timed("dilated_blocks")["rows"]
    ]
    return markdown_table(["stride, dilated blocks", "mIoU", "correlation"], rows)


def heads() -> list[str]:
    """Time beside the first head's, of runs that shared one GPU."""
    rows = pd.read_csv(RECORDS / "heads.csv")
    shown = rows.pivot_table(index="arm", columns="data", values=["mean_iou", "peak_mib", "seconds"], sort=False)
    seconds = shown["seconds"] / shown["seconds"].loc["deeplabv3plus"]
    found = []
    for arm, title in HEADS.items():
        mious = [f"{shown['mean_iou', data][arm]:.1f}" for data in ("camvid", "msrc21")]
        memory = f"{shown['peak_mib', 'camvid'][arm] / 1024:.1f} GiB"
        found.append([title, *mious, f"{seconds['camvid'][arm]:.2f}x", memory])
    return markdown_table(["head on MobileNetV2", "CamVid", "MSRC-21", "time", "GPU memory"], found)


def jobs() -> list[str]:
    """Images a second of whole jobs, on the machines where they were measured."""
    found = []
    for name, place in (("h200", "H200, bfloat16"),):
        for kind in ("train", "predict"):
            for row, rate in timed(f"{name}_{kind}")["rows"].items():
                found.append([f"{kind}, {place}: {row}", f"{rate['images_per_second']:.3g}", f"{rate['ratio']:.2f}x"])
    return markdown_table(["", "images a second", ""], found)


def large_images(name: str) -> list[str]:
    """Time and memory; where the record says so, what the features of all tiles would take."""
    shown = {"features_mib": "features of all tiles", "peak_mib": "peak memory"}
    found = timed(name)["rows"]
    keys = [key for key in shown if key in found[0]]
    rows = [
        [f"{row['side']}x{row['side']}", *(f"{row[key]:.0f} MiB" for key in keys), f"{row['seconds']:.0f} s"]
        for row in found
    ]
    return markdown_table(["image", *(shown[key] for key in keys), "time"], rows)


def tiled_heads() -> list[str]:
    """How far tiles are from the whole image."""
    names = {"fcn": "FCN", "deeplabv3plus": "DeepLabV3+", "ocrnet": "OCRNet", "upernet": "UPerNet"}
    rows = []
    for row in timed("tile_exactness")["rows"]:
        cells = [
            [f"{100 * row[name][key]:.1f} %" for name in ("plain", "context")] for key in ("changed", "mean_difference")
        ]
        rows.append([names[row["head"]], *cells[0], *cells[1]])
    return markdown_table(["", "pixels, plain", "pixels, context", "logits, plain", "logits, context"], rows)


def side_rates() -> list[str]:
    """What large jobs do beside the network."""
    found = timed("rates")
    names = {
        "read, deflate": "reading windows of a tiled TIFF, deflate",
        "read, jpeg": "reading windows of a tiled TIFF, JPEG",
        "empty pixels, deflate": "which pixels are empty, by a value of the bands",
        "empty pixels, jpeg": "which pixels are empty, of a file that marks none",
        "write masks": "writing masks by blocks",
    }
    rows = [[names[key], f"{rate:.0f} megapixels a second"] for key, rate in found["megapixels_per_second"].items()]
    files = f"{found['files']:,}"
    rows.append([f"listing a folder of {files} files and sharing it out", f"{found['seconds']['list']:.0f} s"])
    rows.append([f"merging eight indexes of {found['files'] // 8:,} rows", f"{found['seconds']['merge']:.0f} s"])
    return markdown_table(["rate", "measured"], rows)


def shard_rates() -> list[str]:
    """Workers on one machine beside one; empty until `benchmarks/shards.py -o shards.json` was run there."""
    if not (TIMES / "shards.json").is_file():
        return []
    found, rows = timed("shards"), []
    base = next(iter(found["rates"].values()))
    for workers, rates in found["rates"].items():
        ratio = statistics.median(one / first for one, first in zip(rates, base, strict=True))
        others = f"{max(found['cores_of_others'][workers]):.2f}"
        rows.append([workers, f"{statistics.median(rates):.2f}", f"{ratio:.2f}x", others])
    return markdown_table(["workers", "images a second", "", "cores that others took at most"], rows)


def carried_context() -> list[str]:
    rows = [
        [row["row"], f"{100 * row['miou']:.2f}", f"{100 * row['flicker']:.2f} %"] for row in timed("arm_carry")["rows"]
    ]
    return markdown_table(["", "mIoU", "flicker"], rows)


def dilated_times() -> list[str]:
    rows = []
    for entry in timed("h200_dilated_time"):
        first, every = (entry["rows"][name] for name in ("first", "all"))
        times = f"{first['time_ms']:.1f} ms", f"{every['time_ms']:.1f} ms, {every['time_ratio']:.2f}x"
        rows.append([entry["precision"], *times])
    return markdown_table(["", '"first"', '"all"'], rows)


def label_formats() -> list[str]:
    """The training pipeline with the labels of CamVid in each format, beside index PNGs."""
    found = timed("label_formats")
    exact, near = (found[name] for name in ("exact", "simplified"))
    rows = []
    for one, other in zip(exact["rows"], near["rows"], strict=True):
        cells = [f"{row['images_per_second']:.0f}, {row['ratio']:.2f}x" for row in (one, other)]
        rows.append([one["labels"], *cells])
    corners = [f"{run['corners_per_image']:,.0f} corners an image" for run in (exact, near)]
    return markdown_table(["labels", *corners], rows)


def label_drawing() -> list[str]:
    """What it takes to open a large COCO file, and how much others draw otherwise."""
    found = timed("label_formats")
    opening = found["opening"]
    title = f"COCO of {opening['annotations']:,} annotations, {opening['file_mb']:.0f} MB: opened"
    rows = [[title, f"{opening['seconds']:.1f} s, {opening['peak_mb']:.0f} MB at most"]]
    rows += [
        [f"pixels that {name} draws otherwise", f"{100 * s:.2f} %"] for name, s in found["drawn_otherwise"].items()
    ]
    return markdown_table(["", "measured"], rows)


def recorded(found: Any) -> str:
    """Command, machine and date of a campaign."""
    return f"`{found['command']}`, {found['processor']}, {found['minutes']:.0f} minutes, {found['date']}."


DAMAGED = {
    "images and films": ("image", "video"),
    "16 bits, floats, bands": ("bands", "bands-tiled"),
    "labels and class lists": ("labels-index", "labels-colour", "labels-mat", "class-list"),
    "labels of other tools": (
        *("coco", "coco-runs", "labelme", "labelme-masks", "yolo", "voc", "roboflow-masks", "label-studio"),
    ),
    "archives": ("zip", "zip-bomb"),
    "models and weights": ("model", "weights"),
    "checkpoints": ("checkpoint",),
    "configurations, arms": ("config", "arms"),
    "journals": ("journal",),
    "scores and curves of reports": ("scores", "metrics", "evaluation", "comparison"),
    "hub folders": ("hub",),
    "ONNX files and their metadata": ("onnx", "export-metadata"),
    "uploads to page and service": ("page", "page-bands", "service"),
    "all": ("all",),
}


def damaged_files() -> list[str]:
    """What came of the loads of `make fuzz`, by kind of file."""
    found = timed("fuzz")
    outcomes, rows = list(found["kinds"]["all"]), []
    if lost := set(found["kinds"]) - {kind for kinds in DAMAGED.values() for kind in kinds}:
        raise ValueError(f"kinds of files without a row: {', '.join(sorted(lost))}")
    for title, kinds in DAMAGED.items():
        there = [found["kinds"][kind] for kind in kinds if kind in found["kinds"]]
        counts = [sum(one[outcome] for one in there) for outcome in outcomes]
        rows.append([title, str(sum(counts)), *map(str, counts)])
    extremes = f"The longest load took {found['longest_seconds']:.0f} s, the largest {found['largest_mib']:.0f} MiB."
    return [recorded(found), extremes, "", *markdown_table(["files", "loads", *outcomes], rows)]


def killed_jobs() -> list[str]:
    """What came of the jobs of `make chaos`; empty until `make chaos CHAOS="--json chaos.json"` was run."""
    if not (TIMES / "chaos.json").is_file():
        return []
    found, rows = timed("chaos"), []
    for job in dict.fromkeys(one["job"] for one in found["jobs"]):
        same = [one for one in found["jobs"] if one["job"] == job]
        kills, equal = sum(len(one["kills"]) for one in same), sum(not one["problems"] for one in same)
        rows.append([job, str(len(same)), str(kills), str(equal)])
    return [recorded(found), "", *markdown_table(["", "jobs", "kills", "equal to one left alone"], rows)]


Table = Callable[[], list[str]]
PAGES: dict[str, dict[str, Table]] = {
    "README.md": {"gains": readme_table, "steps": step_times, "costs": readme_costs},
    "docs/results.md": {
        "gains": gains_table,
        "kept_aside": kept_aside_table,
        "groups": group_table,
        "classes": class_table,
        "adapting": adapting_table,
    },
    "docs/speed.md": {"loss": loss_times, "step": step_times, "infer": inference_times, "jobs": jobs},
    "docs/models.md": {"blocks": blocks, "dilated": dilated_times},
    "docs/training.md": {"heads": heads, "balance": balance_table},
    "docs/large.md": {
        "large": lambda: large_images("large_image"),
        "kept": lambda: large_images("large_image_kept"),
        "rates": side_rates,
        "tiles": tiled_heads,
        "shards": shard_rates,
        "carry": carried_context,
    },
    "docs/export.md": {"models": export_differences, "onnx": onnx_times},
    "docs/data.md": {"label_formats": label_formats, "label_drawing": label_drawing},
    "docs/faults.md": {"fuzz": damaged_files, "chaos": killed_jobs},
    "docs/ablations.md": {name: lambda name=name: ablation(name) for name in TABLES},
}


def rendered(page: str) -> str:
    """A page with its tables made anew."""
    text = (ROOT / page).read_text()
    for name, table in PAGES[page].items():
        body = "\n".join(table())
        pattern = rf"(<!-- {name}: .*?-->\n).*?(<!-- /{name} -->)"
        text, count = re.subn(pattern, rf"\g<1>{body}\n\g<2>", text, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"{page} must have the table {name!r} once; it has it {count} times.")
    return text


def main() -> None:
    for page in PAGES:
        before, after = (ROOT / page).read_text(), rendered(page)
        if before != after:
            (ROOT / page).write_text(after)
            print(f"wrote {page}")


if __name__ == "__main__":
    main()
