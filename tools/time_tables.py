"""Tables of time and memory, from benchmarks/results: what `cacseg bench ... --json` and the scripts there wrote."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

from cacseg.reports.tables import markdown_table

TIMES = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
OURS = "plain, upsampled_cross_entropy"


def timed(name: str) -> Any:
    return json.loads((TIMES / f"{name}.json").read_text())


def cost(rows: dict[str, Any], name: str) -> str:
    """A row's time over that of plain, and its memory where that was measured."""
    row = rows[name]
    if name == "plain":
        return f"{row['time_ms']:.1f} ms" + ("" if row["memory_mib"] is None else f", {row['memory_mib']:.0f} MiB")
    shown = f"{row['time_ratio']:.2f}x" if row["time_ratio"] > 1.1 else f"{row['time_ratio']:.3f}x"
    return shown + ("" if row["memory_ratio"] is None else f", {row['memory_ratio']:.2f}x")


def readme_table() -> list[str]:
    """Training steps with the auxiliary head, and inference as a CUDA graph."""
    rows = []
    for entry in timed("h200_step"):
        if entry["auxiliary"]:
            cells = [cost(entry["rows"], name) for name in ("plain", OURS, "context")]
            rows.append([f"training step, {entry['dtype']}", *cells])
    (entry,) = [one for one in timed("h200_infer") if (one["size"], one["mode"]) == (512, "graph")]
    rows.append(
        ["inference, bfloat16, one image, CUDA graph", *(cost(entry["rows"], name) for name in ("plain", "context"))]
    )
    rows[-1].insert(2, "")
    return markdown_table(["time, memory", "plain", "plain, `upsampled_cross_entropy`", "context-aware"], rows)


def core_times() -> list[str]:
    """Classifier and loss on two cores of a CPU."""
    places = {"arm_cpu_float32": "Arm Neoverse-N1, 2026-11-18", "cpu_float32": "Intel Xeon at 2.1 GHz, 2026-11-19"}
    rows = []
    for file, place in places.items():
        found = timed(file)["rows"]
        rows.append(
            [place, *(cost(found, name) if name in found else "" for name in ("plain", OURS, "tuned", "released"))]
        )
    return markdown_table(["two cores: time, memory", "plain", OURS, "`tuned`", "`released`"], rows)


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
    return markdown_table(
        ["time, memory", "plain", "plain, `upsampled_cross_entropy`", "context-aware (`tuned`)"], rows
    )


def inference_times() -> list[str]:
    rows, modes = [], {"eager": "eager", "graph": "CUDA graph"}
    for entry in timed("h200_infer"):
        both = entry["rows"]
        rates = [f"{1e3 / both[name]['time_ms']:.1f}" for name in ("plain", "context")]
        title = f"{entry['size']}, {modes[entry['mode']]}"
        rows.append([title, *rates, *(cost(both, name) for name in ("plain", "context"))])
    return markdown_table(
        ["size, mode", "plain, fps", "context, fps", "plain: time, memory", "context: time, memory"], rows
    )


def onnx_times() -> list[str]:
    """Exported models in ONNX Runtime on a CPU."""
    rows = []
    for entry in timed("onnx"):
        both = entry["rows"]
        title = f"{entry['model']}, {entry['size']}x{entry['size']}, {entry['classes']} classes"
        clock = re.search(r"[\d.]+ ?GHz", entry["hardware"])
        half = " to ".join(f"{one:.3f}x" for one in both["context"]["time_ratio_quartiles"])
        costs = [cost(both, name) for name in ("plain", "context")]
        rows.append([title, clock[0] if clock else entry["hardware"], str(entry["rounds"]), *costs, half])
    return markdown_table(
        ["model", "Xeon", "rounds", "plain: time, memory", "context", "middle half of the rounds"], rows
    )


def differences(found: Any) -> list[str]:
    """How far an ONNX file is from its model, at both sizes and as a share of what counts as rounding."""
    share = max(check["difference"] / check["allowed"] for check in found["checks"])
    return [*(f"{check['difference']:.1e}" for check in found["checks"]), f"{share:.2f}"]


def export_differences() -> list[str]:
    rows = [
        [f"`{name}`", f"{found['size_mib']:.0f}", *differences(found)]
        for name, found in timed("export_models")["models"].items()
    ]
    return markdown_table(["model", "MiB", "1 x 130x97", "3 x 75x144", "of allowed"], rows)


def converted_differences() -> list[str]:
    """The same of small models of other libraries; or why there is no file."""
    rows = []
    for name, found in timed("export_converted")["models"].items():
        if "reason" in found:
            sizes = found["reason"].startswith("a model must take images of any size")
            rows.append([name, "", "", "takes few sizes" if sizes else "cannot be traced"])
        else:
            rows.append([name, *differences(found)])
    return markdown_table(["model", "1 x 130x97", "3 x 75x144", "of allowed"], rows)


