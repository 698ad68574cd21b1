import os

import pytest

import bad_files as bad
from cacseg.runtime.inputs import find_images, left_out


@pytest.fixture
def tree(tmp_path):
    names = ["a/x.jpg", "a/y.PNG", "a/deep/x.tif", "b/x.jpg", "b/notes.txt", "b/.hidden.png", ".git/z.png"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    return tmp_path


def names(found):
    return [one.name for one in found]


def test_a_folder_is_walked(tree):
    assert names(find_images([tree])) == ["a/deep/x", "a/x", "a/y", "b/x"]
    assert names(find_images([tree / "a"])) == ["deep/x", "x", "y"]


def test_what_is_left_out_of_folders_is_counted_by_suffix(tree):
    assert left_out([tree]) == ""
    beside = ("a/x.jpg.aux.xml", "a/x.tfw", "a/x.prj", "b/.thumb.heic", "b/classes.json", "out/a.gif")
    for name in (*beside, "a/x.heic", "b/y.HEIC", "b/z.jp2", "b/film"):
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_bytes(b"")
    found = left_out([tree, str(tree)], tree / "out")
    assert all(one in found for one in ("4 files", "(.heic, .jp2, without a suffix)", ".png"))
    assert ".gif" not in found
    assert left_out([tree / "b/z.jp2", str(tree / "*/z.jp2")]) == ""  # named: they are taken
    for k in range(6):
        (tree / f"b/x.{k}").write_bytes(b"")
    assert all(one in left_out([tree / "b"]) for one in ("9 files", "and 4 more"))


def test_a_file_is_taken_whatever_its_suffix(tree):
    assert names(find_images([tree / "b/notes.txt"])) == ["notes"]


def test_equal_names_in_different_folders_stay_apart(tree):
    assert names(find_images([tree / "a/x.jpg", tree / "b/x.jpg"])) == ["a/x", "b/x"]
    assert names(find_images([tree / "b", tree / "a"])) == ["b/x", "a/deep/x", "a/x", "a/y"]
    assert names(find_images([str(tree / "*/x.jpg")])) == ["a/x", "b/x"]
    assert names(find_images([str(tree / "a/**/x.*")])) == ["deep/x", "x"]


def test_equal_names_but_for_the_suffix_keep_it(tree):
    for name in ("a/x.png", "a/X.bmp"):
        (tree / name).write_bytes(b"")
    assert names(find_images([tree / "a"])) == ["X.bmp", "deep/x", "x.jpg", "x.png", "y"]
    (tree / "a/x.jpg.png").write_bytes(b"")
    found = names(find_images([tree / "a"]))
    assert len({name.lower() for name in found}) == len(found) == 6


def test_each_image_comes_once(tree):
    os.symlink(tree / "a/x.jpg", tree / "a/link.jpg")
    found = find_images([tree / "a/x.jpg", tree / "a", str(tree / "a/*.jpg")])
    assert len(found) == 3
    assert len({one.path.resolve() for one in found}) == 3


def test_earlier_predictions_are_no_images(tree):
    assert names(find_images([tree], out=tree / "a")) == ["b/x"]


def test_links_are_called_as_they_stand_and_not_as_what_they_lead_to(tree):
    photos = tree / "deep/photos"
    photos.mkdir(parents=True)
    os.symlink("../../b/x.jpg", photos / "one.jpg")
    os.symlink(tree / "a", photos / "more")
    os.symlink(photos, tree / "linked")
    for folder in (photos, tree / "linked"):
        assert names(find_images([folder])) == ["more/deep/x", "more/x", "more/y", "one"]
    assert names(find_images([photos / "one.jpg"])) == ["one"]
    assert names(find_images([str(photos / "*.jpg")])) == ["one"]


def test_what_is_refused(tree):
    with pytest.raises(ValueError, match=r"what lies in .* is taken for earlier predictions, and all 4 images do"):
        find_images([tree], out=tree)
    with pytest.raises(FileNotFoundError, match=r"there is no file or folder .*nowhere"):
        find_images([tree / "nowhere"])
    with pytest.raises(FileNotFoundError, match=r"\*\.webp matches no file"):
        find_images([str(tree / "*.webp")])
    (tree / "empty").mkdir()
    with pytest.raises(ValueError, match=r"nothing to predict: no image in .*empty"):
        find_images([tree / "empty"])


@pytest.mark.skipif(os.name == "nt", reason="pipes and links")
def test_a_folder_with_links_to_itself_gives_each_image_once(tree):
    bad.make_loops(tree)
    assert names(find_images([tree])) == ["a/deep/x", "a/x", "a/y", "b/x"]
    assert names(find_images([str(tree / "**/*.jpg")])) == ["a/x", "b/x"]
    assert names(find_images([str(tree / "**/deep")])) == ["deep/x"]


@pytest.mark.skipif(os.name == "nt", reason="pipes and links")
def test_what_is_no_file_is_listed_and_named(tree):
    words = bad.make_traps(tree)
    assert {one.path.name for one in find_images([tree])} >= set(words)
    for name, word in words.items():
        with pytest.raises(OSError, match=rf"{name}.*{word}"):
            find_images([tree / name])
