"""scores.json of runs and evaluations, as a crash, an editor or a stranger may have left it."""

import json

import pytest

import compare_runs
from cacseg.engine.scores import read_evaluation, read_scores


def change(content, place, value):
    *above, last = place.split("/")
    part = content
    for name in above:
        part = part[int(name) if isinstance(part, list) else name]
    part[int(last) if isinstance(part, list) else last] = value
    return content


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("finished", "yes", "finished"),
        ("step", -1, "step"),
        ("output", "oracle", "splits.val.outputs must have 'oracle'"),
        (
            "splits/val/outputs",
            {"context": {"mean_iou": 0.5, "mean_accuracy": 0.5, "pixel_accuracy": 0.5, "iou": [0.5, 0.5]}},
            "splits.val.outputs must have 'plain'",
        ),
        ("class_names", ["a"], "every list must have 1 entries"),
        ("splits/val", {}, "splits.val.images"),
        ("splits/val/images", 10**30, "splits.val.images"),
        ("splits/val/labelled_pixels", [1], "every list must have 2 entries"),
        ("splits/val/outputs/plain/mean_iou", float("nan"), "mean_iou"),
        ("splits/val/outputs/plain/mean_iou", 50.0, "mean_iou"),
        ("splits/val/outputs/plain/iou/0", "half", "iou.0"),
        ("splits/val/outputs/plain/confusion", [[1, 2], [3]], "every list must have 2 entries"),
        ("seconds", "long", "seconds"),
        ("best", [], "best"),
        ("device", "\ud800", "half a character"),
    ],
)
def test_what_is_wrong_in_the_scores_of_a_run_is_named(tmp_path, place, value, words):
    path, content = tmp_path / "scores.json", compare_runs.scores(confusion=[[1, 2], [3, 4]])
    path.write_text(json.dumps(content))
    assert read_scores(path) == content
    path.write_text(json.dumps(change(content, place, value)))
    with pytest.raises(ValueError, match=rf"scores\.json is damaged: .*{words}.*cacseg train --resume"):
        read_scores(path)


@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff", b"[" * 100_000])
def test_what_are_no_scores_at_all(tmp_path, content):
    assert read_scores(tmp_path / "scores.json") is None
    assert read_evaluation(tmp_path / "scores.json") is None
    (tmp_path / "scores.json").write_bytes(content)
    for read in (read_scores, read_evaluation):
        with pytest.raises(ValueError, match=r"scores\.json is damaged: it (is no JSON|must hold an object)"):
            read(tmp_path / "scores.json")


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("checkpoint", 5, "checkpoint"),
        ("output", "context", "outputs must have 'context'"),
        ("outputs/plain/classes/0/iou", 2.0, "classes.0.iou"),
        ("outputs/plain/classes/0/labelled_pixels", None, "labelled_pixels"),
        ("data", [], "data"),
    ],
)
def test_what_is_wrong_in_the_scores_of_an_evaluation_is_named(tmp_path, place, value, words):
    means = {"mean_iou": 0.5, "mean_accuracy": None, "pixel_accuracy": 1}
    classes = [{"name": "a", "iou": 0.5, "labelled_pixels": 3}]
    content = {"checkpoint": "m", "images": 1, "output": "plain", "outputs": {"plain": {**means, "classes": classes}}}
    (tmp_path / "scores.json").write_text(json.dumps(content))
    assert read_evaluation(tmp_path / "scores.json") == content
    (tmp_path / "scores.json").write_text(json.dumps(change(content, place, value)))
    with pytest.raises(ValueError, match=rf"scores\.json is damaged: .*{words}.*cacseg eval"):
        read_evaluation(tmp_path / "scores.json")
