import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import cacseg

ROOT = Path(__file__).parent.parent
HEAVY = (
    "timm",
    "lightning",
    "torchvision",
    "triton",
    "matplotlib",
    "transformers",
    "cv2",
    "PIL",
    "typer",
    "torchmetrics",
)


def test_importing_cacseg_imports_torch_and_nothing_heavier():
    """In a fresh process: torch is there, nothing that torch itself did not bring."""
    code = "import sys, torch; before = set(sys.modules); import cacseg; print('\\n'.join(set(sys.modules) - before))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in process.stdout.split()}
    assert "cacseg" in loaded
    assert not loaded.intersection(HEAVY)
    third_party = {name for name in loaded if name not in sys.stdlib_module_names and not name.startswith("_")}
    assert third_party <= {"cacseg", "jaxtyping", "wadler_lindig", "typing_extensions", "torch", "numpy"}


FIRST_USE = """
import os, sys
import cacseg
import torch  # once, not in each child

for name in sys.argv[1:]:
    if os.fork() == 0:
        assert getattr(cacseg, name) is not None
        assert name in dir(cacseg) or name == "models"
        os._exit(0)
    assert os.wait()[1] == 0, name
"""


def test_a_name_is_found_on_first_use():
    """Each in a process that has imported cacseg and nothing else, not the part that the name lives in."""
    names = ["create_model", "load", "models", "convert", "restore"]
    process = subprocess.run([sys.executable, "-c", FIRST_USE, *names], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-2000:]


def test_what_is_missing_is_installed_from_a_clone_or_a_wheel(monkeypatch):
    """cacseg is not on PyPI: no command names it as if it were."""
    monkeypatch.setitem(sys.modules, "timm", None)
    for name in [one for one in sys.modules if one.startswith("cacseg.models")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(
        ModuleNotFoundError, match=r"create_model needs timm.*'\.\[models\]'.*\.whl\[models\]'"
    ) as raised:
        cacseg.create_model  # noqa: B018
    assert cacseg.__version__ in str(raised.value)
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.md")]
    assert not [path for path in sources if re.search(r"pip install '?cacseg\[", path.read_text())]


def test_the_public_names_exist_and_are_few():
    assert len(cacseg.__all__) <= 15
    for name in cacseg.__all__:
        assert getattr(cacseg, name) is not None


def test_the_version_is_the_same_everywhere():
    assert importlib.metadata.version("cacseg") == cacseg.__version__
    assert re.search(rf"## \[{re.escape(cacseg.__version__)}\]", (ROOT / "CHANGELOG.md").read_text())
    assert str(yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]) == cacseg.__version__


def test_the_layers_check_can_fail(tmp_path):
    """An import that runs up the layers is found: functional importing the classifier."""
    package = tmp_path / "src" / "cacseg"
    for source in (ROOT / "src" / "cacseg").rglob("*.py"):
        target = package / source.relative_to(ROOT / "src" / "cacseg")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(source.read_text())
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())

    def check():
        code = (
            "import sys; sys.path.insert(0, 'src'); from importlinter.cli import lint_imports; sys.exit(lint_imports())"
        )
        return subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)

    pytest.importorskip("importlinter")
    good = check()
    assert good.returncode == 0, good.stdout + good.stderr
    with (package / "functional" / "labels.py").open("a") as file:
        file.write("\nfrom cacseg.classifier import DESIGNS\n")
    bad = check()
    assert bad.returncode == 1
    assert re.search(r"cacseg\.functional\b.*\bcacseg\.classifier\b", bad.stdout)
