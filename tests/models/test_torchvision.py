"""torchvision whose operators do not load, real or made up, each time in a process of its own."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
BROKEN = """
import torch
from torchvision import early

torch.ops.torchvision.nms if hasattr(torch.ops.torchvision, "nms") else early.fail()
tries = early.count()
"""
EARLY = """
import builtins

def fail():
    builtins.tries = getattr(builtins, "tries", 0) + 1
    raise RuntimeError("operator torchvision::nms does not exist")

def count():
    return getattr(builtins, "tries", 0)
"""


def run(code, *folders, python=sys.executable, options=()):
    """What a fresh process prints; `folders` are searched for modules first."""
    path = os.pathsep.join([*map(str, folders), str(SOURCE)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [str(python), *options, *(["-c", code] if isinstance(code, str) else code)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Error processing" not in done.stderr  # of a .pth file
    return done.stdout.strip()


def write_package(folder, **modules):
    (folder / "torchvision").mkdir(parents=True)
    for name, code in modules.items():
        (folder / "torchvision" / f"{name}.py").write_text(code)
    return folder


@pytest.fixture
def broken(tmp_path):
    return write_package(tmp_path / "broken", __init__=BROKEN, early=EARLY)


@pytest.fixture
def whole(tmp_path):
    return write_package(tmp_path / "whole", __init__="value = 1")


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A virtual environment that sees the packages of this one, to write into."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    shown = [entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))]
    (packages / "shown.pth").write_text("\n".join(shown) + "\n")
    return folder


LIBRARIES = "import segmentation_models_pytorch, timm, torchvision; print(torchvision.transforms.__name__)"


def test_libraries_that_import_torchvision_come_after_cacseg():
    assert run(f"import cacseg; {LIBRARIES}", options=["-W", "error::RuntimeWarning"]) == "torchvision.transforms"


@pytest.mark.slow  # four processes that import timm and segmentation_models_pytorch
def test_libraries_that_import_torchvision_come_first(environment):
    """After what `make` runs, in its environment or another."""
    python = environment / "bin" / "python"
    said = run(["-m", "cacseg._torchvision"], python=python)
    assert len(said.splitlines()) == 1
    assert ("nothing to do" in said) == (not list(environment.rglob("cacseg_torchvision.pth")))
    assert run(f"{LIBRARIES}; import cacseg.models", python=python) == "torchvision.transforms"
    assert run(["-m", "cacseg._torchvision"], python=python) == said  # whatever an earlier call has left


def test_missing_operators_are_declared_and_the_package_starts_afresh(broken):
    code = """
import cacseg, sys, importlib
import torchvision, torch
assert torchvision.tries == 1 and torch.ops.torchvision.nms
assert sys.modules["torchvision.early"] is torchvision.early
kinds = {type(one).__name__ for one in (torchvision.__loader__, torchvision.__spec__.loader)}
importlib.reload(torchvision)
print(*kinds, torchvision.tries)
"""
    assert run(code, broken) == "SourceFileLoader 1"


def test_where_torchvision_is_whole_nothing_is_declared(whole):
    code = """
import cacseg, cacseg._torchvision as hook, importlib.util, torch
assert importlib.util.find_spec("torchvision").loader.get_filename("torchvision").endswith("__init__.py")
import torchvision
print(hook._declared, hasattr(torch.ops.torchvision, "nms"), type(torchvision.__loader__).__name__)
"""
    assert run(code, whole) == "[] False SourceFileLoader"
    assert run(["-m", "cacseg._torchvision", str(whole)], whole) == "torchvision imports: nothing to do"
    assert not list(whole.glob("*.pth"))


def test_other_errors_of_torchvision_are_not_hidden(tmp_path):
    folder = write_package(tmp_path, __init__="raise RuntimeError('something else')")
    code = """
import cacseg, sys
for _ in range(2):
    try:
        import torchvision
    except RuntimeError as error:
        print(error, "torchvision" in sys.modules)
"""
    assert run(code, folder).splitlines() == ["something else False"] * 2
    said = run(["-m", "cacseg._torchvision", str(tmp_path)], folder)
    assert "(RuntimeError: something else)" in said
    assert not list(tmp_path.glob("*.pth"))


def test_the_hook_is_there_once_and_finds_nothing_where_nothing_is():
    code = """
import importlib.util, sys
sys.path[:] = [entry for entry in sys.path if not entry.endswith("-packages")]
file = importlib.util.spec_from_file_location("hook", sys.argv[1])
hook = importlib.util.module_from_spec(file)
file.loader.exec_module(hook)
hook.install_hook()
hook.install_hook()
print([type(one).__name__ for one in sys.meta_path].count("TorchvisionFinder"), importlib.util.find_spec("torchvision"))
"""
    assert run(["-I", "-c", code, str(SOURCE / "cacseg" / "_torchvision" / "__init__.py")]) == "1 None"


def test_the_startup_file_imports_nothing_heavy_and_outlives_cacseg(broken, tmp_path):
    folder = tmp_path / "packages"
    folder.mkdir()
    said = run(["-m", "cacseg._torchvision", str(folder)], broken)
    assert said.endswith("lets it import without them")
    start = f"""
import site, sys
sys.meta_path[:] = [one for one in sys.meta_path if type(one).__name__ != "TorchvisionFinder"]  # of this environment
before = set(sys.modules)
site.addsitedir({str(folder)!r})
print(*(set(sys.modules) - before) & {{"typing", "inspect", "torch", "cacseg"}})
print([type(one).__name__ for one in sys.meta_path].count("TorchvisionFinder"))
"""
    use = """
import torchvision, cacseg
print(torchvision.tries, [type(one).__name__ for one in sys.meta_path].count("TorchvisionFinder"))
"""
    assert run(start + use, broken).split() == ["1", "1", "1"]
    file = folder / "cacseg_torchvision.pth"
    file.write_text(file.read_text().replace(str(SOURCE), str(tmp_path / "gone")))
    assert run(start) == "0"
