"""torchvision where its compiled operators do not load: still importable, for the pure Python that timm needs."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import torch

# The operators that torchvision describes to torch at import without asking whether they exist.
SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

_declared: list[torch.library.Library] = []  # an operator lives as long as the library object that declared it


def ensure_torchvision_imports() -> None:
    """Imports torchvision, with its operators declared (not implemented) where they cannot be loaded.

    torchvision's wheels of PyPI are linked against CUDA; beside a CPU build of torch their operators do not load,
    and `import torchvision` ends in "operator torchvision::nms does not exist". torchvision tries first, so real
    operators are always preferred; only after that very error are the missing ones declared, and calling them then
    fails with torchvision's own message. Nothing happens where torchvision is imported already or not installed.
    """
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            raise
        _forget_torchvision()  # a half-imported package cannot be imported again
        library = torch.library.Library("torchvision", "FRAGMENT")
        for schema in SCHEMAS:
            library.define(schema)
        _declared.append(library)
        importlib.import_module("torchvision")


def _forget_torchvision() -> None:
    for name in [name for name in sys.modules if name == "torchvision" or name.startswith("torchvision.")]:
        del sys.modules[name]
