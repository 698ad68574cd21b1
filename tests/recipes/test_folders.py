"""What is read for a report from folders that a crash, an editor or a stranger may have changed."""

import json

import pytest

from cacseg.recipes.folders import read_folder, read_metrics


def write_evaluation(folder, names):
    means = {"mean_iou": 0.5, "mean_accuracy": 0.5, "pixel_accuracy": 0.5}
    classes = [{"name": name, "iou": 0.5, "labelled_pixels": 3} for name in names]
    content = {"checkpoint": "m", "images": 1, "output": "plain", "outputs": {"plain": {**means, "classes": classes}}}
    (folder / "scores.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    "content", [b"\xef\xbb\xbfstep,loss\n1,2\n", b"step,loss\r\n1,2\r\n2,", b"step,loss\n\0\0\n1,2\nx,1\n1,2,3\n"]
)
def test_the_whole_rows_of_a_log_are_read(tmp_path, content):
    (tmp_path / "metrics.csv").write_bytes(content)
    table = read_metrics(tmp_path / "metrics.csv")
    assert table.to_dict("records") == [{"step": 1, "loss": 2}]


@pytest.mark.parametrize("content", ["", "step,loss\n", "step,loss\n1,"])
def test_a_log_without_a_row_is_none(tmp_path, content):
    assert read_metrics(tmp_path / "metrics.csv") is None
    (tmp_path / "metrics.csv").write_text(content)
    assert read_metrics(tmp_path / "metrics.csv") is None


@pytest.mark.parametrize(
    "content",
    [
        b"loss,step\n1,2\n",
        b"step,step\n1,2\n",
        b"step\n" + b"9" * 400 + b"\n",
        "step,loss\n1,2\n".encode("utf-16"),
        bytes(500),
        b"\n\n1,2\n",
        bytes(range(256)),
        b"step,\xec\n1,2\n",  # a name of no letters
    ],
)
def test_what_is_there_and_no_log_is_told_from_what_is_missing(tmp_path, content):
    (tmp_path / "metrics.csv").write_bytes(content)
    with pytest.raises(ValueError, match=rf"metrics\.csv is no metrics\.csv of a run \({len(content)} bytes"):
        read_metrics(tmp_path / "metrics.csv")


def test_what_is_no_number_in_a_log_is_nan(tmp_path):
    (tmp_path / "metrics.csv").write_bytes(b"step,loss,rate\n1,\xff,0.5\n2,inf,x\n")
    table = read_metrics(tmp_path / "metrics.csv")
    assert table["step"].tolist() == [1, 2]
    assert table["loss"].isna().all()
    assert table["rate"].isna().tolist() == [False, True]


@pytest.mark.parametrize("content", ["", ",a\na,1\n", ",a,b\na,1,2\nb,3,x\n", ",a,b\na,1,2\nb,3,-4\n", "\0"])
def test_damaged_counts_of_an_evaluation(tmp_path, content):
    write_evaluation(tmp_path, ["a", "b"])
    (tmp_path / "confusion_plain.csv").write_text(",a,b\na,1,2\nb,3,4\n")
    scores = read_folder(tmp_path).scores
    assert scores["splits"]["val"]["outputs"]["plain"]["confusion"] == [[1, 2], [3, 4]]
    (tmp_path / "confusion_plain.csv").write_text(content)
    with pytest.raises(ValueError, match=r"confusion_plain\.csv is damaged: it must hold 2 rows of 2 counts"):
        read_folder(tmp_path)
