"""The measured tables of README.md and docs are those of the records."""

import io
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import cacseg
from cacseg.models import MODELS
from shared_files import MISSING, SHARED

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))
try:
    import result_tables
    import search_tables
    import tables
    import time_tables
finally:
    sys.path.pop(0)


@pytest.mark.parametrize("page", tables.PAGES)
def test_a_page_has_the_tables_of_the_records(page):
    """If this fails: make tables."""
    assert (ROOT / page).read_text() == tables.rendered(page)


def test_a_mean_of_fewer_than_three_seeds_is_not_shown():
    rows = result_tables.shipped()
    few = rows[(rows["arm"] != "tuned") | (rows["seed"] < 2)]
    (camvid, *_), (fewer, *_) = (
        result_tables.gains(one, result_tables.DATA, ("plain", "tuned")) for one in (rows, few)
    )
    assert camvid[:4] == fewer[:4]
    assert camvid[4]
    assert not fewer[4]


def test_every_model_of_the_paper_was_exported():
    """If this fails: python benchmarks/export_models.py -o benchmarks/results/export_models.json, which goes on."""
    found = time_tables.timed("export_models")["models"]
    assert set(found) == set(MODELS)
    for name, one in found.items():
        assert len(one["checks"]) == 2, name
        assert all(check["difference"] <= check["allowed"] for check in one["checks"]), name


def prose(page):
    """A page without made tables, commands, code, links' targets and versions."""
    text = (ROOT / page).read_text()
    for part in (r"<!-- (\w+): made by.*?<!-- /\1 -->", r"```.*?```", r"`[^`]*`", r"\]\([^)]*\)"):
        text = re.sub(part, " ", text, flags=re.DOTALL)
    return re.sub(r"(torch|Python( >=)?|Apache-|CC BY-NC) ?\d+\.\d+", " ", text)


def made(page):
    """The made tables of a page."""
    found = re.findall(r"<!-- (\w+): made by.*?-->(.*?)<!-- /\1 -->", (ROOT / page).read_text(), re.DOTALL)
    return "\n".join(table for _, table in found)


DECIMAL = re.compile(r"(?<![\w.])\d+\.\d+(?![\d.])")


@pytest.mark.parametrize("page", ["README.md", "docs/results.md"])
def test_a_number_in_a_sentence_is_one_of_a_made_table(page):
    """If this fails: put the number into a table that tools/tables.py makes from a record, or leave it out."""
    projector = cacseg.ContextAwareClassifier(512, 150).context_projector
    millions = sum(one.numel() for one in projector.parameters()) / 1e6
    known = [float(one) for one in DECIMAL.findall("\n".join(map(made, (page, "docs/results.md", "docs/speed.md"))))]
    known += [millions, 2.0 * millions]  # parameters that the classifier adds, at inference and in training
    text = prose(page)
    assert "±" not in text
    for number in DECIMAL.findall(text):
        digits = len(number.partition(".")[2])
        assert any(round(one, digits) == float(number) for one in known), number


def at_commit(commit, path):
    """A file of the repository's history; skips where there is none, as in an sdist or a shallow clone."""
    if not shutil.which("git"):
        pytest.skip("there is no git")
    done = subprocess.run(["git", "show", f"{commit}:{path}"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"there is no {path} of commit {commit}: {done.stderr.strip()}")
    return io.StringIO(done.stdout)


@pytest.mark.parametrize("name", ["kept_aside", "street_scenes_classes"])
def test_the_records_of_data_kept_aside_are_those_of_their_commit(name):
    then = pd.read_csv(at_commit("2baf999d0300bf6385925a1eb00f70b547830b41", f"studies/results/{name}.csv"))
    pd.testing.assert_frame_equal(pd.read_csv(result_tables.RECORDS / f"{name}.csv"), then)


def test_the_records_of_the_search_are_those_of_its_commit():
    runs, tried = (pd.read_csv(result_tables.RECORDS / f"{name}.csv") for name in ("search", "tried"))
    assert search_tables.COMMIT in (ROOT / "docs" / "results.md").read_text()
    key = ["study", *search_tables.SETTING, "arm", "seed"]
    beside = tried[["beside_study", *search_tables.SETTING, "beside", "beside_answer", "seed", "beside_miou"]]
    beside.columns = [name.removeprefix("beside_").replace("beside", "arm") for name in beside.columns]
    then = []
    for study in pd.concat([runs, tried, beside])["study"].unique():
        then.append(pd.read_csv(at_commit(search_tables.COMMIT, f"studies/results/{study}.csv")).assign(study=study))
    rows = pd.concat(then)
    own = rows[rows["own"] == "yes"].drop_duplicates(key)
    for ours, theirs, columns in ((runs, own, key), (tried, rows, [*key, "answer"]), (beside, rows, [*key, "answer"])):
        both = ours.merge(theirs, on=columns, how="left", suffixes=("", "_then"), validate="many_to_one")
        assert len(both) == len(ours)
        assert both[both["miou"] != both["miou_then"]].empty


def test_the_data_of_the_results_are_those_of_their_lists():
    found = {}
    for name in ("msrc21", "cityscapes_small"):
        for split in ("train", "val"):
            folder = SHARED / "data" / name / "images" / split
            if not folder.is_dir():
                pytest.skip(MISSING)
            found[name, split] = {path.stem for path in folder.iterdir()}
    assert found["msrc21", "val"] == set((result_tables.RECORDS / "msrc21_val.txt").read_text().split())
    assert len(found["msrc21", "train"] | found["msrc21", "val"]) == 591
    # Aachen is the first city, and its 174 frames are numbered without a gap.
    frames = {int(name.split("_")[1]) for name in found["cityscapes_small", "train"] if name.startswith("aachen")}
    assert frames == {place for place in (step * 2975 // 1200 for step in range(1200)) if place < 174}
    assert [len(found["cityscapes_small", split]) for split in ("train", "val")] == [1200, 400]
