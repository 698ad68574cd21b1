"""Makes torchvision importable where its compiled operators do not load, for the pure Python that others need of it.

torchvision's wheels of PyPI are linked against CUDA. Beside a CPU build of torch their operators do not load, and
`import torchvision` ends in "operator torchvision::nms does not exist"; so do timm, segmentation_models_pytorch and
Lightning, which import it. `import cacseg` installs a hook that declares the missing operators after that very error
and tries again. Calling them then fails with torchvision's own message. Where torchvision is whole nothing is declared.

`python -m cacseg._torchvision` makes the order of imports indifferent: where it is needed, a .pth file in
site-packages runs this file as Python starts. So it imports neither torch nor the rest of cacseg, nor `typing`.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

ERROR = "operator torchvision::nms does not exist"
# The operators that torchvision describes to torch at import without asking whether they exist.
SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

_declared: list[Any] = []  # an operator lives as long as the library object that declared it


def install_hook() -> None:
    """From now on `import torchvision` declares the operators that it misses. A second call does nothing."""
    if not any(type(finder).__name__ == TorchvisionFinder.__name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, TorchvisionFinder())


class TorchvisionFinder:
    """Finds torchvision as the other finders do, with a loader that tries twice; nothing else."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torchvision":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            spec.loader = RetryingLoader(spec.loader)  # type: ignore[assignment]
        return spec


class RetryingLoader:
    """The real loader, with a second try after the missing operators have been declared."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader
        fresh = dict(vars(module))
        try:
            self.loader.exec_module(module)
        except RuntimeError as error:
            if ERROR not in str(error):
                raise
            # What was imported halfway must be imported again.
            for name in [name for name in sys.modules if name.startswith("torchvision.")]:
                del sys.modules[name]
            vars(module).clear()
            vars(module).update(fresh)
            declare_operators()
            self.loader.exec_module(module)


def declare_operators() -> None:
    """Declares, without implementing them, the operators that torchvision could not load."""
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in SCHEMAS:
        library.define(schema)
    _declared.append(library)
