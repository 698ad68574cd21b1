"""Files as they lie on disks of others: pipes, links, archives that unpack to more than there is memory."""

import os
import threading
import zipfile
from pathlib import Path

import pytest

import bad_files as bad
from cacseg.runtime import files
from cacseg.runtime.files import open_files, read_file

pytestmark = pytest.mark.skipif(os.name == "nt", reason="pipes and links")


def test_what_is_no_file_is_named_and_not_waited_for(tmp_path):
    for name, word in {**bad.make_traps(tmp_path), "absent.png": "removed"}.items():
        with pytest.raises(OSError, match=rf"{name}.*{word}"):
            read_file(tmp_path / name)
        with pytest.raises(OSError, match=rf"{name}.*{word}"):
            open_files(tmp_path).read(name)
    with pytest.raises(OSError, match="device"):
        read_file(Path("/dev/zero"))


def test_a_file_of_more_bytes_than_allowed_is_not_read(tmp_path):
    with (tmp_path / "x.png").open("wb") as file:
        file.truncate(2**40)  # of which nothing is on the disk
    with pytest.raises(OSError, match=r"x\.png.*at most 1 MB.*1,099,512 MB.*--max-pixels"):
        read_file(tmp_path / "x.png", 10**6)


def test_a_file_that_changes_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    path = tmp_path / "x.png"
    path.write_bytes(b"before")
    monkeypatch.setattr(files.os, "fstat", _fstat_then(path, files.os.fstat))
    content, stamp = read_file(path)
    assert content == b"changed for good"
    assert stamp == files.stamp_of(path.stat())


def _fstat_then(path, real):
    """The file is written anew after it was opened for the first time."""
    calls = []

    def fstat(number):
        found = real(number)
        calls.append(number)
        if len(calls) == 1:
            path.write_bytes(b"changed for good")
        return found

    return fstat


def test_a_file_that_never_stays_as_it_is(tmp_path, monkeypatch):
    path, real = tmp_path / "x.png", os.fstat
    path.write_bytes(b"x")

    def fstat(number):
        found = real(number)
        path.write_bytes(path.read_bytes() + b"x")
        return found

    monkeypatch.setattr(files.os, "fstat", fstat)
    with pytest.raises(OSError, match=r"x\.png must stay as it is.*3 times"):
        read_file(path)


def test_links_that_lead_back_are_not_followed(tmp_path):
    (tmp_path / "shared").mkdir()
    for name in ("a.png", "shared/b.png"):
        (tmp_path / name).write_bytes(b"")
    bad.make_loops(tmp_path)
    (tmp_path / "linked").symlink_to("shared")
    found = []
    worker = threading.Thread(target=lambda: found.extend(open_files(tmp_path).below("")), daemon=True)
    worker.start()
    worker.join(10)
    assert not worker.is_alive(), "links that lead back are followed for ever"
    assert found == ["a.png", "linked/b.png", "shared/b.png"]  # what is no loop is followed


def test_folders_that_all_lead_to_each_other_end(tmp_path):
    for name in "abcdefghij":
        (tmp_path / name).mkdir()
        for other in "abcdefghij":
            (tmp_path / name / other).symlink_to(f"../{other}")
    with pytest.raises(ValueError, match="at most 64 links"):
        open_files(tmp_path).below("")


def test_a_tree_may_be_deep(tmp_path):
    depth = 1200  # more than functions may call each other
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    try:
        assert open_files(tmp_path).below("") == []
    finally:  # pytest, which removes folders by functions that call each other, cannot
        for _ in range(depth):
            outer = os.open("..", os.O_RDONLY, dir_fd=here)
            os.close(here)
            os.rmdir("d", dir_fd=outer)
            here = outer
        os.close(here)
    assert list(tmp_path.iterdir()) == []


def zipped(path, members, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_member_that_is_much_larger_unpacked_is_refused(compression, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LARGE_MEMBER", 10**6)
    noise = os.urandom(1_100_000)
    members = {"bomb.png": bytes(3_000_000), "large.png": noise, "small.png": bytes(900_000)}
    archive = open_files(zipped(tmp_path / "x.zip", members, compression))
    with pytest.raises(OSError, match=r"x\.zip/bomb\.png has 3 MB.*100 times.*unpack the \.zip"):
        archive.read("bomb.png")
    assert archive.read("large.png") == noise
    assert archive.read("small.png") == bytes(900_000)
    with pytest.raises(OSError, match=r"small\.png.*at most 0 MB"):
        archive.read("small.png", 1000)


def test_a_member_that_lies_about_its_size_is_damaged(tmp_path, monkeypatch):
    """And no more is unpacked than it says."""
    path = zipped(tmp_path / "x.zip", {"x.png": bytes(50_000_000)})
    content = bytearray(path.read_bytes())
    for start, place in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        where = content.index(start) + place
        content[where : where + 4] = (1000).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(OSError, match=r"x\.png is damaged"):
        open_files(path).read("x.png")


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (6, 255, "version"),  # needed to extract
        (8, 1, "password|encrypted"),
        (10, 99, "cannot be unpacked|damaged|readable"),  # a compression that nobody knows
        (16, 0xFF, "damaged"),  # the checksum
        (42, 0xFF, "damaged|readable"),  # where it starts
    ],
)
def test_every_fault_of_an_archive_is_one_line(place, value, words, tmp_path):
    path = zipped(tmp_path / "x.zip", {"x.png": b"some content" * 9, "y.png": b"y"})
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + place] = value
    if place in (6, 8, 10):
        content[place - 2] = value  # in the file's own header too
    path.write_bytes(content)
    with pytest.raises((OSError, ValueError), match=words) as raised:
        open_files(path).read("x.png")
    assert "x.zip" in str(raised.value)
    assert "\n" not in str(raised.value)
