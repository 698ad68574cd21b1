"""The paper's figures of a context-aware model, drawn from arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from cacseg.data.sample import Sample
from cacseg.runtime.colours import Colour, Picture, colour

# Okabe and Ito's colours, told apart by colour-blind readers; markers differ as well.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")
MARKERS = "osD^vP"
MOST_CLUSTERS = len(COLOURS)
DPI = 150
ABSENT = "0.88"
ALIKE = 0.05  # of the way from the plain row: rows that are nearer to one another than that hardly differ
PANEL, APART = np.array([5.5, 3.7]), 0.32  # inches: about the size of t-SNE's panel, the least distance of two rows
Array = npt.NDArray[np.float32]
Labels = npt.NDArray[np.uint8]


class Cluster(NamedTuple):
    """The class in one image."""

    name: str
    features: Array  # [p, d], of the class
    row: Array  # [d], of the image's classifier
    sample: Sample


def embed(vectors: Array, seed: int = 0) -> Array:
    """t-SNE of unit vectors, [p, 2]: directions count, as in the cosines of the context-aware classifier."""
    try:
        from sklearn.manifold import TSNE
    except ModuleNotFoundError as error:  # pragma: no cover
        raise ModuleNotFoundError(
            "t-SNE needs scikit-learn, which is not installed: pip install scikit-learn", name="sklearn"
        ) from error
    if len(vectors) < 4:
        raise ValueError(f"t-SNE needs at least 4 vectors; got {len(vectors)}. Take more images.")
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    perplexity = min(30.0, (len(unit) - 1) / 3)
    return np.asarray(TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(unit), np.float32)


def tsne_figure(
    class_name: str, class_index: int, clusters: Sequence[Cluster], others: Array, plain_row: Array, seed: int = 0
) -> Figure:
    """Features of one class in several images, the plain row (circle) and each image's own row (star).

    `others` are features of other classes in these images, drawn in grey. All go through one t-SNE.
    """
    if not 1 <= len(clusters) <= MOST_CLUSTERS:
        raise ValueError(f"the figure shows 1 to {MOST_CLUSTERS} images; got {len(clusters)}.")
    rows = np.stack([plain_row, *(one.row for one in clusters)])
    places = embed(np.concatenate([rows, *(one.features for one in clusters), others]), seed)
    figure = Figure(figsize=(8.2, 5.2), dpi=DPI, layout="constrained")
    grid = figure.add_gridspec(len(clusters), 2, width_ratios=[1.0, 3.6])
    axes: Any = figure.add_subplot(grid[:, 1])
    first = len(rows)
    for k, one in enumerate(clusters):
        shade, marker = COLOURS[k], MARKERS[k]
        own = places[first : first + len(one.features)]
        first += len(own)
        axes.scatter(*own.T, s=11, c=shade, marker=marker, linewidths=0, alpha=0.75, zorder=3)
        _thumbnail(figure.add_subplot(grid[k, 0]), one, class_index, shade, marker)
    axes.scatter(*places[first:].T, s=5, c="0.8", linewidths=0, zorder=1)
    inches = PANEL / (places.max(0) - places.min(0) + 1e-6)
    shown = spread(places[: len(rows)] * inches, APART) / inches
    axes.update_datalim(np.concatenate([shown - 0.5 * APART / inches, shown + 0.5 * APART / inches]))  # whole stars
    axes.margins(0.04)
    axes.set(xticks=[], yticks=[])
    for start, end in zip(places, shown, strict=False):  # leader lines of the rows that lie on one another
        if np.linalg.norm((end - start) * inches) > 0.1 * APART:
            axes.plot(*np.stack([start, end]).T, color="black", linewidth=0.8, zorder=4)
            axes.plot(*start, "o", color="black", markersize=3, zorder=4)
    axes.scatter(*shown[0], s=110, c="white", marker="o", edgecolors="black", linewidths=2, zorder=5)
    for k, place in enumerate(shown[1:]):
        axes.scatter(*place, s=300, c=COLOURS[k], marker="*", edgecolors="black", linewidths=0.9, zorder=6)
    axes.set_title(f"{class_name} in {len(clusters)} images\n{_distances(rows)}", fontsize=10, parse_math=False)
    empty: dict[str, Any] = {"linestyle": "", "color": "0.3"}
    handles = [
        Line2D([], [], marker="s", markersize=4, label=f"features of {_plain(class_name)}, by image", **empty),
        Line2D([], [], marker="o", markersize=3, label="features of other classes", linestyle="", color="0.8"),
        Line2D([], [], marker="o", markersize=10, mfc="white", mec="black", mew=2, label="plain row", linestyle=""),
        Line2D([], [], marker="*", markersize=14, mec="black", label="image's own row, in its colour", **empty),
    ]
    figure.legend(handles=handles, loc="outside lower right", ncols=2, fontsize=8.5, frameon=False)
    axes.set_xlabel("t-SNE of features and rows, all scaled to unit length: nearness is cosine", fontsize=8.5)
    return figure


def spread(places: Array, least: float) -> Array:
    """The positions, [p, 2], pushed apart until no two are nearer than `least`."""
    angles = np.linspace(0.0, 2 * np.pi, len(places), endpoint=False)
    # Those on one spot leave it in different directions.
    found = places + 1e-3 * least * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    for _ in range(1000):
        gaps = found[:, None] - found
        lengths = np.linalg.norm(gaps, axis=-1) + np.eye(len(found))
        missing = np.maximum(1.01 * least - lengths, 0.0) * (1.0 - np.eye(len(found)))
        if missing.max() < 0.01 * least:
            break
        found = found + 0.1 * (gaps * (missing / lengths)[..., None]).sum(1)
    return np.asarray(found, np.float32)


def _distances(rows: Array) -> str:
    """The distances of the images' rows from the plain row, which is the first, and from one another."""
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    distances = 1.0 - unit @ unit.T
    words = f"1 - cosine, mean: {distances[0, 1:].mean():.2g} from the plain row to an image's own"
    pairs = np.triu_indices(len(rows) - 1, 1)
    if len(rows) < 3:
        return words
    moved, between = distances[0, 1:].mean(), distances[1:, 1:][pairs].mean()
    alike = "\nthe images' own rows hardly differ from one another" if between < ALIKE * moved else ""
    return f"{words}, {between:.2g} between images{alike}"


