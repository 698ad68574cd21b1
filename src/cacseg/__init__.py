"""Segmentation classifiers that adapt to each image.

classifier = cacseg.ContextAwareClassifier(512, 150)     # where nn.Conv2d(512, 150, 1) stood
logits = classifier(features)                            # inference: the context logits
outputs = classifier(features, labels)                   # training
losses = cacseg.ContextLoss()(outputs, labels)           # named terms and their "total"

model = cacseg.convert(any_segmentation_model)           # of smp, torchvision, transformers, ...
losses = model.loss(images, labels)

model = cacseg.create_model("upernet_swin_tiny", num_classes=150)    # needs cacseg[models]
losses = model.loss(images, labels)
model.save("model.safetensors")
model = cacseg.load("model.safetensors")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cacseg import functional, ops, variants
from cacseg._torchvision import install_hook
from cacseg._version import __version__ as __version__
from cacseg.classifier import ContextAwareClassifier
from cacseg.losses import ContextLoss
from cacseg.ops import overlap_loss, upsampled_cross_entropy
from cacseg.outputs import ContextLogits

if TYPE_CHECKING:
    from cacseg.adapters import convert, restore
    from cacseg.models import create_model, load

__all__ = [
    "ContextAwareClassifier",
    "ContextLogits",
    "ContextLoss",
    "convert",
    "create_model",
    "functional",
    "load",
    "ops",
    "overlap_loss",
    "restore",
    "upsampled_cross_entropy",
    "variants",
]

install_hook()  # before timm or another library imports torchvision

# Found on first use: models import timm, and few programs need both.
_PACKAGES: dict[str, tuple[str, ...]] = {"engine.export": ("export",), "adapters": ("adapters", "convert", "restore")}
_PACKAGES["models"] = ("create_model", "load", "models")


def __getattr__(name: str) -> Any:
    package = next((one for one, names in _PACKAGES.items() if name in names), None)
    if package is None:
        raise AttributeError(f"module 'cacseg' has no attribute {name!r}")
    try:
        found = import_module(f"cacseg.{package}")
    except ModuleNotFoundError as error:
        if error.name not in ("timm", "safetensors", "torchvision"):
            raise
        message = f"cacseg.{name} needs {error.name}, which is not installed: pip install 'cacseg[models]'"
        raise ModuleNotFoundError(message, name=error.name) from error
    return found if name == package else getattr(found, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
