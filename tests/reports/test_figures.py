"""The paper's figures: what can be checked without eyes. They were looked at, with 8 and 11 classes."""

import io
import re

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from cacseg.data import Sample
from cacseg.engine.features import ImageRows
from cacseg.reports import figures
from cacseg.reports.pictures import saved
from cacseg.reports.write_figures import TooFewError, choose_class, class_number

NAMES = ("road", "car $", "sky")
PALETTE = ((250, 0, 0), (0, 250, 0), (0, 0, 250))


def numbers(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def sample(labels=0, size=(30, 40)):
    return Sample(np.full((*size, 3), 90, np.uint8), np.full(size, labels, np.uint8))


def pixels(figure):
    with Image.open(io.BytesIO(saved(figure, "png"))) as picture:
        return np.asarray(picture.convert("RGB"))


def assert_texts_apart(figure):
    """No two texts overlap, and none leaves the figure."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    boxes = []
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
            boxes += [one for place, one in ticks if low <= place <= high and one.get_text()]
        boxes += [one for one in (axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts) if one.get_text()]
    boxes += [figure._suptitle] if figure._suptitle else []
    boxes += [one for legend in figure.legends for one in legend.get_texts()]
    boxes = [(one.get_text(), one.get_window_extent(renderer)) for one in boxes]
    for place, (text, box) in enumerate(boxes):
        assert min(box.x0, box.y0, figure.bbox.width - box.x1, figure.bbox.height - box.y1) >= -1, text
        for other, another in boxes[place + 1 :]:
            assert not (box.shrunk(0.96, 0.9).overlaps(another.shrunk(0.96, 0.9))), (text, other)


def test_directions_alone_count_in_the_embedding():
    vectors = numbers(40, 6)
    lengths = 2.0 ** np.arange(-20, 20, dtype=np.float32)[:, None]  # without rounding
    np.testing.assert_array_equal(figures.embed(vectors), figures.embed(vectors * lengths))
    with pytest.raises(ValueError, match="at least 4 vectors; got 3"):
        figures.embed(vectors[:3])


def test_tsne_shows_every_image_in_its_colour():
    clusters = [figures.Cluster(f"image {k}", numbers(12, 6) + k, numbers(6), sample()) for k in range(6)]
    figure = figures.tsne_figure("car $", 0, clusters, numbers(9, 6), numbers(6))
    assert_texts_apart(figure)
    found = {tuple(one) for one in pixels(figure).reshape(-1, 3).tolist()}
    for shade in figures.COLOURS:
        assert tuple(int(shade[k : k + 2], 16) for k in (1, 3, 5)) in found
    with pytest.raises(ValueError, match="1 to 6 images; got 7"):
        figures.tsne_figure("car", 0, [*clusters, clusters[0]], numbers(9, 6), numbers(6))


def test_rows_on_one_spot_are_pushed_apart():
    places = np.array([[0.0, 0.0]] * 6 + [[50.0, 0.0]], np.float32)
    found = figures.spread(places, 2.0)
    distances = np.linalg.norm(found[:, None] - found, axis=-1) + 9 * np.eye(7)
    assert distances.min() > 1.9
    assert np.abs(found[:6]).max() < 10
    np.testing.assert_allclose(found[6], places[6], atol=0.01)


def test_the_title_of_tsne_tells_how_far_rows_moved():
    rows = np.eye(3, 6, dtype=np.float32)  # all at right angles: 1 - cosine is 1
    clusters = [figures.Cluster(f"image {k}", numbers(12, 6), rows[k], sample()) for k in (1, 2)]
    title = figures.tsne_figure("car", 0, clusters, numbers(9, 6), rows[0]).axes[0].get_title()
    assert re.findall(r"mean: (\S+) from.*, (\S+) between", title) == [("1", "1")]
    assert "hardly differ" not in title
    near = [one._replace(row=rows[1] + 0.1 * k * rows[2]) for k, one in enumerate(clusters)]
    figure = figures.tsne_figure("car", 0, near, numbers(9, 6), rows[0])
    assert "hardly differ" in figure.axes[0].get_title()
    assert_texts_apart(figure)


@pytest.mark.parametrize("n", [2, 11, 60])
def test_moves_are_sorted_and_absent_classes_grey(n):
    moves = np.tile(np.linspace(0.1, 0.6, n, dtype=np.float32), (3, 1))
    present = np.ones((3, n), bool)
    present[:, 0] = False  # nowhere
    present[0, 1] = False
    figure = figures.moves_figure(moves, present, ["a", "b/" + 40 * "x", "c"], [f"class {k}" for k in range(n)])
    assert_texts_apart(figure)
    shown = [one.get_text() for one in figure.axes[0].get_xticklabels()]
    assert shown == [f"class {k}" for k in range(n - 1, 0, -1)]
    table = figure.axes[0].images[0].get_array()
    np.testing.assert_allclose(table[-1], moves[0, :0:-1])
    assert np.ma.getmaskarray(table).sum() == 1
    with pytest.raises(ValueError, match="Take more images"):
        figures.moves_figure(moves, np.zeros_like(present), ["a", "b", "c"], [])


def test_grids_share_a_scale_and_name_the_classes_that_occur():
    answers = {"plain": np.zeros((30, 40), np.uint8), "context": np.full((30, 40), 2, np.uint8)}
    entropies = {"plain": np.full((30, 40), 0.2, np.float32), "context": np.full((30, 40), 0.7, np.float32)}
    rows = [figures.Row("first", sample(), answers, entropies), figures.Row("second", sample(255), answers, entropies)]
    figure = figures.answers_figure(rows, NAMES, PALETTE)
    assert_texts_apart(figure)
    maps = [one for axes in figure.axes for one in axes.images if one.get_array().ndim == 2]
    assert {one.get_clim() for one in maps} == {(0.0, float(np.float32(0.7)))}
    assert [one.get_text() for one in figure.legends[0].get_texts()] == ["road", "sky", "ignored"]
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles == ["input", "truth", "plain", "entropy, plain", "context", "entropy, context"]
    alone = figures.answers_figure([rows[0]._replace(entropies={})], NAMES, PALETTE)
    assert [axes.get_title() for axes in alone.axes] == ["input", "truth", "plain", "context"]
    assert [one.get_text() for one in alone.legends[0].get_texts()] == ["road", "sky"]


def test_long_names_of_runs_stay_apart():
    answers = {f"runs/{'x' * 40}/{k}": np.zeros((30, 40), np.uint8) for k in range(2)}
    assert_texts_apart(figures.answers_figure([figures.Row("first", sample(), answers)], NAMES, PALETTE))


def looked_at(counts, moves):
    return [
        ImageRows(k, f"image {k}", np.array(count), {}, numbers(3, 4), np.array(move, np.float32))
        for k, (count, move) in enumerate(zip(counts, moves, strict=True))
    ]


def test_the_class_whose_rows_move_most():
    counts = [(50, 20, 90), (40, 30, 0), (30, 15, 0), (99, 3, 0)]
    moves = [(0.1, 0.3, 0.9)] * 4
    images, which = choose_class(looked_at(counts, moves), NAMES)
    assert which == 1  # sky moves more, and is in one image
    assert [one.place for one in images] == [0, 1, 2]  # 3 features are too few
    images, which = choose_class(looked_at(counts * 3, moves * 3), NAMES, 0)
    assert which == 0
    assert len(images) == figures.MOST_CLUSTERS
    # Evenly over the sorted names, whatever the number of features: image 0, 1, 10, 11, 2, ..., 9.
    assert [one.name for one in images] == [f"image {k}" for k in (0, 10, 2, 5, 7, 9)]
    few, _ = choose_class(looked_at([(5, 50), (3, 50), (0, 50)], [(0.1, 0.2)] * 3), NAMES, 0)
    assert [one.place for one in few] == [0, 1]  # asked for: a few features do
    few, _ = choose_class(looked_at([(15, 50), (3, 50), (12, 50)], [(0.1, 0.2)] * 3), NAMES, 0)
    assert [one.place for one in few] == [0, 2]
    with pytest.raises(TooFewError, match=r"'sky' must be in at least 2 of the 4 looked at; it is in 1.*road, car"):
        choose_class(looked_at(counts, moves), NAMES, 2)
    with pytest.raises(TooFewError, match="no class has 10 features"):
        choose_class(looked_at(counts[:1], moves[:1]), NAMES)


def test_a_class_that_is_not_there():
    assert class_number("sky", NAMES) == 2
    with pytest.raises(ValueError, match=r"'roda'.*Did you mean 'road'"):
        class_number("roda", NAMES)
