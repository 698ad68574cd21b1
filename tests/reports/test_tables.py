import csv
import io
import json
import math
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from cacseg.engine.evaluate import Evaluation, ImageResult
from cacseg.metrics import Tally, scores, tally
from cacseg.reports.tables import (
    as_json,
    class_csv,
    class_table,
    confusion_csv,
    image_csv,
    markdown_table,
    summary_table,
)

NAMES = ("sky", "road, wet", "a|b", "never")


@pytest.fixture
def found():
    """Three images with known counts; the last class is nowhere."""
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(0, 50, (2, 3, 4, 4), generator=generator)  # [output, image, labelled, predicted]
    counts[..., 3, :] = 0
    counts[..., :, 3] = 0
    counts[:, 1] = 0  # an image without labels
    images = tuple(
        ImageResult(k, f"folder/image{k}", (20, 30), {"plain": tally(counts[0, k]), "context": tally(counts[1, k])})
        for k in range(3)
    )
    near = {name: Tally(*(one.sum(0) // 2 for one in tally(counts[k]))) for k, name in enumerate(("plain", "context"))}
    return Evaluation(NAMES, {"plain": counts[0].sum(0), "context": counts[1].sum(0)}, images, "context", near)


def rendered(table):
    console = Console(file=io.StringIO(), width=120)
    console.print(table)
    return console.file.getvalue()


def test_tables_carry_the_scores_in_percent(found):
    text = rendered(class_table(found))
    iou = found.scores("context").iou
    for name, value in zip(NAMES[:3], iou[:3].tolist(), strict=True):
        line = next(line for line in text.splitlines() if name in line)
        assert f"{100 * value:.1f}" in line
    assert "-" in next(line for line in text.splitlines() if "never" in line)
    text = rendered(summary_table({"first": found.scores("plain"), "second": found.scores("context")}, "a title"))
    assert "a title" in text
    assert "Dice" in text
    assert "boundary" in text
    assert f"{100 * found.scores('plain').mean_iou:.1f}" in next(line for line in text.splitlines() if "first" in line)


def test_boundaries_that_were_not_counted_are_left_out(found):
    without = replace(found, boundaries={})
    results = {"context": without.scores()}
    for text in (rendered(class_table(without)), rendered(summary_table(results))):
        assert "boundary" not in text
        assert f"{100 * found.scores().dice[0]:.1f}" in text or f"{100 * found.scores().mean_dice:.1f}" in text
    assert as_json(without)["outputs"]["plain"]["mean_boundary_iou"] is None
    assert as_json(found)["outputs"]["plain"]["mean_boundary_iou"] == found.scores("plain").mean_boundary_iou


def test_names_with_brackets_are_shown_as_they_are(found):
    odd = Evaluation(("car [parked]", "[/b]", "[red]x[/red]", "a\\"), found.counts, found.images, found.output)
    text = rendered(class_table(odd))
    assert all(name in text for name in odd.class_names)
    text = rendered(summary_table({"[/i] one": found.scores("plain")}, "split [new]"))
    assert "[/i] one" in text
    assert "split [new]" in text


def test_a_bar_in_a_name_does_not_split_a_row_of_markdown():
    lines = markdown_table(["class", "IoU"], [["a|b", "1.0"], ["sky", "2.0"]])
    assert "| a\\|b | 1.0 |" in lines
    assert {line.replace("\\|", "").count("|") for line in lines} == {3}


def test_json_round_trip_without_nan(found):
    content = json.loads(json.dumps(as_json(found), allow_nan=False))
    assert content["output"] == "context"
    assert content["images"] == 3
    context = content["outputs"]["context"]
    assert context["mean_iou"] == scores(found.counts["context"]).mean_iou
    assert context["classes"][3] == {
        "name": "never",
        "iou": None,
        "dice": None,
        "boundary_iou": None,
        "accuracy": None,
        "labelled_pixels": 0,
        "predicted_pixels": 0,
    }
    assert context["classes"][0]["labelled_pixels"] == int(found.counts["context"][0].sum())


def test_csv_of_images_has_the_worst_first_and_the_unlabelled_last(found):
    rows = list(csv.DictReader(io.StringIO(image_csv(found))))
    assert rows[-1]["image"] == "folder/image1"
    assert rows[-1]["mean_iou_context"] == ""
    values = [float(row["mean_iou_context"]) for row in rows[:-1]]
    assert values == sorted(values)
    for row in rows[:-1]:
        image = found.images[int(row["index"])]
        assert float(row["mean_iou_plain"]) == pytest.approx(image.scores("plain").mean_iou, abs=1e-6)
        assert (row["width"], row["height"]) == ("30", "20")


def test_csv_of_classes_and_counts(found):
    rows = list(csv.DictReader(io.StringIO(class_csv(found))))
    assert [row["class"] for row in rows] == list(NAMES)
    plain = found.scores("plain")
    for k, row in enumerate(rows[:3]):
        assert float(row["iou_plain"]) == pytest.approx(plain.iou[k].item(), abs=1e-6)
        assert float(row["accuracy_plain"]) == pytest.approx(plain.accuracy[k].item(), abs=1e-6)
        assert float(row["dice_plain"]) == pytest.approx(plain.dice[k].item(), abs=1e-6)
        assert float(row["boundary_iou_plain"]) == pytest.approx(plain.boundary_iou[k].item(), abs=1e-6)
    assert rows[3]["iou_plain"] == rows[3]["accuracy_plain"] == rows[3]["boundary_iou_plain"] == ""
    table = list(csv.reader(io.StringIO(confusion_csv(found, "plain"))))
    assert table[0][1:] == list(NAMES)
    assert [[int(cell) for cell in row[1:]] for row in table[1:]] == found.counts["plain"].tolist()
    assert not math.isnan(plain.mean_iou)