def moves_figure(moves: Array, present: npt.NDArray[np.bool_], images: Sequence[str], classes: Sequence[str]) -> Figure:
    """How far each image's rows move from the plain ones, [images, classes]: 1 - cosine, for the classes present.

    Classes are sorted by their mean, which the last line shows; those that are nowhere are left out.
    """
    if not present.any():
        raise ValueError("no image has a labelled feature: there is no move to show. Take more images.")
    shown = np.ma.masked_array(moves, ~present)
    means = shown.mean(0)
    order = [k for k in np.argsort(-means.filled(-1.0), kind="stable") if present[:, k].any()]
    table = np.ma.vstack([shown[:, order], means[order][None]])
    numbered = len(order) <= 24
    cell_width, cell_height, letters = (0.46, 0.24, 8.5) if numbered else (0.16, 0.2, 6.5)
    names = [*map(_short, images), "mean"]
    left = 0.5 + 0.075 * max(map(len, names))
    below = 0.5 + 0.075 * max(len(classes[k]) for k in order)
    size = max(4.6, left + cell_width * len(order) + 1.3), below + cell_height * len(names) + 0.8
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    axes.set_facecolor(ABSENT)
    picture = axes.imshow(table, cmap="cividis", vmin=0.0, aspect="auto", interpolation="nearest")
    axes.set_xticks(range(len(order)), [classes[k] for k in order], rotation=90, fontsize=letters, parse_math=False)
    axes.set_yticks(range(len(names)), names, fontsize=min(8.0, letters), parse_math=False)
    axes.axhline(len(images) - 0.5, color="white", linewidth=3)
    axes.tick_params(length=0)
    if numbered:
        middle = 0.5 * float(table.max())
        for row, column in np.ndindex(table.shape):
            if table[row, column] is not np.ma.masked:
                dark = float(table[row, column]) < middle
                text = f"{table[row, column]:.2f}".removeprefix("0")
                axes.text(column, row, text, ha="center", va="center", fontsize=7, color="white" if dark else "black")
    figure.suptitle("how far each image's classifier moves from the plain one", fontsize=10)
    bar = figure.colorbar(picture, ax=axes, fraction=0.05, pad=0.02)
    bar.set_label("1 - cosine (grey: class absent)", fontsize=8.5)
    bar.ax.tick_params(labelsize=8)
    return figure


