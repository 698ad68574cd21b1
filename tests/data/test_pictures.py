"""Labels as pictures."""

import os

import numpy as np
import pytest
from PIL import Image

from cacseg.data.pictures import (
    BETTER,
    NEITHER,
    WORSE,
    contact_sheet,
    draw_changes,
    legend,
    save_picture,
    unique_colours,
)
from cacseg.runtime.colours import colour, overlay, save_index_png

PALETTE = ((10, 20, 30), (200, 100, 0))
LABELS = np.array([[0, 1], [1, 255]], np.uint8)


def test_labels_in_their_colours():
    np.testing.assert_array_equal(colour(LABELS, PALETTE), [[(10, 20, 30), (200, 100, 0)], [(200, 100, 0), (0, 0, 0)]])


def test_overlays_leave_what_is_ignored():
    image = np.full((2, 2, 3), 100, np.uint8)
    mixed = overlay(image, LABELS, PALETTE, 0.5)
    np.testing.assert_array_equal(mixed[0], [(55, 60, 65), (150, 100, 50)])
    np.testing.assert_array_equal(mixed[1, 1], (100, 100, 100))
    np.testing.assert_array_equal(overlay(image, LABELS, PALETTE, 0.0), image)
    with pytest.raises(ValueError, match=r"one size"):
        overlay(image[:1], LABELS, PALETTE)
    with pytest.raises(ValueError, match=r"opacity must be in \[0, 1\]"):
        overlay(image, LABELS, PALETTE, 2.0)


def test_index_files_keep_values_and_show_colours(tmp_path):
    path = tmp_path / "mask.png"
    save_index_png(path, LABELS, PALETTE)
    with Image.open(path) as picture:
        assert picture.mode == "P"
        np.testing.assert_array_equal(np.asarray(picture), LABELS)
        np.testing.assert_array_equal(np.asarray(picture.convert("RGB")), colour(LABELS, PALETTE))
    with pytest.raises(FileExistsError, match=r"mask.png exists already"):
        save_index_png(path, LABELS, PALETTE)
    save_index_png(path, 1 - LABELS % 2, PALETTE, overwrite=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["mask.png"]


def test_nothing_half_written(tmp_path, monkeypatch):
    path = tmp_path / "mask.png"
    save_index_png(path, LABELS, PALETTE)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match=r"mask.png could not be written.*No space left.*Free some space"):
        save_index_png(path, LABELS, PALETTE, overwrite=True)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["mask.png"]


def test_refused_targets(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(IsADirectoryError, match=r"is a folder"):
        save_picture(tmp_path, colour(LABELS, PALETTE))
    with pytest.raises(ValueError, match=r"must end in .png"):
        save_picture(tmp_path / "picture.what", colour(LABELS, PALETTE))
    with pytest.raises(OSError, match=r"file is a file"):
        save_picture(tmp_path / "file" / "picture.png", colour(LABELS, PALETTE))
    with pytest.raises(TypeError, match=r"uint8 \[H, W\]; got int64"):
        save_index_png(tmp_path / "a.png", LABELS.astype(int), PALETTE)
    with pytest.raises(ValueError, match=r"at most 255 colours; got 256"):
        colour(LABELS, [(0, 0, 0)] * 256)


def test_sheets_hold_every_picture():
    red, blue = np.zeros((20, 30, 3), np.uint8), np.zeros((40, 40, 3), np.uint8)
    red[...], blue[...] = (255, 0, 0), (0, 0, 255)
    sheet = contact_sheet([[red, blue], [blue, red]], titles=["a", "b"], names=["one", "two"], height=50)
    for shade in ((255, 0, 0), (0, 0, 255)):
        assert (sheet == shade).all(-1).sum() == 50 * (75 if shade[0] else 50) * 2
    assert sheet.shape[1] == 75 * 2 + 6 * 3
    with pytest.raises(ValueError, match=r"rows of one length"):
        contact_sheet([[red], [red, blue]])
    with pytest.raises(ValueError, match=r"rows of one length"):
        contact_sheet([])


def test_legends_show_each_colour():
    picture = legend(("road", "Stra\u00dfe"), PALETTE, 200)
    for shade in PALETTE:
        assert (picture == shade).all(-1).sum() == 12 * 18


def test_changed_pixels_by_what_became_of_them():
    labels = np.array([[0, 0, 0, 0, 255]], np.uint8)
    before = np.array([[1, 0, 1, 0, 1]], np.uint8)
    after = np.array([[0, 1, 2, 0, 2]], np.uint8)
    image = np.full((1, 5, 3), 90, np.uint8)
    found = draw_changes(image, before, after, labels, 255)[0]
    grey = (180, 180, 180)
    assert tuple(found[0]) == BETTER
    assert tuple(found[1]) == WORSE
    assert tuple(found[2]) in (NEITHER, (60, 60, 60))  # striped
    assert tuple(found[3]) == tuple(found[4]) == grey  # unchanged, ignored
    larger = draw_changes(image.repeat(3, 0).repeat(3, 1), before, after, labels, 255)
    assert np.array_equal(larger[0], found)


def test_unique_colours_are_near_those_that_were_given():
    palette = [(0, 0, 0), (9, 9, 255), (9, 9, 255), (9, 9, 254), (7, 7, 7), *[(1, 2, 3)] * 200]
    found = unique_colours(palette)
    assert len({(0, 0, 0), *found}) == 1 + len(palette)
    assert found[4] == (7, 7, 7)
    for before, after in zip(palette[:5], found[:5], strict=True):
        assert np.abs(np.subtract(before, after)).max() <= 2