def export_precisions() -> list[str]:
    """What the files of a trained model score and cost; the first row is what times are compared with."""
    rows = []
    for name, found in timed("export_precision")["rows"].items():
        time = f"{found['time_ms']:.0f} ms" + ("" if name == "fp32" else f", {found['time_ratio']:.2f}x")
        rows.append([name, f"{100 * found['miou']:.2f}", f"{found['mib']:.1f}", time])
    return markdown_table(["precision", "mIoU", "MiB", "an image on one core"], rows)


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


def jobs() -> list[str]:
    """Images a second of whole jobs, on the machines where they were measured."""
    places = {
        "h200_train": "train, H200, bfloat16, generated",
        "h200_train_camvid": "train, H200, bfloat16, CamVid",
        "h200_predict": "predict, H200, bfloat16, generated",
        "xeon_train": "train, two Xeon cores, float32, generated",
        "xeon_amx_train": "train, two Xeon cores with AMX, bfloat16, generated",
        "xeon_predict": "predict, two Xeon cores, float32, generated",
        "xeon_amx_predict": "predict, two Xeon cores with AMX, bfloat16, generated",
    }
    found = []
    for file, place in places.items():
        for row, rate in timed(file)["rows"].items():
            found.append([f"{place}: {row}", f"{rate['images_per_second']:.3g}", f"{rate['ratio']:.2f}x"])
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


def pyramid_times() -> list[str]:
    """Models on a CPU whose levels are convolved apart, beside concatenated ones: time and memory."""
    cells: dict[str, list[str]] = {}
    for entry in timed("xeon_pyramid"):
        rows = entry["rows"]
        joined = rows["concatenated"]
        costs = f"{joined['time_ms']:.0f} ms, {joined['memory_mib']:.0f} MiB", cost(rows, "apart")
        cells.setdefault(entry["model"], []).extend(costs)
    jobs = ("inference", "training")
    header = ["time, memory", *(f"{job}: {row}" for job in jobs for row in ("concatenated", "apart"))]
    return markdown_table(header, [[model, *times] for model, times in cells.items()])


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


def throughput() -> list[str]:
    """The training pipeline beside mmsegmentation's on the same files."""
    result = timed("data_pipeline")
    rows = []
    for kind, title in (
        ("ours", "cacseg"),
        ("theirs", f"mmsegmentation {result['versions']['theirs']['mmsegmentation']}"),
    ):
        speeds, median = result["rounds"][kind], result["images_per_second"][kind]
        ratio = f"{result['ratio']:.2f}x" if kind == "ours" else "1x"
        rows.append([title, f"{median:.1f}", f"{min(speeds):.1f} to {max(speeds):.1f}", ratio])
    return markdown_table(["pipeline", "images a second a core", "range", ""], rows)


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
    new = f"{found['new']:,} of {found['loads']:,} loads are of newer formats: "
    new += "bands, labels of other tools, hub folders, ONNX, uploads."
    return [recorded(found), extremes, new, "", *markdown_table(["files", "loads", *outcomes], rows)]


def long_jobs() -> list[str]:
    """Memory and descriptors of long jobs: medians of the second and of the last quarter of each."""
    found, rows = timed("long_runs"), []
    for name, unit in {"predict": "images", "train": "steps"}.items():
        curve = found["runs"][name]["rows"]
        quarter = len(curve) // 4
        cells = [f"{name}, {curve[-1][0]:,} {unit}", str(curve[-1][3])]
        for column in (1, 2):
            parts = (curve[quarter : 2 * quarter], curve[-quarter:])
            cells += [f"{statistics.median(row[column] for row in part):.0f}" for part in parts]
        rows.append(cells)
    titles = ["", "processes", "MiB, second quarter", "MiB, last quarter", "descriptors", "at the end"]
    return [recorded(found), "", *markdown_table(titles, rows)]


def killed_jobs() -> list[str]:
    """What came of the jobs of `make chaos`; empty until `make chaos CHAOS="--json chaos.json"` was run."""
    if not (TIMES / "chaos.json").is_file():
        return []
    found, rows = timed("chaos"), []
    for job in dict.fromkeys(one["job"] for one in found["jobs"]):
        same = [one for one in found["jobs"] if one["job"] == job]
        kills, equal = sum(len(one["kills"]) for one in same), sum(not one["problems"] for one in same)
        if any("not_run" in one for one in same):
            rows.append([job, "not run", "", ""])
        else:
            rows.append([job, str(len(same)), str(kills), str(equal)])
    total = sum(found["kills"].values())
    inside = f"{found['inside_writes']} of {total} kills came while an unfinished file was there."
    return [recorded(found), inside, "", *markdown_table(["", "jobs", "kills", "equal to one left alone"], rows)]
