"""The page, from scores that are made up: what it holds, and that it stays small."""

import json
import re
from html.parser import HTMLParser

import pandas as pd
import pytest
import torch

from cacseg.reports.page import MARK, Report, make_page
from cacseg.reports.strips import Cell, Examination, Strip, Subject, examine
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
    assert "+25.0" in page  # context minus plain
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
    part = re.search(r'id="time-and-memory".*?</section>', page, re.S)[0]
    assert "<table" not in part  # a row alone is all the same
    facts = re.findall(r"<dd>(.*?)</dd>", part)
    assert facts[3:-1] == ["10", "0:00:04", "2.5", "512", "1.23", "CPU, 3 cores"]


def test_what_runs_have_in_common_is_said_once():
    costs = {"peak_mib": 512.0, "device": "CPU", "parameters": 1_230_000}
    runs = [record(arm, scored={**scores(), "seconds": of, **costs}) for arm, of in (("plain", 4.0), ("tuned", 5.0))]
    part = re.search(r'id="time-and-memory".*?</section>', make_page(Report("two", runs)), re.S)[0]
    assert re.findall(r"<th(?: [^>]*)?>(.*?)</th>", part) == ["arm", "time", "steps/s"]
    assert re.findall(r"<td[^>]*>(.*?)</td>", part) == ["plain", "0:00:04", "2.5", "tuned", "0:00:05", "2.0"]
    assert part.count("CPU") == 1


def test_several_runs_are_described_below_the_title():
    kinds = {"plain": "plain", "overlap": "plain", "tuned": "context-aware, preset tuned"}
    schedule = {"schedule": "10 steps of 8 crops of 96x96"}
    runs = [
        record(arm, scored=scores("plain" if kind == "plain" else "context", plain=(0.1, 0.2)))._replace(
            facts={"classifier": kind, **schedule}
        )
        for arm, kind in kinds.items()
    ]
    page = make_page(Report("three", runs))
    about = page.partition("</h1>")[2].partition("<main>")[0]
    assert "tuned: context-aware, preset tuned; 10 steps of 8 crops of 96x96 on grass." in about
    assert "overlap: plain with the soft-Jaccard loss" in about
    assert page.count("an upper bound") == 0  # there is no oracle
    assert page.count("a classifier made for each image") == 1
    assert make_page(Report("one", runs[:1])).partition("<main>")[0].count("crops of") == 0


@pytest.mark.parametrize(
    ("own", "titles"), [("plain", ["mIoU, plain"]), ("context", ["mIoU, own output", "mIoU, plain"])]
)
def test_no_curve_is_drawn_twice(own, titles):
    """Of two plain runs the own output is plain; beside a context-aware run, context repeats its own output."""
    runs = [record("first", scored=scores(), measured=metrics())]
    outputs = ("plain", "context") if own == "context" else ("plain",)
    measured = metrics(outputs=outputs, own=own)
    if own == "context":
        measured["val/context_mean_iou"] += 0.1
        measured["val/mean_iou"] = measured["val/context_mean_iou"]
    runs.append(record("second", scored=scores(), measured=measured))
    tags = parsed(make_page(Report("both", runs)))
    charts = [one["aria-label"] for tag, one in tags.all if tag == "svg" and "mIoU" in one.get("aria-label", "")]
    assert charts == [f"{title}, validation images" for title in titles]


def test_classes_come_before_strips_and_the_first_strip_of_a_kind_before_the_others():
    strip = Strip("one", [Cell("image", "", "data:image/png;base64,"), Cell("labels", "", "data:image/png;base64,")])
    seen = Examination({"Best": [strip] * 3, "Worst": [strip]}, {"sky": (1, 2, 3)}, 4, 4, "grass val")
    page = make_page(Report("strips", [record(scored=scores())], seen, "last.safetensors"))
    parsed(page)
    images = re.search(r'<section id="images".*?</section>', page, re.S)[0]
    assert images.index("data-classes") < images.index('class="strip"')
    (rest,) = re.findall(r'<details class="rest" open>(.*?)</details>', images, re.S)
    assert rest.count('class="strip"') == 2
    assert images.count('class="strip"') == 4


@pytest.mark.slow
def test_a_report_of_150_classes_and_2000_images_is_small():
    page = large_page()
    parsed(page)
    assert page.count("<img") == 16 * 5
    assert len(page.encode()) < 20e6 / 2
