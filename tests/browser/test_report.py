"""The file that `cacseg report` writes, opened in a browser as a user opens it."""

import json
import time

import numpy as np
import pytest
import torch

from cacseg.data import Sample
from cacseg.reports.page import Report, make_page
from cacseg.reports.strips import Cell, Examination, Strip, Subject, data_uri, examine
from cacseg.runtime.colours import jpeg
from command_line import Silent, run
from distributed_evaluation import small_model
from made_reports import large_page, record
from test_cli_train import settings

SMALL = {"data.size": [64, 64], "data.length": 8, "training.scored_train_images": 2}
READY = 2.0  # seconds in which a large report opens


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Of a context-aware run, and of a plain run beside it."""
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("plain", "context"):
            changes = {"schedule.steps": 4, "training.validate_every": 2, "model.classifier": name, **SMALL}
            words = ("synthetic", "-o", folder / name, "--no-report", *settings(**changes))
            assert run("train", *words, capsys=Silent(), monkeypatch=patch).code == 0
        for name, runs in (("one", ["context"]), ("two", ["plain", "context"])):
            words = (*(folder / one for one in runs), "-o", folder / f"{name}.html", "--device", "cpu")
            assert run("report", *words, capsys=Silent(), monkeypatch=patch).code == 0
    return folder


def background(page):
    """The lightness of the page behind its text, and that of the text, 0 to 255."""
    script = "one => [one.backgroundColor, one.color].map((text) => text.match(/[0-9]+/g).slice(0, 3).map(Number))"
    found = page.evaluate(f"({script})(getComputedStyle(document.body))")
    return [np.mean(one) for one in found]


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
@pytest.mark.parametrize("width", [390, pytest.param(1280, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["one", pytest.param("two", marks=pytest.mark.slow)])
def test_a_report_opens_without_a_network(page, reports, screenshot, name, width, scheme):
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    page.goto((reports / f"{name}.html").as_uri())
    assert page.title()
    assert page.locator("h1").first.is_visible()
    sizes = page.locator("img").evaluate_all("all => all.map((one) => one.complete ? one.naturalWidth : 0)")
    assert sizes
    assert all(sizes)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    behind, words = background(page)
    assert (behind > 200 and words < 80) if scheme == "light" else (behind < 40 and words > 200)
    screenshot(f"report_{name}_{scheme}_{width}", full_page=True)


@pytest.mark.slow
def test_a_phone_shows_the_first_strip_of_a_kind_and_whole_tables(page, reports, tmp_path):
    picture = data_uri(jpeg(np.zeros((48, 64, 3), np.uint8)), "jpeg")
    seen = Examination(
        {"Best": [Strip("one", [Cell("image", "", picture)])] * 3}, {"sky": (1, 2, 3)}, 3, 3, "grass val"
    )
    (tmp_path / "page.html").write_text(make_page(Report("strips", [record()], seen)))
    page.goto((tmp_path / "page.html").as_uri())
    shown = "all => all.filter((one) => one.checkVisibility()).length"
    assert page.locator(".strip").evaluate_all(shown) == 3
    assert not page.locator(".rest > summary").is_visible()
    page.set_viewport_size({"width": 390, "height": 844})
    page.locator(".rest:not([open])").wait_for()
    assert page.locator(".strip").evaluate_all(shown) == 1
    page.locator(".rest > summary").click()
    assert page.locator(".strip").evaluate_all(shown) == 3
    page.goto((reports / "two.html").as_uri())
    cells = (
        page.locator("#differences .turned")
        .first.locator("td")
        .evaluate_all("all => Math.max(...all.map((one) => one.getBoundingClientRect().right))")
    )
    assert cells <= 390  # an arm is a column


@pytest.mark.slow
@pytest.mark.parametrize(("arms", "width", "lines"), [(3, 1280, 2), (6, 1280, 2), (6, 800, 4), (3, 390, 4)])
def test_what_an_arm_changes_stands_by_its_mask(page, tmp_path, arms, width, lines):
    picture = data_uri(jpeg(np.zeros((48, 64, 3), np.uint8)), "jpeg")
    cells = [Cell(title, "", picture) for title in ("image", "labels", "arm 0")]
    for k in range(1, arms):
        cells += [Cell(f"arm {k}", "", picture), Cell(f"changes by arm {k}", "", picture, below=True)]
    seen = Examination({"Best": [Strip("one", cells)]}, {"sky": (1, 2, 3)}, 1, 1, "grass val")
    (tmp_path / "page.html").write_text(make_page(Report("arms", [record()], seen)))
    page.set_viewport_size({"width": width, "height": 900})
    page.goto((tmp_path / "page.html").as_uri())
    read = "all => all.map((one) => [one.alt, one.getBoundingClientRect().x, one.getBoundingClientRect().y])"
    places = {title: (x, y) for title, x, y in page.locator(".strip img").evaluate_all(read)}
    assert len({round(y) for _, y in places.values()}) == lines
    for k in range(1, arms):
        axis = 0 if width > 600 else 1  # below it, or beside it on a phone
        assert places[f"changes by arm {k}"][axis] == pytest.approx(places[f"arm {k}"][axis], abs=1)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
def test_the_second_of_two_runs_is_compared_with_the_first(page, reports):
    page.goto((reports / "two.html").as_uri())
    first, second = (json.loads((reports / name / "scores.json").read_text()) for name in ("plain", "context"))
    gain = second["splits"]["val"]["outputs"]["context"]["mean_iou"]
    gain -= first["splits"]["val"]["outputs"]["plain"]["mean_iou"]
    assert page.locator("#differences td", has_text=f"{100 * gain:+.1f}").count()
    assert page.locator("#settings td", has_text="model.classifier").first.is_visible()
    titles = page.locator("#images .cells").first.locator("figcaption b").all_inner_texts()
    assert titles == ["image", "labels", "plain", "context", "changes"]


class Bands:
    """One image with a band for each class, and one that is ignored; two classes share a colour, one is black."""

    name, split, ignore_index, class_names = "bands", "val", 255, ("black", "twin", "other twin")
    palette = ((0, 0, 0), (200, 30, 30), (200, 30, 30))

    def __len__(self):
        return 1

    def image_name(self, index):
        return "bands"

    def read(self, index):
        labels = np.array([0, 1, 2, 255], np.uint8).repeat(16)[None].repeat(48, 0)
        return Sample(np.zeros((48, 64, 3), np.uint8), labels)


def test_the_pointer_tells_the_class_of_a_mask(page, tmp_path):
    seen = examine([Subject("run", small_model)], Bands(), images=1, device=torch.device("cpu"), workers=0)
    (tmp_path / "page.html").write_text(make_page(Report("bands", [record()], seen)))
    page.goto((tmp_path / "page.html").as_uri())
    mask = page.locator("[data-mask]").first  # the labels
    mask.scroll_into_view_if_needed()
    box = mask.bounding_box()
    for place, name in enumerate((*Bands.class_names, "ignored")):
        page.mouse.move(box["x"] + (place + 0.5) / 4 * box["width"], box["y"] + box["height"] / 2)
        assert page.locator("#tip").inner_text() == name
    page.mouse.move(1, 1)
    assert page.locator("#tip").is_hidden()


@pytest.mark.slow
def test_the_pointer_tells_values_of_curves_and_confusions(page, reports):
    page.goto((reports / "one.html").as_uri())
    page.locator("[data-curves]").first.hover()
    assert "step " in page.locator("#tip").inner_text()
    matrix = page.locator("[data-matrix]").first
    picture = matrix.locator("image")
    picture.scroll_into_view_if_needed()
    box = picture.bounding_box()
    names = json.loads(matrix.get_attribute("data-matrix"))["names"]
    for row, column in ((0, 0), (1, 0), (len(names) - 1, 2)):
        side = box["width"] / len(names)
        page.mouse.move(box["x"] + (column + 0.5) * side, box["y"] + (row + 0.5) * side)
        first, second = page.locator("#tip").inner_text().split("\n")
        assert first == names[row]
        assert names[column] in second


def test_a_report_of_150_classes_and_2000_images_opens_in_two_seconds(page, tmp_path, screenshot, capsys):
    (tmp_path / "large.html").write_text(large_page())
    assert (tmp_path / "large.html").stat().st_size < 20e6
    taken = []
    for _ in range(3):  # the quickest: others may use the machine
        start = time.perf_counter()
        page.goto((tmp_path / "large.html").as_uri(), wait_until="load")
        page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")  # drawn
        taken.append(time.perf_counter() - start)
    seconds = min(taken)
    with capsys.disabled():
        size = (tmp_path / "large.html").stat().st_size / 1e6
        print(f"\nreport of 150 classes and 2,000 images: {size:.1f} MB, opened and drawn in {seconds:.2f} s")
    assert seconds < READY
    assert page.locator("#classes .row").count() == 150
    screenshot("report_large")
