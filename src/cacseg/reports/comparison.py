"""Results of a comparison: means over seeds, paired differences from the baseline, by class and by frequency."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from cacseg._files import write_file
from cacseg.reports.tables import markdown_table

CELL = ["data", "model", "steps"]  # where arms are compared: all else is equal there; 0 steps are unknown or differ
GROUPS = {"rare, below 1 %": (0.0, 1.0), "1 to 5 %": (1.0, 5.0), "frequent, above 5 %": (5.0, 100.1)}  # of the labels
LEAST_SEEDS = 3  # for a claim: of two numbers the scatter says too little
WORDS = {
    "tuned": "the context-aware classifier",
    "overlap": "plain with the soft-Jaccard loss",
    "unadapted": "one classifier for all images with the losses of tuned",
}


OUTPUTS = {  # of one model
    "plain": "one classifier for all images",
    "context": "a classifier made for each image from the plain prediction",
    "oracle": "a classifier made from the labels of the image: an upper bound",
}


class TextTable(NamedTuple):
    title: str
    header: list[str]
    rows: list[list[str]]


def paired(rows: pd.DataFrame, baseline: str, value: str, by: Sequence[str]) -> pd.DataFrame:
    """The rows with `difference`, from the baseline's value where all of `by` is equal; NaN without such a row."""
    base = rows.loc[rows["arm"] == baseline, [*by, value]].rename(columns={value: "base"})
    found = rows.merge(base, on=list(by), how="left")
    return found.assign(difference=found[value] - found["base"]).drop(columns="base")


def averaged(rows: pd.DataFrame, baseline: str, value: str, by: Sequence[str]) -> pd.DataFrame:
    """Over seeds: mean and standard error of a value, and of its paired difference from the baseline, for each arm."""
    found = paired(rows, baseline, value, [*by, "seed"]).groupby([*by, "arm"], sort=False)
    return found.agg(
        seeds=(value, "count"),
        mean=(value, "mean"),
        error=(value, "sem"),
        pairs=("difference", "count"),
        difference=("difference", "mean"),
        difference_error=("difference", "sem"),
    ).reset_index()


def own(rows: pd.DataFrame, split: str = "val") -> pd.DataFrame:
    """The scores of each model's default output."""
    return rows[(rows["own"] == "yes") & (rows["split"] == split)]


def grouped_classes(classes: pd.DataFrame) -> pd.DataFrame:
    """The mean IoU of the classes in each frequency group, for each run; classes without a label are left out."""
    edges = [low for low, _ in GROUPS.values()] + [100.1]
    there = classes[classes["labelled"] > 0.0]
    group = pd.cut(there["labelled"], edges, right=False, labels=list(GROUPS)).astype(str)
    by = [*CELL, "arm", "seed", "group"]
    found = there.assign(group=group).groupby(by, sort=False)["iou"].mean().reset_index()
    return found.sort_values("group", key=lambda one: one.map(list(GROUPS).index), kind="stable")


def plus_minus(value: float | None, error: float = math.nan, sign: str = "", digits: int = 1) -> str:
    """ "+2.3 ± 0.4"; without an error where there is none, empty without a value; no "-0.0"."""
    if value is None or pd.isna(value):
        return ""
    return f"{round(value, digits) + 0.0:{sign}.{digits}f}" + ("" if pd.isna(error) else f" ± {error:.{digits}f}")


def explain_outputs(rows: pd.DataFrame) -> str:
    """Explains the outputs in the rows; empty if there are only plain ones."""
    there = [name for name in OUTPUTS if name in set(rows["output"])]
    if there in ([], ["plain"]):
        return ""
    listed = "; ".join(f"{name}: {OUTPUTS[name]}" for name in there)
    return f"{listed}. A model's own output, which it gives when it is called, is context; of a plain model, plain."


