"""The notebook runs in a kernel of Jupyter's, as its readers run it."""

import re
from pathlib import Path

import nbformat
import pytest

nbclient = pytest.importorskip("nbclient")
NOTEBOOK = Path(__file__).parents[1] / "examples" / "quickstart.ipynb"
LARGEST = 300_000  # bytes, with its pictures


def text_of(notebook):
    outputs = [one for cell in notebook.cells if cell.cell_type == "code" for one in cell.outputs]
    return "".join(one["text"] for one in outputs if one.output_type == "stream" and one.name == "stdout"), outputs


@pytest.mark.parametrize(("steps", "least"), [(20, 0.0), pytest.param(200, 25.0, marks=pytest.mark.slow)])
def test_it_trains_compares_and_predicts(tmp_path, monkeypatch, steps, least):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    (training,) = (cell for cell in notebook.cells if '"schedule.steps": 200' in cell.source)
    training.source = training.source.replace("200", str(steps))
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute(cwd=str(tmp_path))
    text, outputs = text_of(notebook)
    scores = {words: float(score) for words, score in re.findall(r"(\w+ model, +\w+) logits: mIoU ([\d.]+)", text)}
    assert len(scores) == 5
    assert min(scores.values()) > least  # by chance some 7
    assert sum("image/png" in one.get("data", {}) for one in outputs) == 2


def test_it_is_small_and_was_run():
    assert NOTEBOOK.stat().st_size < LARGEST
    assert "mIoU" in text_of(nbformat.read(NOTEBOOK, as_version=4))[0]  # `make notebook`
