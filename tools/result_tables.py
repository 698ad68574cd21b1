"""Tables of results, from docs/records: what `cacseg compare` and `cacseg ablate` wrote, and the paper's figures."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from cacseg.reports.comparison import CELL, ablation_table, averaged, grouped_classes, own, plus_minus
from cacseg.reports.tables import markdown_table

RECORDS = Path(__file__).resolve().parent.parent / "docs" / "records"
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
    "deeplabv3plus": "small DeepLabV3+",
}
SCENES = {"adamw": "Generated scenes, rate 1e-3", "adamw_fast": "Generated scenes, rate 3e-3"}
TITLES = {"overlap": "plain, soft Jaccard", "unadapted": "`tuned`, one classifier for all"}
LONGER = 2000  # steps
ARMS = ("plain", "overlap", "paper", "released", "unadapted", "tuned")
HEADS = {
    "deeplabv3plus": "DeepLabV3+, 512 channels",
    "fcn": "FCN, 512",
    "upernet": "UPerNet, 512",
    "upernet_256": "UPerNet, 256",
    "upernet_128": "UPerNet, 128",
}


def shown_as(line: Any) -> str:
    """A mean, and in brackets its difference from plain at equal seeds."""
    difference = f" ({plus_minus(line.difference, line.difference_error, '+')})"
    return f"{line.mean:.1f}" + ("" if line.arm == "plain" else difference)


def titles(arms: Iterable[str]) -> list[str]:
    return [TITLES.get(arm, arm if arm == "plain" else f"`{arm}`") for arm in arms]


def compared(name: str, folder: str = "compare") -> pd.DataFrame:
    """A table of all folders of `cacseg compare`, in the order of DATA; each folder has other runs."""
    rows = pd.concat([pd.read_csv(path) for path in sorted((RECORDS / folder).glob(f"*/{name}.csv"))])
    return rows.sort_values(["data", "steps"], key=_order, kind="stable", ignore_index=True)


def _order(column: pd.Series) -> pd.Series:
    return column.map(list(DATA).index) if column.name == "data" else -column


def shipped() -> pd.DataFrame:
    return own(compared("results"))


def again() -> pd.DataFrame:
    """The same commands, run a second time."""
    return own(compared("results", "again"))


def kept_aside() -> pd.DataFrame:
    rows = pd.read_csv(RECORDS / "kept_aside.csv").replace({"arm": {"plain_overlap": "overlap"}})
    return rows[rows["own"] == "yes"].rename(columns={"miou": "mean_iou"})


def scenes() -> pd.DataFrame:
    """Runs of the search on generated scenes, at two rates."""
    rows = pd.read_csv(RECORDS / "search.csv").rename(columns={"miou": "mean_iou"})
    rows = rows[rows["data"] == "scenes"].replace({"arm": {"plain_overlap": "overlap", "fixed_overlap": "unadapted"}})
    return rows.assign(data=rows["optimiser"])


def gains(rows: pd.DataFrame, data: dict[str, str], arms: tuple[str, ...]) -> list[list[str]]:
    """Data, model, steps, and the mIoU of each arm; three seeds or nothing."""
    found = []
    for (name, model, steps), lines in averaged(rows, "plain", "mean_iou", CELL).groupby(CELL, sort=False):
        of_arm = {line.arm: shown_as(line) for line in lines.itertuples() if line.seeds >= 3}
        found.append([data[name], MODELS[model], str(steps), *(of_arm.get(arm, "") for arm in arms)])
    return sorted(found, key=lambda row: list(data.values()).index(row[0]))


def gains_table() -> list[str]:
    """Last what the same command gave when it was run again: `tuned`, and how far the mean of any arm moved."""
    first, second = shipped(), again()
    gained = {tuple(row[:3]): row[3] for row in gains(second, DATA, ("tuned",))}
    means = [averaged(rows, "plain", "mean_iou", CELL).set_index([*CELL, "arm"])["mean"] for rows in (first, second)]
    moved = {
        (DATA[name], MODELS[model], str(steps)): f"{change:.1f}"
        for (name, model, steps), change in (means[1] - means[0]).abs().groupby(CELL).max().dropna().items()
    }
    rows = [[*row, *(found.get(tuple(row[:3]), "") for found in (gained, moved))] for row in gains(first, DATA, ARMS)]
    header = ["data", "model", "steps", *titles(ARMS), "`tuned`, run again", "any mean, run again: moved by"]
    return markdown_table(header, rows)


def kept_aside_table() -> list[str]:
    """Last the pixel accuracy of `tuned`, from plain."""
    arms = ("plain", "overlap", "released", "tuned")
    lines = averaged(kept_aside(), "plain", "pixel_accuracy", CELL)
    of_data = {line.data: line for line in lines[lines["arm"] == "tuned"].itertuples()}
    pixels = [plus_minus(of_data[one].difference, of_data[one].difference_error, "+") for one in KEPT_ASIDE]
    rows = [[*row, one] for row, one in zip(gains(kept_aside(), KEPT_ASIDE, arms), pixels, strict=True)]
    return markdown_table(["data", "model", "steps", *titles(arms), "pixel accuracy of `tuned`"], rows)


def readme_table() -> list[str]:
    """Two data sets that no choice was made on, and the two that it was made with, run twice."""
    city, ccp = KEPT_ASIDE["city"], KEPT_ASIDE["ccp"]
    first = {"camvid": "CamVid", "msrc21": "MSRC-21"}
    second = {name: f"{title}, run again" for name, title in first.items()}
    rows = {}
    for runs, data in ((kept_aside(), {"city": city, "ccp": ccp}), (shipped(), first), (again(), second)):
        long = (runs["steps"] >= LONGER) | (runs["data"] == "ccp")
        runs = runs[runs["data"].isin(data) & long]
        lines = averaged(runs, "overlap", "mean_iou", CELL)
        alone = {data[one.data]: one for one in lines[lines["arm"] == "tuned"].itertuples()}
        for row in gains(runs, data, ("plain", "overlap", "tuned")):
            minus = plus_minus(alone[row[0]].difference, alone[row[0]].difference_error, "+")
            rows[row[0]] = [row[0], *row[2:], minus]
    header = ["data", "steps", "plain", "plain with the soft-Jaccard loss (minus plain)", "context-aware (minus plain)"]
    header.append("context-aware minus plain with that loss")
    shown = [city, ccp, *(found[name] for name in first for found in (first, second))]
    return markdown_table(header, [rows[title] for title in shown])


def balance_table() -> list[str]:
    """`data.balance` with plain and `tuned`, where the comparison had it: all classes, and the rare ones."""
    arms = ("plain", "plain_balance", "tuned", "tuned_balance")
    whole = averaged(shipped(), "plain", "mean_iou", CELL).assign(group="all classes")
    groups = averaged(grouped_classes(own(compared("classes"))), "plain", "iou", [*CELL, "group"])
    rows = []
    for (name, model, steps, group), lines in pd.concat([whole, groups]).groupby([*CELL, "group"], sort=False):
        of_arm = {line.arm: shown_as(line) for line in lines.itertuples()}
        if set(arms) <= set(of_arm) and not group.startswith("frequent"):
            rows.append([f"{DATA[name]}, {MODELS[model]}, {steps} steps", group, *(of_arm[arm] for arm in arms)])
    header = ["data", "classes", "plain", "plain, balanced", "`tuned`", "`tuned`, balanced"]
    return markdown_table(header, sorted(rows))


def group_table() -> list[str]:
    """The mean IoU of classes by their share of the labels, UPerNet-MobileNetV2 after 2000 steps."""
    rows = []
    lines = averaged(grouped_classes(own(compared("classes"))), "plain", "iou", [*CELL, "group"])
    lines = lines.sort_values("data", key=lambda one: one.map(list(DATA).index), kind="stable")
    for (name, model, steps, group), of_group in lines.groupby([*CELL, "group"], sort=False):
        if model != "upernet on mobilenetv2_100" or steps != LONGER:
            continue
        of_arm = {line.arm: shown_as(line) for line in of_group.itertuples() if line.seeds >= 3}
        rows.append([f"{DATA[name]}: {group}", *(of_arm.get(arm, "") for arm in ARMS)])
    return markdown_table(["classes by their share of the labels", *titles(ARMS)], rows)


def class_table() -> list[str]:
    """Of the classes of Cityscapes, kept aside, those that `tuned` changes by more than five points; the others."""
    rows, arms, rest = [], ("plain", "plain_overlap", "released", "tuned"), []
    recorded = pd.read_csv(RECORDS / "street_scenes_classes.csv")
    lines = averaged(recorded[recorded["own"] == "yes"], "plain", "iou", ["class"])
    for name, of_class in lines.groupby("class", sort=False):
        of_arm = {line.arm: line for line in of_class.itertuples()}
        if abs(of_arm["tuned"].difference) > 5.0:
            rows.append([str(name), *(shown_as(of_arm[arm]) for arm in arms)])
        else:
            rest.append([of_arm[arm].difference for arm in arms[1:]])
    ranges = [f"{min(found):+.1f} to {max(found):+.1f}" for found in zip(*rest, strict=True)]
    rows.append([f"the other {len(rest)}, from plain", "", *ranges])
    return markdown_table(["IoU", *titles(("plain", "overlap", "released", "tuned"))], rows)


def adapting_table() -> list[str]:
    """`tuned` minus arms that share its losses and do not adapt, paired by seed; and when they were run again."""
    rounds = {"": pd.concat([kept_aside(), shipped(), scenes()]), ", run again": again()}
    columns = [(base, words) for base in ("overlap", "unadapted") for words in rounds]
    against = {}
    for base, words in columns:
        lines = averaged(rounds[words], base, "mean_iou", CELL)
        for line in lines[(lines["arm"] == "tuned") & (lines["pairs"] >= 3)].itertuples():
            cell = line.data, line.model, line.steps
            against.setdefault(cell, {})[base, words] = plus_minus(line.difference, line.difference_error, "+")
    names = {**KEPT_ASIDE, **DATA, **SCENES}
    rows = [
        [f"{names[data]}, {MODELS[model]}, {steps} steps", *(found.get(column, "") for column in columns)]
        for (data, model, steps), found in against.items()
    ]
    header = [title + words for title, (_, words) in zip(titles(base for base, _ in columns), columns, strict=True)]
    return markdown_table(["mIoU of `tuned` minus that of", *header], rows)


def ablation(name: str) -> list[str]:
    table = ablation_table(pd.read_csv(RECORDS / f"ablation_{name}.csv"), name)
    return markdown_table(table.header, table.rows)


def heads() -> list[str]:
    """Time over the first head's, of runs that shared one GPU."""
    rows = pd.read_csv(RECORDS / "heads.csv")
    shown = rows.pivot_table(index="arm", columns="data", values=["mean_iou", "peak_mib", "seconds"], sort=False)
    seconds = shown["seconds"] / shown["seconds"].loc["deeplabv3plus"]
    found = []
    for arm, title in HEADS.items():
        mious = [f"{shown['mean_iou', data][arm]:.1f}" for data in ("camvid", "msrc21")]
        memory = f"{shown['peak_mib', 'camvid'][arm] / 1024:.1f} GiB"
        found.append([title, *mious, f"{seconds['camvid'][arm]:.2f}x", memory])
    return markdown_table(["head on MobileNetV2", "CamVid", "MSRC-21", "time", "GPU memory"], found)


def paper_table() -> list[str]:
    """The paper's main table: mIoU, plain -> context, at one scale and at several."""
    columns = ("ade20k", "ade20k_ms", "cocostuff164k", "cocostuff164k_ms")
    rows = []
    for row in pd.read_csv(RECORDS / "paper.csv").to_dict("records"):
        cells = [f"{row[f'{one}_plain']:.2f} -> {row[f'{one}_context']:.2f}" for one in columns]
        rate = f"{row['fps_plain']:.2f} -> {row['fps_context']:.2f}"
        rows.append([f"`{row['model']}`", *cells, rate])
    header = ["recipe `DATA/MODEL`", "ADE20K", "ADE20K, multi-scale", "COCO-Stuff", "COCO-Stuff, multi-scale", "fps"]
    return markdown_table(header, rows)
