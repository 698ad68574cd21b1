import os
import signal
import subprocess
import sys

import pytest

from cacseg._files import (
    LOCK,
    acquire_lock,
    check_target,
    make_folder,
    open_appending,
    open_folder,
    scratch_folder,
    to_csv,
    write_file,
)

TAKE = """
import os, pathlib, signal, sys
from cacseg._files import scratch_folder
with scratch_folder(pathlib.Path(sys.argv[1]), "writing") as folder:
    (folder / "half").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_file_is_whole_or_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "a/b.txt"
    write_file(path, "one")

    def full(*_):
        raise OSError(28, "No space left on device")

    for call, flush in (("replace", False), ("fsync", True)):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, full)
            with pytest.raises(
                OSError, match=r"b.txt could not be written, 5 bytes \(No space left.*is whole \(3 bytes"
            ):
                write_file(path, b"three", flush=flush)
            with pytest.raises(OSError, match=r"c.txt could not be written, 1 bytes .*there was none yet"):
                write_file(tmp_path / "a/c.txt", "1", flush=flush)
    assert [one.name for one in (tmp_path / "a").iterdir()] == ["b.txt"]
    assert path.read_text() == "one"
    write_file(path, memoryview(b"two"), flush=True)
    assert path.read_text() == "two"


def test_text_keeps_the_bytes_of_file_names(tmp_path):
    write_file(tmp_path / "a", "\u00fc" + os.fsdecode(b"\xff"))
    assert (tmp_path / "a").read_bytes() == b"\xc3\xbc\xff"


def test_targets(tmp_path):
    path = tmp_path / "new/a.txt"
    write_file(path, "1", overwrite=False)
    with pytest.raises(FileExistsError, match=r"a.txt exists already"):
        write_file(path, "2", overwrite=False)
    with pytest.raises(IsADirectoryError, match=r"new is a folder"):
        check_target(tmp_path / "new", overwrite=True)
    with pytest.raises(NotADirectoryError, match=r"a.txt is a file"):
        write_file(path / "b.txt", "1")
    with pytest.raises(OSError, match="cannot be made"):
        make_folder(path / "b" / "c")


def test_a_folder_that_holds_files_is_kept(tmp_path):
    open_folder(tmp_path / "new/deep", overwrite=False)
    (tmp_path / "new/a").touch()
    with pytest.raises(FileExistsError, match="new holds files already"):
        open_folder(tmp_path / "new", overwrite=False)
    open_folder(tmp_path / "new", overwrite=True)
    assert (tmp_path / "new/a").exists()


def test_a_locked_folder_is_one_process_alone(tmp_path):
    (tmp_path / "inner").mkdir()
    for name in (".12.345.tmp", "inner/.12.345.tmp", ".mine.tmp", "a"):
        (tmp_path / name).touch()
    code = "import sys, pathlib; from cacseg._files import acquire_lock as a; a(pathlib.Path(sys.argv[1]), 'testing')"
    with acquire_lock(tmp_path, "testing"):
        other = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert f"another process is testing in {tmp_path}" in other.stderr
    assert sorted(one.name for one in tmp_path.rglob("*")) == sorted([LOCK, ".mine.tmp", "a", "inner"])
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)]).returncode == 0


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "precious").write_text("all of it")
    for target in ("precious", "nowhere"):
        (tmp_path / "run" / LOCK).symlink_to(tmp_path / target)
        with pytest.raises(OSError, match=rf"run/{LOCK} must be a file to be written to; it is a link\. Remove it"):
            acquire_lock(tmp_path / "run", "testing")
        (tmp_path / "run" / LOCK).unlink()
    assert (tmp_path / "precious").read_text() == "all of it"
    assert not (tmp_path / "nowhere").exists()


def test_a_lock_empties_no_file(tmp_path):
    (tmp_path / LOCK).write_text("kept")
    acquire_lock(tmp_path, "testing").close()
    assert (tmp_path / LOCK).read_text() == "kept"


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_not_waited_for(tmp_path, kind):
    os.mkfifo(tmp_path / "x") if kind == "pipe" else (tmp_path / "x").mkdir()
    with pytest.raises(OSError, match=rf"x must be a file to be written to; it is a .*{kind}"):
        open_appending(tmp_path / "x")


def test_files_are_added_to(tmp_path):
    for word in (b"one ", b"two"):
        with open_appending(tmp_path / "a") as file:
            file.write(word)
    assert (tmp_path / "a").read_bytes() == b"one two"
    assert (tmp_path / "a").stat().st_mode & 0o111 == 0


def test_of_a_link_the_target_stays(tmp_path):
    (tmp_path / "target").write_text("1")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    for name in ("link", "broken"):
        with pytest.raises(FileExistsError, match=f"{name} exists already"):
            write_file(tmp_path / name, "2", overwrite=False)
        write_file(tmp_path / name, "2")
        assert not (tmp_path / name).is_symlink()
    assert (tmp_path / "target").read_text() == "1"
    assert not (tmp_path / "nowhere").exists()


def test_a_scratch_folder_is_gone_at_the_end_and_taken_over_after_a_kill(tmp_path):
    target = tmp_path / ("x" * 250 + ".onnx")
    with scratch_folder(target, "writing") as folder:
        (folder / "half").write_bytes(b"half")
        assert folder.parent == tmp_path
        other = subprocess.run([sys.executable, "-c", TAKE, str(target)], capture_output=True, text=True)
        assert f"another process is writing in {folder}" in other.stderr
    assert list(tmp_path.iterdir()) == []
    killed = subprocess.run([sys.executable, "-c", TAKE, str(target)], check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert [path.name for path in left.iterdir() if path.name != ".lock"] == ["half"]
    with scratch_folder(target, "writing") as folder:
        assert (folder, [path.name for path in folder.iterdir()]) == (left, [".lock"])
    assert list(tmp_path.iterdir()) == []


def test_csv_quotes_where_needed():
    assert to_csv([("name", "value"), ("a, b", 1), ('say "x"', 2)]) == 'name,value\n"a, b",1\n"say ""x""",2\n'
