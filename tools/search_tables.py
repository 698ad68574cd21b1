"""Tables of the search for a better recipe, from docs/records/search.csv and tried.csv: runs of an earlier commit."""

from __future__ import annotations

import pandas as pd
from result_tables import RECORDS, shown_as

from cacseg.reports.comparison import averaged, plus_minus
from cacseg.reports.tables import markdown_table

COMMIT = "ebb9cd16982dff26760eccea1782f899b49ea97c"
SETTING = ["data", "model", "optimiser", "steps"]
SHORT = 800
FIRST, EVERY = "fcn_mobilenetv2", "fcn_all"  # which blocks of the backbone dilate
UPERNET = "upernet_mobilenetv2"
DATA = {"camvid": "CamVid", "camvid_held_out": "CamVid, held out of train", "msrc21_unscaled": "MSRC-21"}
LONG = [("camvid", 2000), ("msrc21_unscaled", 2000), ("msrc21_unscaled", 4000), ("camvid_held_out", 1000)]
MAIN = ("CamVid", "MSRC-21")  # of tried.csv: the settings that have a column


def search() -> pd.DataFrame:
    return pd.read_csv(RECORDS / "search.csv")


def counted() -> pd.DataFrame:
    """`tuned` minus plain in each setting of FCN and DeepLabV3+ on photographs: one line a setting."""
    rows = search()
    rows = rows[
        rows["arm"].isin(("plain", "tuned")) & ~rows["model"].isin((EVERY, UPERNET)) & (rows["data"] != "scenes")
    ]
    lines = averaged(rows, "plain", "miou", SETTING)
    return lines[(lines["arm"] == "tuned") & (lines["pairs"] >= 3)]


def search_table() -> list[str]:
    """How often `tuned` gained a point and more than two standard errors, tied (within two) or lost."""
    rows, lines = [], counted()
    for title, part in (
        (f"at most {SHORT} steps", lines[lines["steps"] <= SHORT]),
        ("1000 to 4000 steps", lines[lines["steps"] > SHORT]),
    ):
        shown = part["difference"].abs() > 2.0 * part["difference_error"]
        gained = shown & (part["difference"] >= 1.0)
        lost = shown & (part["difference"] < 0.0)
        counts = [len(part), gained.sum(), (~shown).sum(), lost.sum()]
        least, most = (plus_minus(part["difference"].agg(which), sign="+") for which in ("min", "max"))
        rows.append([title, *map(str, counts), f"{least} to {most}"])
    header = ["schedule", "settings", "gained at least 1", "tied", "lost", "least and largest difference"]
    return markdown_table(header, rows)


def long_table() -> list[str]:
    """FCN trained longest, `tuned` against plain, with the first block of each stage dilated and with every block.

    The third column is minus the first.
    """
    rows = search()
    rows = rows[rows["model"].isin((FIRST, EVERY)) & (rows["optimiser"] == "adamw")]
    gains = averaged(rows, "plain", "miou", SETTING)
    plain = rows[rows["arm"] == "plain"]
    better = averaged(plain.assign(arm=plain["model"]), FIRST, "miou", ["data", "steps"])
    found = []
    for data, steps in LONG:
        cell = gains[(gains["data"] == data) & (gains["steps"] == steps)]
        shown = {(line.model, line.arm): shown_as(line) for line in cell.itertuples()}
        for line in better[(better["data"] == data) & (better["steps"] == steps)].itertuples():
            if line.arm == EVERY:
                shown[EVERY, "plain"] = shown_as(line)
        columns = [(model, arm) for model in (FIRST, EVERY) for arm in ("plain", "tuned")]
        found.append([DATA[data], str(steps), *(shown.get(column, "") for column in columns)])
    header = ["data", "steps", "plain", "`tuned`", "plain, every block dilated", "`tuned`, every block dilated"]
    return [*markdown_table(header, found), "", repeated()]


def repeated() -> str:
    """How far runs of UPerNet with the same seed end from each other."""
    runs = search()
    runs = runs[runs["model"] == UPERNET].reset_index()
    pairs = runs.merge(runs, on=["arm", "seed"])
    pairs = pairs[pairs["index_x"] < pairs["index_y"]]
    apart = (pairs["miou_x"] - pairs["miou_y"]).abs()
    return (
        f"UPerNet-MobileNetV2 trained again with the same seed (MSRC-21, 500 steps, {len(apart)} pairs of runs) "
        f"differs by {apart.mean():.1f} points on average, {apart.max():.1f} at most."
    )


def difference(runs: pd.DataFrame) -> str:
    """Mean and standard error over runs; over settings where there are several, after their number."""
    settings = runs.assign(apart=runs["miou"] - runs["beside_miou"]).groupby(SETTING)["apart"]
    apart = settings.mean() if settings.ngroups > 1 else runs["miou"] - runs["beside_miou"]
    return plus_minus(apart.mean(), apart.sem(), "+")


def tried_table() -> list[str]:
    rows = []
    for idea, runs in pd.read_csv(RECORDS / "tried.csv").groupby("idea", sort=False):
        found, elsewhere = {}, []
        for setting, part in runs.groupby("setting", sort=False):
            found[setting] = difference(part)
            if setting not in MAIN:
                count = len(part.groupby(SETTING))
                elsewhere.append(f"{f'{count} ' if count > 1 else ''}{setting} {found[setting]}")
        rows.append([str(idea), *(found.get(one, "") for one in MAIN), "; ".join(elsewhere)])
    return markdown_table(["idea", *MAIN, "elsewhere"], rows)