class Row(NamedTuple):
    """An image, its labels and its predictions by title; entropies where they are drawn."""

    name: str
    sample: Sample
    answers: Mapping[str, Labels]
    entropies: Mapping[str, Array] = {}


def answers_figure(rows: Sequence[Row], class_names: Sequence[str], palette: Sequence[Colour]) -> Figure:
    """input | truth | each answer, followed by its entropy where there is one; below, the classes that occur.

    Entropies share one colour scale. What is ignored is black.
    """
    if not rows:
        raise ValueError("a figure needs at least one image; got none.")
    titles = ["input", "truth"]
    for title in rows[0].answers:
        titles += [title, *([f"entropy, {title}"] if title in rows[0].entropies else [])]
    with_entropy = len(titles) > 2 + len(rows[0].answers)
    most = max((float(one.max()) for row in rows for one in row.entropies.values()), default=1.0)
    width = 1.9 if len(titles) > 4 else 2.5
    ratio = max(one.sample.image.shape[0] / one.sample.image.shape[1] for one in rows)
    labels = [one for row in rows for one in (row.sample.labels, *row.answers.values())]
    occurring = [int(k) for k in np.unique(np.concatenate([np.unique(one) for one in labels])) if k < len(class_names)]
    figure_width = width * len(titles) + 0.2 + 0.7 * with_entropy
    columns = max(1, int(figure_width / (0.55 + 0.07 * max(len(class_names[k]) for k in occurring))))
    lines = -(-(len(occurring) + 1) // columns)
    size = figure_width, (width * min(ratio, 1.6) + 0.17) * len(rows) + 0.35 + 0.19 * lines
    layout = ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.03, wspace=0.01, hspace=0.01)
    figure = Figure(figsize=size, dpi=DPI, layout=layout)
    axes = figure.subplots(len(rows), len(titles), squeeze=False)
    for place, row in enumerate(rows):
        pictures: list[Any] = [row.sample.picture, colour(row.sample.labels, palette)]
        for title, answer in row.answers.items():
            pictures += [colour(answer, palette), *([row.entropies[title]] if title in row.entropies else [])]
        for panel, title, picture in zip(axes[place], titles, pictures, strict=True):
            maps: dict[str, Any] = {} if picture.ndim == 3 else {"cmap": "viridis", "vmin": 0.0, "vmax": most}
            shown = panel.imshow(picture, **maps, interpolation="nearest" if picture.ndim == 3 else None)
            panel.set(xticks=[], yticks=[])
            if place == 0:
                panel.set_title(_short(title, int(14 * width)), fontsize=9, pad=3, parse_math=False)
        axes[place, 0].set_xlabel(_short(row.name), fontsize=7, labelpad=2, parse_math=False)
    if with_entropy:
        bar = figure.colorbar(shown, ax=axes, fraction=0.025, pad=0.01, aspect=30)
        bar.set_label("entropy / log(classes)", fontsize=8.5)
        bar.ax.tick_params(labelsize=8)
    patches = [Patch(color="#{:02x}{:02x}{:02x}".format(*palette[k]), label=_plain(class_names[k])) for k in occurring]
    if any((one >= len(class_names)).any() for one in labels):
        patches.append(Patch(color="black", label="ignored"))
    figure.legend(handles=patches, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
    return figure


def _thumbnail(axes: Any, cluster: Cluster, class_index: int, shade: str, marker: str) -> None:
    """The image with all but the class faded, in a frame of its colour and with its marker."""
    corner: dict[str, Any] = {"transform": axes.transAxes, "markeredgecolor": "white", "linestyle": ""}
    axes.plot(0.1, 0.86, marker=marker, color=shade, markersize=9, **corner)
    axes.imshow(_highlighted(cluster.sample, class_index))
    axes.set(xticks=[], yticks=[])
    axes.set_xlabel(_short(cluster.name), fontsize=7, labelpad=2, parse_math=False)
    for spine in axes.spines.values():
        spine.set(color=shade, linewidth=3)


def _highlighted(sample: Sample, class_index: int) -> Picture:
    pale = 255 - (255 - sample.picture) // 3
    return np.where((sample.labels == class_index)[..., None], sample.picture, pale).astype(np.uint8)


def _short(name: str, most: int = 28) -> str:
    return name if len(name) <= most else f"...{name[3 - most :]}"


def _plain(name: str) -> str:
    """A dollar in a legend would start a formula."""
    return name.replace("$", r"\$")
