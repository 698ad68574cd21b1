import os
import pickle
import sys
import types
from contextlib import suppress

import pytest
import torch
from safetensors.torch import save_file

from cacseg.models.files import read_tensors, write_tensors

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([1, 2])}


class Hostile:
    """Unpickling this runs a command, where something lets it."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_a_header_that_looks_like_a_pickle_is_still_safetensors(tmp_path):
    """A header of 128 bytes begins with the byte that pickles begin with."""
    for padding in range(120):
        save_file({"a": torch.zeros(1)}, tmp_path / "a.safetensors", metadata={"x": "y" * padding})
        if (tmp_path / "a.safetensors").read_bytes()[0] == 0x80:
            break
    else:
        pytest.fail("no such header was found")
    assert read_tensors(tmp_path / "a.safetensors").metadata == {"x": "y" * padding}


def test_each_kind_of_file_is_read(tmp_path):
    save_file(TENSORS, tmp_path / "a.safetensors", metadata={"mean": "[0.5]"})
    torch.save(TENSORS, tmp_path / "b.pth")
    torch.save({"state_dict": TENSORS, "epoch": 3}, tmp_path / "c.pt")
    torch.save({"model": TENSORS}, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    for path in tmp_path.iterdir():
        file = read_tensors(path)
        assert file.tensors.keys() == TENSORS.keys()
        assert all(torch.equal(file.tensors[key], TENSORS[key]) for key in TENSORS)
    assert read_tensors(tmp_path / "a.safetensors").metadata == {"mean": "[0.5]"}


def test_what_a_training_framework_leaves_behind_is_passed_over(tmp_path, monkeypatch):
    """A checkpoint of mmengine holds objects of its own classes; they are neither imported nor needed."""
    module = types.ModuleType("mmengine.history")

    class HistoryBuffer:
        def __init__(self):
            self.values = [1.0, 2.0]

    HistoryBuffer.__module__, HistoryBuffer.__qualname__ = "mmengine.history", "HistoryBuffer"
    module.HistoryBuffer = HistoryBuffer
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "mmengine", types.ModuleType("mmengine"))
        patch.setitem(sys.modules, "mmengine.history", module)
        meta = {"dataset_meta": {"classes": ("sky", "road"), "palette": [[0, 0, 255], [9, 9, 9]]}}
        torch.save({"state_dict": TENSORS, "message_hub": HistoryBuffer(), "meta": meta}, tmp_path / "a.pth")
    assert "mmengine.history" not in sys.modules
    file = read_tensors(tmp_path / "a.pth")
    assert torch.equal(file.tensors["a"], TENSORS["a"])
    assert file.metadata == {"class_names": '["sky", "road"]', "palette": "[[0, 0, 255], [9, 9, 9]]"}


@pytest.mark.parametrize("zipped", [True, False])
def test_a_hostile_file_is_refused_and_runs_nothing(tmp_path, zipped):
    trap = tmp_path / "ran"
    content = {"state_dict": {**TENSORS, "x": Hostile(f"touch {trap}")}}
    torch.save(content, tmp_path / "bad.pth", _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match=r"system.*could run code, so it was refused and nothing was run"):
        read_tensors(tmp_path / "bad.pth")
    (tmp_path / "bare.pth").write_bytes(pickle.dumps(Hostile(f"touch {trap}")))
    with pytest.raises(ValueError, match=r"bare.pth (cannot be read|asks for)"):
        read_tensors(tmp_path / "bare.pth")
    assert not trap.exists()


def test_a_name_that_only_looks_harmless_is_inert(tmp_path, monkeypatch):
    """Names of a framework are placeholders, never its functions; a module within numpy is not even that."""
    called = []
    module = types.ModuleType("mmcv.trap")

    def fire(*arguments):
        called.append(arguments)
        return 0

    fire.__module__, fire.__qualname__ = "mmcv.trap", "fire"
    module.fire = fire

    class Trap:
        def __reduce__(self):
            return fire, ("boom",)

    monkeypatch.setitem(sys.modules, "mmcv", types.ModuleType("mmcv"))
    monkeypatch.setitem(sys.modules, "mmcv.trap", module)
    torch.save({"state_dict": TENSORS, "meta": Trap()}, tmp_path / "a.pth")
    assert read_tensors(tmp_path / "a.pth").tensors.keys() == TENSORS.keys()
    assert called == []
    fire.__module__ = "numpy.trap"
    monkeypatch.setitem(sys.modules, "numpy.trap", module)
    torch.save({"state_dict": TENSORS, "meta": Trap()}, tmp_path / "b.pth")
    with pytest.raises(ValueError, match=r"asks for numpy.trap.fire.*could run code"):
        read_tensors(tmp_path / "b.pth")
    assert called == []


@pytest.mark.parametrize("zipped", [True, False])
def test_scores_of_numpy_beside_the_weights_are_passed_over(tmp_path, zipped):
    import numpy

    content = {"state_dict": {**TENSORS, "note": "text"}, "meta": {"mIoU": numpy.float64(0.4), "a": numpy.zeros(3)}}
    torch.save(content, tmp_path / "a.pth", _use_new_zipfile_serialization=zipped)
    file = read_tensors(tmp_path / "a.pth")
    assert file.tensors.keys() == TENSORS.keys()
    assert file.skipped == ("note",)


def test_forged_pickles_are_refused_in_our_words(tmp_path):
    import random
    import zipfile

    torch.save(TENSORS, tmp_path / "good.pth")
    with zipfile.ZipFile(tmp_path / "good.pth") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    pickled = next(name for name in parts if name.endswith("data.pkl"))
    generator = random.Random(0)
    for _ in range(200):
        forged = bytearray(parts[pickled])
        for _ in range(3):
            forged[generator.randrange(len(forged))] = generator.randrange(256)
        with zipfile.ZipFile(tmp_path / "bad.pth", "w") as archive:
            for name, content in parts.items():
                archive.writestr(name, bytes(forged) if name == pickled else content)
        with suppress(ValueError):  # any other error is not ours
            read_tensors(tmp_path / "bad.pth")


def test_a_torchscript_program_is_named(tmp_path):
    import zipfile

    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("a/constants.pkl", b"")
    with pytest.raises(ValueError, match="is a TorchScript program"):
        read_tensors(tmp_path / "a.pt")


def test_a_tensor_without_values_is_no_weight(tmp_path):
    torch.save({"a": torch.empty(2, device="meta"), "b": TENSORS["b"]}, tmp_path / "a.pth")
    assert read_tensors(tmp_path / "a.pth").skipped == ("a",)


@pytest.mark.parametrize("kind", ["safetensors", "pth", "old"])
def test_a_file_cut_short_is_refused(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    if kind == "safetensors":
        save_file({"a": torch.randn(100)}, path)
    else:
        torch.save({"a": torch.randn(100)}, path, _use_new_zipfile_serialization=kind == "pth")
    whole = path.read_bytes()
    for length in (len(whole) - 7, len(whole) // 2, 60):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"(is damaged|cannot be read) .*cut short\?|neither a safetensors"):
            read_tensors(path)


def test_an_archive_whose_listing_is_damaged(tmp_path):
    torch.save({"a": torch.ones(3)}, tmp_path / "a.pth")
    whole = (tmp_path / "a.pth").read_bytes()
    (tmp_path / "a.pth").write_bytes(whole.replace(b"PK\x01\x02", b"PK\x01\x03"))
    with pytest.raises(ValueError, match=r"a\.pth cannot be read"):
        read_tensors(tmp_path / "a.pth")


def test_other_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"a.pth does not exist"):
        read_tensors(tmp_path / "a.pth")
    with pytest.raises(FileNotFoundError, match="is no regular file"):
        read_tensors(tmp_path)
    (tmp_path / "empty.pth").write_bytes(b"")
    with pytest.raises(ValueError, match="no file of weights: it has 0 bytes"):
        read_tensors(tmp_path / "empty.pth")
    (tmp_path / "page.pth").write_text("<!DOCTYPE html><html>404</html>")
    with pytest.raises(
        ValueError, match=r"neither a safetensors file nor a PyTorch checkpoint \(it starts with b'<!DOC"
    ):
        read_tensors(tmp_path / "page.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ValueError, match="must hold a dictionary of tensors; got list"):
        read_tensors(tmp_path / "list.pth")
    torch.save({"epoch": 3, "state_dict": {}}, tmp_path / "none.pth")
    with pytest.raises(ValueError, match="holds no tensors"):
        read_tensors(tmp_path / "none.pth")


def test_writing_is_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    write_tensors(path, TENSORS, {"x": "1"})
    before = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()
    with pytest.raises(FileExistsError, match=r"exists already.*may be overwritten"):
        write_tensors(path, TENSORS, {})

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=r"could not be written, \d+ bytes \(No space left.*is whole \(\d+ bytes\)"):
        write_tensors(path, TENSORS, {}, overwrite=True)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    monkeypatch.undo()
    write_tensors(tmp_path / "new" / "a.safetensors", TENSORS, {"x": "1"})
    assert read_tensors(tmp_path / "new" / "a.safetensors").metadata == {"x": "1"}


def test_a_full_disk_leaves_the_old_file(tmp_path):
    """A real write that the system refuses: a limit on the size of files, in a process of its own."""
    import subprocess

    path = tmp_path / "a.safetensors"
    write_tensors(path, TENSORS, {})
    before = path.read_bytes()
    code = (
        "import resource, signal, sys, torch; from cacseg.models.files import write_tensors\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try: write_tensors(sys.argv[1], {'a': torch.zeros(1_000_000)}, {}, overwrite=True)\n"
        "except OSError as error: print('refused:', error)"
    )
    process = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert "refused:" in process.stdout, process.stdout + process.stderr
    assert "could not be written" in process.stdout
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask
