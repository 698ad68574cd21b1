"""The page, from scores that are made up: what it holds, and that it stays small."""

import json
import re
from html.parser import HTMLParser

import pandas as pd
import pytest
import torch

from cacseg.reports.page import MARK, Report, make_page
from cacseg.reports.strips import Subject, examine
from compare_runs import scores
from distributed_evaluation import small_data, small_model
from made_reports import large_page, record

EMPTY = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source"}


class Tags(HTMLParser):
    """Collects tags; an error where they are not nested."""

    def __init__(self):
        super().__init__()
        self.open, self.all = [], []

    def handle_starttag(self, tag, attrs):
        self.all.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.all.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def parsed(page):
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    for _, attributes in tags.all:
        for name in ("src", "href"):
            assert attributes.get(name, "#").startswith(("#", "data:image/")), attributes
    assert not re.search(r"https?://|url\(|@import", page)
    return tags


def metrics(terms=("plain", "total"), outputs=("plain",), own="plain", shift=0.0):
    rows = [{"step": step, **{f"loss/{name}": 5.0 / step + shift for name in terms}} for step in range(1, 11)]
    for step in (5, 10):
        row = {f"val/{name}_mean_iou": step / 20 + shift for name in outputs}
        rows.append({"step": step, **row, "val/mean_iou": row[f"val/{own}_mean_iou"]})
    return pd.DataFrame(rows)


def test_one_run():
    found = scores("context", iou=(0.5, 0.75), plain=(0.25, 0.5), oracle=(1.0, 1.0), train=True)
    measured = metrics(("plain", "context"), ("plain", "context", "oracle"), "context")
    page = make_page(Report("one <run>", [record(scored=found, measured=measured)]))
    tags = parsed(page)
    assert MARK in page[:1000]
    assert "one &lt;run&gt;" in page
    assert "fcn &lt;small&gt;" in page
    assert "+25.0" in page  # context beside plain
    charts = [attributes["aria-label"] for tag, attributes in tags.all if tag == "svg"]
    assert len(charts) == 3  # mIoU on validation images; two loss terms
    widths = re.findall(r"width:([\d.]+)%", page)
    assert widths == ["25.0", "50.0", "50.0", "75.0"]  # by class: plain, context


def test_several_arms_are_averaged_and_compared_with_the_first():
    plain = [record("plain", k, scores(iou=(0.4 + k / 10, 0.2)), metrics(shift=k / 100)) for k in range(2)]
    tuned = [
        record("tuned", k, scores("context", iou=(0.5 + k / 10, 0.4), plain=(0.1, 0.1)), metrics(shift=k / 100))
        for k in range(2)
    ]
    page = make_page(Report("both", [*plain, *tuned]))
    parsed(page)
    assert "+15.0 ± 0.0" in page
    assert page.index('id="differences"') < page.index('id="classes"') < page.index('id="curves"')
    assert 'class="band' in page  # standard errors of the curves
    assert "Settings that differ" in page


def test_cells_of_several_schedules_have_parts_of_their_own():
    runs = [record(arm, 0, scores(steps=steps), metrics(), steps) for steps in (10, 20) for arm in ("plain", "other")]
    page = make_page(Report("both", runs))
    parsed(page)
    assert page.count("grass, fcn, 20 steps") >= 3


def test_without_scores_and_curves_the_page_says_why():
    page = make_page(Report("nothing", [record()], notes=["no scores <yet>"]))
    tags = parsed(page)
    assert "no scores &lt;yet&gt;" in page
    assert not [tag for tag, _ in tags.all if tag == "svg"]


def test_undefined_scores_are_no_error():
    found = scores(iou=(0.5, 0.5))
    for split in found["splits"].values():
        for output in split["outputs"].values():
            output.update(mean_iou=None, mean_accuracy=None, pixel_accuracy=None, iou=[None, None])
    found["best"] = {"step": 0, "mean_iou": None}
    assert "nan" not in re.sub(
        r"<style>.*</style>|<script>.*</script>", "", make_page(Report("x", [record(scored=found)])), flags=re.S
    )


@pytest.mark.parametrize("count", [1, 3])
def test_images_of_real_models(count):
    subjects = [Subject(f"run {k}", small_model) for k in range(count)]
    seen = examine(subjects, small_data(), images=3, device=torch.device("cpu"), workers=0)
    runs = [record(one.name, scored=scores()) for one in subjects]
    page = make_page(Report("with images", runs, seen, "last.safetensors"))
    tags = parsed(page)
    pictures = [attributes for tag, attributes in tags.all if tag == "img"]
    assert len(pictures) == 3 * (5 if count == 1 else 2 + count + count - 1)
    assert "3 of the 5 images" in page


def test_confusions_are_summed_over_seeds():
    found = [record("plain", k, scores(confusion=[[4 - k, k], [1, 5]])) for k in range(2)]
    page = make_page(Report("seeds", found))
    tags = parsed(page)
    (matrix,) = [json.loads(one["data-matrix"]) for _, one in tags.all if "data-matrix" in one]
    assert [int(one or 0) for one in matrix["permille"].split(",")] == [833, 167, 125, 875]  # the frequent class first


def test_one_point_makes_no_chart():
    measured = metrics(outputs=("plain",)).query("step == 10")
    page = make_page(Report("one", [record(scored=scores(), measured=measured)]))
    assert not [tag for tag, _ in parsed(page).all if tag == "svg"]
    assert re.search(r'id="curves">.*No curve of mIoU and of the losses', page)


def test_time_and_memory_of_a_single_run():
    found = {**scores(), "seconds": 4.0, "peak_mib": 512.0, "device": "CPU, 3 cores", "parameters": 1_230_000}
    page = make_page(Report("one", [record(scored=found)]))
    row = re.search(r'id="time-and-memory".*?<tbody>(.*?)</tbody>', page, re.S)[1]
    cells = re.findall(r"<td[^>]*>(.*?)</td>", row)
    assert cells[3:-1] == ["10", "0:00:04", "2.5", "512", "1.23", "CPU, 3 cores"]


@pytest.mark.slow
def test_a_report_of_150_classes_and_2000_images_is_small():
    page = large_page()
    parsed(page)
    assert page.count("<img") == 16 * 5
    assert len(page.encode()) < 20e6 / 2
