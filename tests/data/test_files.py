"""Folders and .zips give the same files, in any process."""

import multiprocessing
import zipfile

import pytest
from torch.utils.data import DataLoader

import data_trees as trees
from cacseg.data import open_data, start_worker
from cacseg.runtime.files import open_files


def test_a_zip_is_as_its_folder(tmp_path):
    trees.folder(tmp_path / "data")
    folder, archive = open_files(tmp_path / "data"), open_files(trees.zipped(tmp_path / "data", tmp_path / "data.zip"))
    for below in ("", "images", "images/train", "labels/val", "nothing"):
        assert folder.below(below) == archive.below(below)
        assert folder.folders(below) == archive.folders(below)
        assert folder.exists(below) == archive.exists(below) or below == ""
    for path in folder.below(""):
        assert folder.read(path) == archive.read(path)
    assert len(folder.below("")) == 13
    assert archive.where("images/a.jpg") == f"{tmp_path / 'data.zip'}/images/a.jpg"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_a_zip_that_is_open_already(method, tmp_path):
    """The parent's handle must not be used: forked processes would share its position in the file."""
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    trees.folder(tmp_path / "data", count=6)
    data = open_data("folder", trees.zipped(tmp_path / "data", tmp_path / "data.zip"), "train")
    expected = [int(data.read(k).image.astype("int64").sum()) for k in range(len(data))]
    loader = DataLoader(
        trees.Reader(data),
        batch_size=None,
        num_workers=2 if method == "fork" else 1,
        multiprocessing_context=method,
        worker_init_fn=start_worker,
    )
    assert list(loader) == expected


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_damaged_member_is_named_and_the_others_are_read(compression, tmp_path):
    with zipfile.ZipFile(tmp_path / "data.zip", "w", compression) as archive:
        for name in ("a.png", "b.png", "c.png"):
            archive.writestr(name, trees.image(0).tobytes())
        start, size = archive.infolist()[1].header_offset + 60, archive.infolist()[1].compress_size
    content = bytearray((tmp_path / "data.zip").read_bytes())
    content[start : start + size // 2] = b"\xa5" * (size // 2)
    (tmp_path / "data.zip").write_bytes(content)
    files = open_files(tmp_path / "data.zip")
    assert files.read("a.png") == files.read("c.png")
    with pytest.raises(OSError, match=r"data.zip/b.png is damaged .*Copy the .zip again"):
        files.read("b.png")


def test_what_is_said_of_a_damaged_member_is_short(tmp_path):
    """Python tells the bytes that stand where the name should be, however many they are."""
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("a.png", bytes(9000))
    content = bytearray((tmp_path / "data.zip").read_bytes())
    content[26:28] = (8000).to_bytes(2, "little")  # the length of the name, before the member itself
    (tmp_path / "data.zip").write_bytes(content)
    with pytest.raises(OSError, match=r"data\.zip/a\.png is damaged .*Copy the \.zip again") as raised:
        open_files(tmp_path / "data.zip").read("a.png")
    assert len(str(raised.value)) < 1000


def test_a_member_that_begins_before_its_zip_is_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("a.png", b"a")
        archive.writestr("b.png", b"b")
    content = (tmp_path / "data.zip").read_bytes()
    start = (
        content.rindex(b"PK\5\6") + 16
    )  # where the directory is said to begin: 4 bytes too late, so members lie too early
    moved = (int.from_bytes(content[start : start + 4], "little") + 4).to_bytes(4, "little")
    (tmp_path / "data.zip").write_bytes(content[:start] + moved + content[start + 4 :])
    with pytest.raises(OSError, match=r"data.zip/a.png cannot be read .*Copy the .zip again"):
        open_files(tmp_path / "data.zip").read("a.png")


def test_what_is_no_data_set(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no data set at .*nowhere: no such folder or .zip"):
        open_files(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"a folder or a .zip; .*notes.txt is another file"):
        open_files(trees.write_text(tmp_path / "notes.txt", "hello"))
    trees.folder(tmp_path / "data")
    path = trees.zipped(tmp_path / "data", tmp_path / "data.zip")
    files = open_files(path)
    with pytest.raises(FileNotFoundError, match=r"no nothing.png in"):
        files.read("nothing.png")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"data.zip is no readable .zip .*Copy or download it again"):
        open_files(path)