def arm_tables(results: pd.DataFrame, arms: Sequence[str]) -> list[TextTable]:
    """A table for each cell: an arm a row with its mIoU, its difference from the baseline, its other scores."""
    baseline = arms[0]
    lines = averaged(own(results), baseline, "mean_iou", CELL)
    pixels = averaged(own(results), baseline, "pixel_accuracy", CELL).set_index([*CELL, "arm"])
    others = results.groupby([*CELL, "arm", "split", "output"], sort=False)["mean_iou"].mean()
    trained = own(results, "train").groupby([*CELL, "arm"], sort=False)["mean_iou"].mean()
    outputs = [name for name in ("plain", "context", "mean", "oracle") if name in set(results["output"])]
    header = ["arm", "seeds", "mIoU", f"from {baseline}", "pixels", f"from {baseline}", *outputs]
    header += ["train"] if len(trained) else []
    tables = []
    for cell, of_cell in lines.groupby(CELL, sort=False):
        rows = []
        for line in of_cell.itertuples():
            at, is_base = (*cell, line.arm), line.arm == baseline
            of_pixels = pixels.loc[at]
            rows.append(
                [
                    line.arm,
                    str(line.seeds) if is_base or line.pairs == line.seeds else f"{line.seeds} ({line.pairs} paired)",
                    plus_minus(line.mean, line.error),
                    "" if is_base else plus_minus(line.difference, line.difference_error, "+"),
                    plus_minus(of_pixels["mean"], of_pixels["error"]),
                    "" if is_base else plus_minus(of_pixels["difference"], of_pixels["difference_error"], "+"),
                    *(plus_minus(others.get((*at, "val", name))) for name in outputs),
                    *([plus_minus(trained.get(at))] if len(trained) else []),
                ]
            )
        tables.append(TextTable(cell_title(cell), header, rows))
    return tables


def class_tables(classes: pd.DataFrame, arms: Sequence[str], *, groups: bool) -> list[TextTable]:
    """A table for each cell: the mean IoU of each class, or of each group of them, and differences in brackets."""
    name = "group" if groups else "class"
    rows = grouped_classes(own(classes)) if groups else own(classes).sort_values("labelled", kind="stable")
    counts = own(classes).drop_duplicates([*CELL, "class"])
    tables = []
    for cell, lines in averaged(rows, arms[0], "iou", [*CELL, name]).groupby(CELL, sort=False):
        shares = counts[(counts[CELL] == list(cell)).all(axis=1)].set_index("class")["labelled"]
        body = []
        for key, of_class in lines.groupby(name, sort=False):
            of_arm = {line.arm: line for line in of_class.itertuples()}
            low, high = GROUPS[key] if groups else (0.0, 0.0)
            inside = int(((shares >= low) & (shares < high) & (shares > 0)).sum())
            cells = [str(inside) if groups else f"{shares[key]:.2f}"]
            cells += [_with_difference(of_arm.get(arm), arm == arms[0]) for arm in arms]
            body.append([str(key), *cells])
        title = f"IoU by {'how often a class occurs' if groups else 'class'}, {cell_title(cell)}"
        tables.append(TextTable(title, [name, "classes" if groups else "% of labels", *arms], body))
    return tables


def _with_difference(line: Any, is_base: bool) -> str:
    if line is None or pd.isna(line.mean):
        return ""
    difference = "" if is_base else plus_minus(line.difference, line.difference_error, "+")
    return f"{line.mean:.1f}" + (f" ({difference})" if difference else "")


def sentences(results: pd.DataFrame, arms: Sequence[str]) -> list[str]:
    """A sentence for each arm and cell: how much it gains over the baseline, and whether that is clear."""
    lines, found = averaged(own(results), arms[0], "mean_iou", CELL), []
    several = len(lines.drop_duplicates(CELL)) > 1
    for cell, of_cell in lines[(lines["arm"] != arms[0]) & (lines["pairs"] > 0)].groupby(CELL, sort=False):
        ordered = sorted(of_cell.itertuples(), key=lambda line: line.arm != "tuned")
        where = f"On {cell[0]}" + (f" ({cell[1]}, {cell[2]} steps)" if several else "")
        found += [f"{where}, {_claim(line, arms[0])}." for line in ordered]
    return found


