import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from cacseg.engine.evaluate import Evaluation, ImageResult, evaluate
from cacseg.metrics import tally
from cacseg.reports.strips import SIDE, Subject, choose_images, evenly_spaced, examine
from distributed_evaluation import small_data, small_model


def opened(uri):
    with Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))) as picture:
        return np.asarray(picture.convert("RGB"))


def evaluation(plain, context=None, output="context"):
    """Of images with two classes and so many of 10 pixels right."""
    found = {"plain": plain} if context is None else {"plain": plain, "context": context}
    tallies = [
        {name: tally(torch.tensor([[right[k], 10 - right[k]], [0, 0]])) for name, right in found.items()}
        for k in range(len(plain))
    ]
    images = tuple(ImageResult(k, f"image{k}", (2, 5), one) for k, one in enumerate(tallies))
    return Evaluation(("a", "b"), {name: torch.eye(2, dtype=torch.long) for name in found}, images, output)


def test_images_are_chosen_for_what_context_changes_then_for_their_scores():
    found = evaluation([5, 5, 5, 9, 1], [9, 5, 2, 9, 1])
    chosen = choose_images({"run": found}, each=1)
    assert list(chosen.values()) == [[0], [2], [4], [3]]
    plain = choose_images({"run": evaluation([5, 9, 1], output="plain")}, each=2)
    assert list(plain.values()) == [[2, 0], [1]]  # the worst, then the best; no image twice


@pytest.mark.parametrize(("count", "sizes"), [(4, [1, 1, 1, 1]), (5, [2, 1, 1, 1]), (11, [3, 3, 3, 2])])
def test_few_images_are_shared_out_and_headed_truthfully(count, sizes):
    """Even ones gain, odd ones lose; the worst image is the one that loses most."""
    plain = [5] * count
    context = [6 + k % 4 if k % 2 == 0 else 3 - k % 3 for k in range(count)]
    chosen = choose_images({"run": evaluation(plain, context)})
    assert [len(group) for group in chosen.values()] == sizes
    places = [place for group in chosen.values() for place in group]
    assert len(set(places)) == len(places)
    order = np.argsort(context, kind="stable").tolist()
    for (title, group), whole in zip(list(chosen.items())[2:], (order, order[::-1]), strict=True):
        of_all = {context[k] for k in group} == {context[k] for k in whole[: len(group)]}
        assert of_all or title.endswith("of the others")
    assert "of the others" in list(chosen)[2]  # the worst of all is among those where context hurts


def test_images_that_no_other_kind_takes_are_the_worst_of_all():
    chosen = choose_images({"run": evaluation([1, 5, 9, 7], [1, 5, 9, 7])}, each=1)
    assert chosen == {"Worst images": [0], "Best images": [2]}


def test_images_of_several_models_are_chosen_by_their_differences():
    chosen = choose_images(
        {"first": evaluation([5, 5, 5], output="plain"), "second": evaluation([0, 0, 0], [6, 3, 5])}, each=1
    )
    assert list(chosen.values())[:2] == [[0], [1]]
    assert all("first" in title for title in list(chosen)[:2])


def test_a_part_is_evenly_spaced_and_never_more_than_there_is():
    data = small_data()
    assert [evenly_spaced(data, 3).image_name(k) for k in range(3)] == [data.image_name(k) for k in (0, 2, 4)]
    assert len(evenly_spaced(data, 99)) == len(data)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_strips_of_real_models(count):
    data, done = small_data(), []
    subjects = [Subject(f"run {k}", small_model) for k in range(count)]
    seen = examine(subjects, data, images=4, device=torch.device("cpu"), workers=0, progress=done.append)
    assert (seen.scored, seen.total) == (4, 5)
    assert done[-1] == 4 * count
    strips = [strip for group in seen.groups.values() for strip in group]
    assert len(strips) == len({strip.name for strip in strips}) == 4
    titles = ["image", "labels"] + {
        1: ["plain", "context", "changes"],
        2: ["run 0", "run 1", "changes"],
        3: ["run 0", "run 1", "changes by run 1", "run 2", "changes by run 2"],
    }[count]
    for strip in strips:
        assert [cell.title for cell in strip.cells] == titles
        assert [cell.below for cell in strip.cells] == [" by " in title for title in titles]
        for cell in strip.cells:
            assert opened(cell.picture).shape == (48, 64, 3)
    sample = next(data.read(k) for k in range(5) if data.image_name(k) == strips[0].name)
    shown = opened(strips[0].cells[1].picture)
    assert all(tuple(shown[sample.labels == k][0]) == tuple(data.palette[k]) for k in np.unique(sample.labels) if k < 3)


def test_an_evaluation_of_the_whole_split_is_not_repeated(monkeypatch):
    data, model = small_data(), small_model()
    whole = evaluate(model, data, boundaries=False)
    monkeypatch.setattr("cacseg.reports.strips.evaluate", None)
    subject = Subject("run", lambda: model)
    seen = examine([subject], data, images=1, device=torch.device("cpu"), evaluations={"run": whole})
    assert (seen.scored, seen.total) == (5, 5)


def test_pictures_are_small():
    class Wide:
        name, split, ignore_index, class_names, palette = "wide", "val", 255, "abc", ((9, 9, 9), (1, 2, 3), (7, 7, 7))

        def __len__(self):
            return 1

        def image_name(self, index):
            return "wide"

        def read(self, index):
            from cacseg.data import Sample

            return Sample(np.zeros((64, 640, 3), np.uint8), np.zeros((64, 640), np.uint8))

    seen = examine([Subject("run", small_model)], Wide(), images=1, device=torch.device("cpu"), workers=0)
    (strip,) = next(iter(seen.groups.values()))
    assert {opened(cell.picture).shape for cell in strip.cells} == {(32, SIDE, 3)}
