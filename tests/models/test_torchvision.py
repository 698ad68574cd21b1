import importlib
import importlib.util
import subprocess
import sys

import pytest

from cacseg._torchvision import ensure_torchvision_imports

CODE = """
from cacseg._torchvision import ensure_torchvision_imports
ensure_torchvision_imports()
ensure_torchvision_imports()
import torchvision, timm
print("imported", timm.__version__)
"""


def test_torchvision_and_timm_import_in_a_fresh_process():
    done = subprocess.run([sys.executable, "-W", "error", "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("imported")


def test_nothing_happens_where_torchvision_is_not_installed(monkeypatch):
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(importlib, "import_module", lambda name: pytest.fail("it must not be imported"))
    ensure_torchvision_imports()


def test_nothing_happens_where_torchvision_is_imported_already(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", importlib)
    monkeypatch.setattr(importlib, "import_module", lambda name: pytest.fail("it must not be imported"))
    ensure_torchvision_imports()


def test_other_errors_of_torchvision_are_not_hidden(monkeypatch):
    def fail(name):
        raise RuntimeError("something else")

    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(RuntimeError, match="something else"):
        ensure_torchvision_imports()
