"""Computes and draws the figures of trained models and writes them into a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from matplotlib.figure import Figure

from cacseg._checks import did_you_mean, first_few
from cacseg._files import to_csv, write_file
from cacseg.data.sample import SegmentationData
from cacseg.engine.features import (
    ImageAnswers,
    ImageRows,
    adapts,
    answer_names,
    image_answers,
    image_rows,
    plain_rows,
)
from cacseg.engine.inference import Inference, Scale
from cacseg.models.model import SegmentationModel
from cacseg.reports.figures import MOST_CLUSTERS, Cluster, Row, answers_figure, moves_figure, tsne_figure
from cacseg.reports.pictures import saved

FORMATS = ("png", "svg")
ENOUGH = 10  # features of a class that an image needs for t-SNE, where the class is not asked for
OTHERS = 60  # features of other classes of an image in t-SNE
T = TypeVar("T")


class Shown(NamedTuple):
    """A model, its input protocol, and the `title` of its column in the grid."""

    title: str
    model: SegmentationModel
    inference: Inference = Inference()
    scale: Scale | None = None


class Written(NamedTuple):
    """The figures that were written, with captions, and the reasons why others were not."""

    figures: dict[str, str]
    left_out: dict[str, str]


def main_run(runs: Sequence[Shown]) -> Shown:
    """The one whose rows, features and entropies are drawn: the first that adapts, else the first."""
    return next((run for run in runs if adapts(run.model)), runs[0])


def write_figures(
    folder: Path,
    runs: Sequence[Shown],
    data: SegmentationData,
    looked_at: Sequence[int],
    in_grids: Sequence[int],
    *,
    class_name: str | None = None,
    device: torch.device,
    done: Callable[[], None] = lambda: None,
) -> Written:
    """Writes entropy and predictions, and where a model adapts moves and tsne.

    `looked_at` and `in_grids` are images of the data. `done` is called after each pass of an image.
    """
    main, left_out, written = main_run(runs), dict[str, str](), dict[str, str]()
    titles = [run.title for run in runs]
    for run in runs:
        run.model.to(device).eval()
    if adapts(main.model):
        found = _counted(image_rows(main.model, data, looked_at, scale=main.scale, device=device), done)
        wanted = None if class_name is None else class_number(class_name, data.class_names)
        try:  # first: a class that is nowhere is an error before anything is written
            chosen, which = choose_class(found, data.class_names, wanted)
            _save(folder, "tsne", _tsne(main.model, data, chosen, which))
            written["tsne"] = (
                f"class {data.class_names[which]}, images {', '.join(one.name for one in chosen)}, model {main.title}"
            )
        except TooFewError as error:
            if class_name is not None:
                raise
            left_out["tsne"] = str(error)
        if any(one.counts.any() for one in found):
            _write_moves(folder, found, data.class_names)
            written["moves"] = f"{len(found)} images, model {main.title}"
        else:
            left_out["moves"] = "no feature of these images is labelled."
    else:
        left_out = dict.fromkeys(("tsne", "moves"), f"{main.title} has a plain classifier, whose rows never move.")
    answers = [
        _counted(
            image_answers(
                run.model,
                data,
                in_grids,
                answer_names(run.model),
                inference=run.inference,
                scale=run.scale,
                device=device,
            ),
            done,
        )
        for run in runs
    ]
    entropies = [_row(one) for one in answers[runs.index(main)]]
    predictions = [one._replace(entropies={}) for one in entropies]
    if len(runs) > 1:  # of each its own answer
        predictions = [
            Row(
                several[0].name,
                several[0].sample,
                {
                    run.title: one.answers[run.model.default_output].classes
                    for run, one in zip(runs, several, strict=True)
                },
            )
            for several in zip(*answers, strict=True)
        ]
    _save(folder, "entropy", answers_figure(entropies, data.class_names, data.palette))
    _save(folder, "predictions", answers_figure(predictions, data.class_names, data.palette))
    images = f"images {', '.join(row.name for row in entropies)}"
    of_all = f"model{'s' * (len(titles) > 1)} {' and '.join(titles)}"
    written |= {"entropy": f"{images}, model {main.title}", "predictions": f"{images}, {of_all}"}
    return Written(written, left_out)


class TooFewError(ValueError):
    """Raised if no class is in enough images."""


def class_number(name: str, class_names: Sequence[str]) -> int:
    if name not in class_names:
        hint = did_you_mean(name, class_names) or f"There are {first_few(class_names, 12)}."
        raise ValueError(f"--class must be a class of the data; got {name!r}. {hint}")
    return list(class_names).index(name)


def choose_class(
    found: Sequence[ImageRows], class_names: Sequence[str], wanted: int | None = None
) -> tuple[list[ImageRows], int]:
    """The class for t-SNE, and images that have enough of it: evenly over their names, so from different scenes.

    By default the class whose rows move most, on average over the images where it has `ENOUGH` features, of those in
    at least three images (two, where none is in three).
    """
    counts = np.stack([one.counts for one in found])  # [images, n]
    there = counts >= ENOUGH
    if wanted is not None and there[:, wanted].sum() < 2:  # asked for: better few features than no figure
        there = counts >= 1
    if wanted is None:
        means = np.where(there, np.stack([one.moves for one in found]), 0.0).sum(0) / np.maximum(there.sum(0), 1)
        needed = min(3, max(2, int(there.sum(0).max())))
        candidates = np.flatnonzero(there.sum(0) >= needed)
        if not len(candidates):
            raise TooFewError(
                f"no class has {ENOUGH} features in each of two images, of the {len(found)} looked at. Look at more "
                "with --images, or name one with --class."
            )
        wanted = int(candidates[np.argmax(means[candidates])])
    having = [one for one, enough in zip(found, there[:, wanted], strict=True) if enough]
    if len(having) < 2:
        seen = [class_names[k] for k in np.flatnonzero((counts > 0).sum(0) >= 2).tolist()]
        raise TooFewError(
            f"t-SNE compares images: {class_names[wanted]!r} must be in at least 2 of the {len(found)} looked at; it "
            f"is in {len(having)}. Look at more with --images, or take one of {first_few(seen, 12) or 'no class'}."
        )
    having.sort(key=lambda one: one.name)
    places = np.linspace(0, len(having) - 1, min(MOST_CLUSTERS, len(having))).round().astype(int)
    return [having[k] for k in places.tolist()], wanted


def _tsne(model: SegmentationModel, data: SegmentationData, chosen: Sequence[ImageRows], which: int) -> Figure:
    clusters = [Cluster(one.name, one.features[which], one.rows[which], data.read(one.place)) for one in chosen]
    others = [
        np.concatenate([vectors[:: max(1, len(vectors) * (len(one.features) - 1) // OTHERS)] for vectors in rest])
        for one in chosen
        if (rest := [vectors for k, vectors in one.features.items() if k != which])
    ]
    plain = plain_rows(model)
    grey = np.concatenate(others) if others else np.zeros((0, plain.shape[1]), np.float32)
    return tsne_figure(data.class_names[which], which, clusters, grey, plain[which])


def _write_moves(folder: Path, found: Sequence[ImageRows], class_names: Sequence[str]) -> None:
    moves, present = np.stack([one.moves for one in found]), np.stack([one.counts for one in found]) > 0
    _save(folder, "moves", moves_figure(moves, present, [one.name for one in found], class_names))
    lines = [
        [found[i].name, class_names[k], f"{moves[i, k]:.6f}", found[i].counts[k]]
        for i, k in np.argwhere(present).tolist()
    ]
    write_file(folder / "moves.csv", to_csv([["image", "class", "move", "features"], *lines]))


def _row(image: ImageAnswers) -> Row:
    answers = image.answers.items()
    return Row(image.name, image.sample, {k: one.classes for k, one in answers}, {k: one.entropy for k, one in answers})


def _save(folder: Path, name: str, figure: Figure) -> None:
    for format in FORMATS:
        write_file(folder / f"{name}.{format}", saved(figure, format))


def _counted(items: Iterable[T], done: Callable[[], None]) -> list[T]:
    found = []
    for item in items:
        found.append(item)
        done()
    return found
