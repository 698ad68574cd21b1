"""One HTML file about one or several runs: numbers, curves, classes, images, confusions, costs. It needs no network."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from cacseg._version import __version__
from cacseg.engine.scores import MEASURES, Scores, score_rows
from cacseg.reports.charts import Line, class_bars, curves, difference_bars, extent, html_table, legend, text
from cacseg.reports.comparison import (
    CELL,
    EXPLAINED,
    OUTPUTS,
    WORDS,
    arm_tables,
    averaged,
    cell_title,
    class_tables,
    cost_table,
    explain_outputs,
    own,
    plus_minus,
    sentences,
)
from cacseg.reports.examined import confusion_section, images_section
from cacseg.reports.strips import Examination
from cacseg.reports.tables import TITLES

TEMPLATE = "report.html"
MARK = '<meta name="generator" content="cacseg report">'  # in every page, near its top
UNPAIRED = (
    "Percent, on the validation split, by each model's own output. The runs may differ in more than one setting, and "
    "one run of each does not say how far chance goes: `cacseg compare` does."
)
SPLITS = {"val": "validation images", "train": "training images"}


class RunRecord(NamedTuple):
    """The results in the folder of a run or of an evaluation."""

    arm: str  # runs of one arm and cell are averaged
    cell: tuple[str, str, int]  # data, model, steps
    facts: Mapping[str, str]  # what was trained, on what
    settings: Mapping[str, str]
    scores: Scores | None = None
    metrics: pd.DataFrame | None = None  # of metrics.csv
    pair: int = 0  # differences are between runs of one pair: of a comparison the seed


class Report(NamedTuple):
    title: str
    runs: Sequence[RunRecord]  # the baseline's first
    examination: Examination | None = None
    weights: str = ""  # which ones were examined
    notes: Sequence[str] = ()  # what is missing, and why
    damaged: Sequence[str] = ()  # of those, of files that are there and cannot be read
    paired: bool = False  # runs of one seed saw the same crops in the same order


class Tables(NamedTuple):
    results: pd.DataFrame
    classes: pd.DataFrame
    costs: pd.DataFrame


def make_page(report: Report) -> str:
    """The page as text."""
    arms = list(dict.fromkeys(run.arm for run in report.runs))
    cells = list(dict.fromkeys(run.cell for run in report.runs))
    found = _tables(report.runs)
    scored = not found.results.empty
    shown = "".join(_curves([run for run in report.runs if run.cell == cell], arms, len(cells) > 1) for cell in cells)
    parts: dict[str, str] = {}
    if len(arms) == 1:
        parts["Scores"] = _overview(report.runs, found)
        if shown:
            parts["Curves"] = shown
    elif scored:
        parts["Differences"] = _differences(found, arms, report.paired)
    if scored:
        parts["Classes"] = "".join(_classes(found.classes, cell, arms, len(cells) > 1) for cell in cells)
    if report.examination is not None:
        parts["Images"] = images_section(report.examination, report.weights)
    if shown:
        parts.setdefault("Curves", shown)
    if scored and (confusions := _confusions(report.runs)):
        parts["Confusions"] = confusions
    if scored:
        parts["Time and memory"] = _costs(found.costs)
    parts["Settings"] = _settings(report.runs, arms)
    links = "".join(f'<a href="#{_anchor(name)}">{name}</a>' for name in parts)
    about = f"<p>{text(_describe(report.runs, arms))}</p>" if len(arms) > 1 else ""
    notes = about + "".join(f'<p class="note">{text(one)}</p>' for one in report.notes)
    body = "".join(f'<section id="{_anchor(name)}"><h2>{name}</h2>{part}</section>' for name, part in parts.items())
    made = f"cacseg {__version__}, {datetime.date.today().isoformat()}"
    template = Template((files("cacseg.reports") / TEMPLATE).read_text(encoding="utf-8"))
    return template.substitute(title=text(report.title), links=links, notes=notes, body=body, made=made, mark=MARK)


def _tables(runs: Iterable[RunRecord]) -> Tables:
    """The results as tables, like those of `recipes.results.read_results`."""
    results, classes, costs = [], [], []
    for run in runs:
        if run.scores is not None:
            about = {**dict(zip(CELL, run.cell, strict=True)), "arm": run.arm, "seed": run.pair}
            rows = score_rows(about, run.scores)
            results += rows.results
            classes += rows.classes
            costs.append(rows.cost)
    measured = ("step", "seconds", "peak_mib", "parameters", "best_step", "best_mean_iou")
    numbers = dict.fromkeys((*MEASURES, "iou", "labelled", *measured), float)
    tables = [pd.DataFrame(rows) for rows in (results, classes, costs)]
    return Tables(*(one.astype({name: kind for name, kind in numbers.items() if name in one}) for one in tables))


def _describe(runs: Sequence[RunRecord], arms: Sequence[str]) -> str:
    """Describes the arms and what they have in common."""
    firsts = [next(run for run in runs if run.arm == arm) for arm in arms]
    kinds = [run.facts.get("classifier", "") for run in firsts]
    said = []
    for arm, kind in zip(arms, kinds, strict=True):
        own_words = WORDS.get(arm, "") if kind == kinds[0] and arm != arms[0] else ""
        said += [f"{arm}: {own_words or kind.replace('plain', OUTPUTS['plain'])}"] if kind else []
    schedules = {run.facts.get("schedule", "") for run in runs}
    schedule = f"{schedules.pop()} " if len(schedules) == 1 else ""
    return "; ".join([*said, f"{schedule}on {' and '.join(dict.fromkeys(run.cell[0] for run in runs))}"]) + "."


def _costs(costs: pd.DataFrame) -> str:
    """The common settings of all runs, then a table of the differences."""
    table = cost_table(costs)
    columns = {name: [row[k] for row in table.rows] for k, name in enumerate(table.header)}
    same = {name: of[0] for name, of in columns.items() if len(set(of)) == 1}
    facts = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value or '-')}</dd></div>" for name, value in same.items())
    shown = [k for k, name in enumerate(table.header) if name not in same]
    header, rows = [table.header[k] for k in shown], [[row[k] for k in shown] for row in table.rows]
    words = sum(name in (*CELL[:2], "arm") for name in header)
    return f'<dl class="facts">{facts}</dl>' + (html_table(header, rows, words) if header else "")


def _overview(runs: Sequence[RunRecord], found: Tables) -> str:
    """One arm: its main figures, what was trained, and the scores of all outputs."""
    facts = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in runs[0].facts.items())
    about = f'<dl class="facts">{facts}</dl>'
    if found.results.empty:
        return about
    rows = found.results[_is_cell(found.results, runs[-1].cell)]
    tiles = _tiles(rows[rows["split"] == "val"], found.costs)
    figures = "".join(f"<div><b>{value or '-'}</b><span>{text(name)}</span></div>" for name, value in tiles.items())
    body = []
    for (split, output), of in rows.groupby(["split", "output"], sort=False):
        measures = [plus_minus(of[name].mean(), of[name].sem()) for name in MEASURES]
        body.append([f"{of['images'].iloc[0]} {SPLITS.get(split, split)}", output, *measures])
    scores = html_table(["scored on", "output", *(TITLES[name] for name in MEASURES)], body, words=2)
    words = f"Percent. {explain_outputs(rows)}"
    if "plain" in set(rows["output"]) and own(rows)["output"].iloc[0] != "plain":
        words += " All are of one model: plain is not a model that was trained without context."
    return f'<div class="tiles">{figures}</div>{about}{scores}<p>{text(words)}</p>'


def _tiles(validated: pd.DataFrame, costs: pd.DataFrame) -> dict[str, str]:
    """Names and figures: mIoU, what context gains, time and memory."""
    scores = validated.set_index(["seed", "output"])["mean_iou"].unstack()  # a row for each seed
    name = own(validated)["output"].iloc[0]
    values = {f"mIoU, {name}": scores[name]}
    if name != "plain":
        values[f"{name} minus plain"] = scores[name] - scores["plain"]
    if "oracle" in scores:
        values["mIoU, oracle"] = scores["oracle"]
    if costs["best_mean_iou"].notna().all():
        steps = ", ".join(f"{step:.0f}" for step in costs["best_step"])
        values[f"best mIoU, at step {steps}"] = costs["best_mean_iou"]
    tiles = {key: plus_minus(of.mean(), of.sem(), "+" if "minus" in key else "") for key, of in values.items()}
    if costs["seconds"].notna().all():
        tiles["time"] = str(datetime.timedelta(seconds=round(costs["seconds"].median())))
    if costs["peak_mib"].notna().all():
        tiles["peak memory"] = f"{costs['peak_mib'].max() / 1024:.1f} GiB"
    return tiles


def _is_cell(rows: pd.DataFrame, cell: tuple[Any, ...]) -> pd.Series:
    return (rows[CELL] == pd.Series(dict(zip(CELL, cell, strict=True)))).all(axis=1)


def _differences(found: Tables, arms: Sequence[str], paired: bool) -> str:
    """Several arms: sentences and tables."""
    parts = [f'<p class="lead">{text(sentence)}</p>' for sentence in sentences(found.results, arms)]
    tables = []
    for one in arm_tables(found.results, arms):
        tables.append(f'<div class="turned"><h3>{text(one.title)}</h3>{html_table(one.header, one.rows)}</div>')
    for one in class_tables(found.classes, arms, groups=True):
        tables.append(f"<div><h3>{text(one.title)}</h3>{html_table(one.header, one.rows)}</div>")
    words = " ".join(EXPLAINED) if paired else UNPAIRED
    explained = explain_outputs(found.results)
    return f'{"".join(parts)}<div class="tables">{"".join(tables)}</div><p>{text(f"{words} {explained}")}</p>'


def _classes(classes: pd.DataFrame, cell: tuple[str, str, int], arms: Sequence[str], titled: bool) -> str:
    """IoU bars of one arm, or differences of several; the most frequent class first."""
    here = classes[_is_cell(classes, cell) & (classes["split"] == "val")]
    if here.empty:
        return ""
    shares = here.drop_duplicates("class").set_index("class")["labelled"].sort_values(ascending=False, kind="stable")
    names = [str(name) for name in shares.index]
    heading = f"<h3>{text(cell_title(cell))}</h3>" if titled else ""
    if len(arms) == 1:
        output = own(here)["output"].iloc[0]
        means = here.groupby(["output", "class"])["iou"].mean()
        values = {
            name: means[name].reindex(names).tolist() for name in dict.fromkeys(("plain", output)) if name in means
        }
        words = "IoU in percent, frequent classes first; beside each name its share of the labelled pixels."
        return f"{heading}{legend(list(values))}{class_bars(names, shares.tolist(), values)}<p>{words}</p>"
    lines = averaged(own(here), arms[0], "iou", [*CELL, "class"]).set_index(["arm", "class"])
    there = [arm for arm in arms if arm in lines.index]
    columns = {arm: lines.loc[arm].reindex(names) for arm in there}
    slots = [arms.index(arm) for arm in there if arm != arms[0]]
    base = columns[arms[0]]["mean"].tolist() if arms[0] in columns else [math.nan] * len(names)
    differences, errors = (
        {slot: columns[arms[slot]][key].tolist() for slot in slots} for key in ("difference", "difference_error")
    )
    words = (
        f"IoU minus that of {arms[0]}, in points, frequent classes first. Beside each name: its share of the labelled "
        f"pixels, and the IoU of {arms[0]} in percent."
    )
    if here["seed"].nunique() > 1:
        words += " Pale: less than two standard errors."
    bars = difference_bars(names, shares.tolist(), base, differences, errors)
    return f"{heading}{legend(arms, 1)}{bars}<p>{text(words)}</p>"


def _curves(runs: Sequence[RunRecord], arms: Sequence[str], titled: bool) -> str:
    """mIoU of each output on each split, and each loss term; several arms are several lines."""
    columns = list(dict.fromkeys(name for run in runs if run.metrics is not None for name in run.metrics.columns))
    of_arm = {slot: [run for run in runs if run.arm == arm] for slot, arm in enumerate(arms)}

    def lines(column: str, factor: float = 1.0) -> dict[int, Line]:
        found = ((slot, _mean_curve(arms[slot], some, column, factor)) for slot, some in of_arm.items())
        return {slot: line for slot, line in found if line is not None}

    outputs = [name for name in ("plain", "context", "oracle") if f"val/{name}_mean_iou" in columns]
    panels: dict[str, dict[int, Line]] = {}
    for split, words in SPLITS.items():
        if len(arms) == 1:
            named = (lines(f"{split}/{name}_mean_iou", 100.0).get(0) for name in outputs)
            panels[f"mIoU, {words}"] = {
                k: one._replace(name=outputs[k]) for k, one in enumerate(named) if one is not None
            }
        else:
            owned = lines(f"{split}/mean_iou", 100.0)
            by_output = {f"mIoU, {name}, {words}": lines(f"{split}/{name}_mean_iou", 100.0) for name in outputs}
            repeated = [title for title, one in by_output.items() if _within(one, owned)]
            if not any(len(by_output[title]) == len(owned) for title in repeated):  # else the name says more than "own"
                panels[f"mIoU, own output, {words}"] = owned
                by_output = {title: one for title, one in by_output.items() if title not in repeated}
            panels |= by_output
    every = [line for one in panels.values() for line in one.values()]
    scores = "".join(curves(title, one, extent(every)) for title, one in panels.items()) if every else ""
    terms = [name for name in columns if name.startswith("loss/")]
    losses = "".join(curves(name.removeprefix("loss/"), lines(name)) for name in terms)
    parts = [f"<h3>{text(cell_title(runs[0].cell))}</h3>"] if titled and (scores or losses) else []
    if scores:
        parts.append(
            f'<h3>mIoU</h3>{legend(outputs if len(arms) == 1 else arms)}<div class="charts wide">{scores}</div>'
        )
    if losses:
        key = legend(arms) if len(arms) > 1 else ""
        parts.append(f'<h3>Loss terms</h3>{key}<div class="charts">{losses}</div>')
    undrawn = [
        what for what, there, drawn in (("mIoU", every, scores), ("the losses", terms, losses)) if there and not drawn
    ]
    if undrawn:
        parts.append(f"<p>No curve of {' and of '.join(undrawn)}: one needs two points, metrics.csv has one.</p>")
    return "".join(parts)


def _within(lines: Mapping[int, Line], others: Mapping[int, Line]) -> bool:
    return bool(lines) and all(k in others and one.values.equals(others[k].values) for k, one in lines.items())


def _mean_curve(name: str, runs: Sequence[RunRecord], column: str, factor: float) -> Line | None:
    """The mean over seeds, with its standard error where there are several."""
    found = [
        run.metrics.dropna(subset=[column]).groupby("step")[column].last()
        for run in runs
        if run.metrics is not None and column in run.metrics
    ]
    if not found:
        return None
    table = factor * pd.concat(found, axis=1)
    return Line(name, table.mean(axis=1), table.sem(axis=1) if len(found) > 1 else None)


def _confusions(runs: Sequence[RunRecord]) -> str:
    """Confusions of the longest runs on the first data: both outputs of one arm, or each arm's own, over all seeds."""
    cell = max((run.cell for run in runs if run.cell[:2] == runs[0].cell[:2]), key=lambda one: one[2])
    here = [run for run in runs if run.cell == cell and run.scores is not None]
    alone = len({run.arm for run in here}) == 1
    counts: dict[str, Tensor] = {}
    for run in here:
        assert run.scores is not None
        outputs, own_output = run.scores["splits"]["val"]["outputs"], run.scores["output"]
        for output in dict.fromkeys(("plain", own_output) if alone else (own_output,)):
            if "confusion" in outputs[output]:
                name = output if alone else run.arm
                counts[name] = counts.get(name, 0) + torch.tensor(outputs[output]["confusion"])
    if not counts:
        return ""
    scores = here[0].scores
    assert scores is not None
    where = f"all {scores['splits']['val']['images']} validation images; {cell_title(cell)}"
    return confusion_section(counts, scores["class_names"], where)


def _settings(runs: Sequence[RunRecord], arms: Sequence[str]) -> str:
    """The settings in which arms differ; then all settings of the first."""
    firsts = [next(run for run in runs if run.arm == arm) for arm in arms]
    keys = list(dict.fromkeys(key for run in firsts for key in run.settings))
    parts = []
    differing = [key for key in keys if len({run.settings.get(key) for run in firsts}) > 1]
    if len(arms) > 1:
        facts = dict.fromkeys(key for run in firsts for key in run.facts)
        parts.append(
            html_table(["", *arms], [[key, *(run.facts.get(key, "") for run in firsts)] for key in facts], words=99)
        )
    if differing:
        rows = [[key, *(run.settings.get(key, "") for run in firsts)] for key in differing]
        parts.append(f"<h3>Settings that differ</h3>{html_table(['setting', *arms], rows, words=99)}")
    if keys:
        values = html_table(["setting", "value"], [[key, firsts[0].settings.get(key, "")] for key in keys], words=99)
        title = "All settings" if len(arms) == 1 else f"All settings of {text(arms[0])}"
        parts.append(f"<details><summary>{title}</summary>{values}</details>")
    return "".join(parts) or "<p>Nothing is known about them.</p>"


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")