def _claim(line: Any, baseline: str) -> str:
    words, value, error = WORDS.get(line.arm, line.arm), line.difference, line.difference_error
    shown, seeds = plus_minus(value, error, "+"), f"{line.pairs} seed{'s' if line.pairs > 1 else ''}"
    if line.pairs < LEAST_SEEDS:
        return f"{words} has {shown} mIoU compared with {baseline} ({seeds}: too few to tell)"
    if abs(value) <= 2.0 * error:
        return f"there is no clear difference between {words} and {baseline}: {shown} mIoU ({seeds})"
    verb = "gains" if value > 0.0 else "loses"
    return f"{words} {verb} {plus_minus(abs(value), error)} mIoU {'over' if value > 0 else 'to'} {baseline} ({seeds})"


def cost_table(costs: pd.DataFrame) -> TextTable:
    """A row for each cell and arm: median time, largest memory, size of the model, device and last day."""
    rows = []
    for (*cell, arm), of in costs.groupby([*CELL, "arm"], sort=False):
        seconds, steps = of["seconds"].median(), of["step"].median()
        rows.append(
            [
                cell[0],
                cell[1],
                arm,
                plus_minus(steps, digits=0),
                "" if pd.isna(seconds) else str(timedelta(seconds=round(seconds))),
                plus_minus(steps / seconds),
                plus_minus(of["peak_mib"].max(), digits=0),
                plus_minus(of["parameters"].max() / 1e6, digits=2),
                ", ".join(sorted(set(of["device"].dropna()))),
                of["date"].fillna("").max()[:10],
            ]
        )
    header = ["data", "model", "arm", "steps", "time", "steps/s", "peak MiB", "M parameters", "device", "date"]
    return TextTable("Time and memory of a run", header, rows)


def ablation_table(lines: pd.DataFrame, title: str) -> TextTable:
    """The rows of one of the paper's tables; its figures are on other data, so the differences compare."""
    rows = [
        [
            line.variant,
            line.text,
            f"{line.paper:.2f}",
            f"{line.paper_difference:+.2f}",
            str(line.seeds),
            plus_minus(line.mean_iou, line.error),
            plus_minus(line.difference, line.difference_error, "+"),
        ]
        for line in lines.itertuples()
    ]
    header = ["row", "what", "paper, ADE20K", "from its first row", "seeds", "mIoU here", "from the first row"]
    return TextTable(title, header, rows)


def write_report(folder: Path, found: Any, title: str, pictures: Iterable[tuple[str, bytes]]) -> None:
    """results.csv, classes.csv, costs.csv, report.md and the pictures; `found` is what `read_results` gives."""
    for name in ("results", "classes", "costs"):
        table: pd.DataFrame = getattr(found, name)
        write_file(folder / f"{name}.csv", table.to_csv(index=False, float_format="%.4f", lineterminator="\n"))
    lines = [f"# {title}", ""]
    for sentence in sentences(found.results, found.arms):
        lines += [sentence, ""]
    lines += [*EXPLAINED, "", *filter(None, [explain_outputs(found.results)]), ""]
    for table in (*arm_tables(found.results, found.arms), *class_tables(found.classes, found.arms, groups=True)):
        lines += [f"## {table.title}", "", *markdown_table(table.header, table.rows), ""]
    for name, content in pictures:
        write_file(folder / name, content)
        if name.endswith(".png"):
            lines += [f"![{Path(name).stem}]({name})", ""]
    for table in (*class_tables(found.classes, found.arms, groups=False), cost_table(found.costs)):
        lines += [f"## {table.title}", "", *markdown_table(table.header, table.rows), ""]
    write_file(folder / "report.md", "\n".join(lines))


EXPLAINED = [
    "Percent. ± is the standard error over seeds; a difference is between runs of one seed, which saw the same crops",
    "in the same order. Scores are those of the last step on the validation split, by each model's own output; train:",
    "those of training images.",
]


def cell_title(cell: Any) -> str:
    return f"{cell[0]}, {cell[1]}" + (f", {cell[2]} steps" if cell[2] else "")
