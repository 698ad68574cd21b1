"""Segmentation classifiers that adapt to each image.

classifier = cacseg.ContextAwareClassifier(512, 150)     # where nn.Conv2d(512, 150, 1) stood
logits = classifier(features)                            # inference: the context logits
outputs = classifier(features, labels)                   # training
losses = cacseg.ContextLoss()(outputs, labels)           # named terms and their "total"

model = cacseg.convert(any_segmentation_model)           # of smp, torchvision, transformers, ...
losses = model.loss(images, labels)

model = cacseg.create_model("upernet_swin_tiny", num_classes=150)    # needs the extra models
losses = model.loss(images, labels)
cacseg.train(model, dataset, val_share=0.2, folder="runs/mine")      # pairs of images and masks
model.save("model.safetensors")
model = cacseg.load("model.safetensors")
result = model.predict("photo.jpg")                      # result.mask, result.classes, result.overlay(), ...
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cacseg._install import with_extra
from cacseg._torchvision import install_hook
from cacseg._version import __version__ as __version__

if TYPE_CHECKING:
    from cacseg import functional, ops, variants
    from cacseg.adapters import convert, restore
    from cacseg.classifier import ContextAwareClassifier
    from cacseg.engine.export import export
    from cacseg.losses import ContextLoss
    from cacseg.models import create_model, load
    from cacseg.ops import overlap_loss, upsampled_cross_entropy
    from cacseg.outputs import ContextLogits
    from cacseg.predictor import Predictor
    from cacseg.training import train

# Found on first use: few programs need all of them, and what runs an exported model has no torch.
_MODULES = {
    "ContextAwareClassifier": "classifier",
    "ContextLogits": "outputs",
    "ContextLoss": "losses",
    "Predictor": "predictor",
    "convert": "adapters",
    "create_model": "models",
    "export": "engine.export",
    "load": "models",
    "overlap_loss": "ops",
    "restore": "adapters",
    "train": "training",
    "upsampled_cross_entropy": "ops",
}
NEEDED_BY = {  # by module, the extra that brings it
    **dict.fromkeys(("huggingface_hub", "timm", "safetensors", "torchvision"), "models"),
    **dict.fromkeys(("numpy", "PIL", "pydantic", "lightning"), "train"),
}
_PACKAGES = ("adapters", "functional", "models", "ops", "variants")

__all__ = [
    "ContextAwareClassifier",
    "ContextLogits",
    "ContextLoss",
    "Predictor",
    "convert",
    "create_model",
    "export",
    "functional",
    "load",
    "ops",
    "overlap_loss",
    "restore",
    "train",
    "upsampled_cross_entropy",
    "variants",
]

install_hook()  # before timm or another library imports torchvision


def __getattr__(name: str) -> Any:
    if name not in _MODULES and name not in _PACKAGES:
        raise AttributeError(f"module 'cacseg' has no attribute {name!r}")
    try:
        found = import_module(f"cacseg.{_MODULES.get(name, name)}")
    except ModuleNotFoundError as error:
        if error.name not in NEEDED_BY:
            raise
        message = f"cacseg.{name} needs {error.name}, which is not installed: {with_extra(NEEDED_BY[error.name])}"
        raise ModuleNotFoundError(message, name=error.name) from error
    return found if name in _PACKAGES else getattr(found, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
