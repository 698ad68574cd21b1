"""One line for a model of another library: a context-aware classifier where features become class scores."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from cacseg._checks import check_class_weights
from cacseg.adapters.converted import Conversion, ConvertedModel, converted_class
from cacseg.adapters.rows import Row
from cacseg.adapters.seam import AuxiliaryClassifier, MovedDropout, Placed, SeamClassifier, geometry_of, put_back
from cacseg.adapters.search import check_path, check_replaceable, check_unwrapped, find_by_running, get_by_name
from cacseg.adapters.supported import row_of
from cacseg.losses import ContextLoss

logger = logging.getLogger("cacseg")

ADDED = ("conversion", "drop_oracle", "loss", "plain", "seam")  # what a converted model has beside its own
UNKNOWN = Row("", "")
MANY_PARAMETERS = 10_000_000  # of the projectors alone, beyond which a user is told


def convert(
    model: nn.Module,
    seam: str | None = None,
    *,
    example: Tensor | None = None,
    loss_arguments: Mapping[str, Any] | None = None,
    auxiliary_weight: float | None = None,
    **classifier_arguments: Any,
) -> Any:
    """Puts a context-aware classifier where the model's features become class scores, in place; returns the model.

    The rest of the model is as it was, and so is the trained weight of the old classifier. The converted model has
    `model(images)` (the same type and size of output, from the context logits), `model.loss(images, labels)`,
    `model.plain(images)`, `model.seam`, and `cacseg.restore(model)` makes it the original again.

    Args:
        model: of segmentation_models_pytorch, torchvision, transformers or mmsegmentation (docs/convert.md lists the
            architectures), or any nn.Module.
        seam: the name of the convolution to replace, such as "decode_head.conv_seg". None: the known one of the
            architecture; for an unknown one, the last 1x1 convolution on the way to the output, found by running the
            model once and reported.
        example: images for that run; None for random ones, [1, 3, 64, 64].
        loss_arguments: of `ContextLoss`.
        auxiliary_weight: of the auxiliary classifier's cross-entropy, where the model has one; None for 0.4, or what
            the config of a model of transformers says.
        classifier_arguments: of `ContextAwareClassifier`. `preset` and `ignore_index` reach the loss too, unless
            `loss_arguments` has its own.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"convert needs an nn.Module; got {type(model).__name__}.")
    if isinstance(model, ConvertedModel):
        raise ValueError(
            f"the model is converted already, at {model.seam!r}. cacseg.restore(model) makes it the original again."
        )
    check_unwrapped(model)
    row = row_of(model) or UNKNOWN
    if row.refusal:
        raise ValueError(f"{row.architecture} cannot be converted: {row.refusal}.")
    check_names(model, row)
    if row.ignore_index:
        classifier_arguments.setdefault("ignore_index", getattr(model.config, row.ignore_index))
    if auxiliary_weight is None:
        auxiliary_weight = getattr(model.config, row.auxiliary_weight) if row.auxiliary_weight else 0.4
    shared: dict[str, Any] = {
        key: classifier_arguments[key] for key in ("preset", "ignore_index") if key in classifier_arguments
    }
    shared.update(loss_arguments or {})
    criterion = ContextLoss(**shared)

    name = seam or row.seam or find_by_running(model, example)
    if not seam and not row.seam:
        logger.warning("cacseg.convert: %s makes its class scores at %r", type(model).__name__, name)
    replaced = get_by_name(model, name)
    check_path(model, name)
    check_replaceable(name, replaced)
    dropout_name, dropout = dropout_before(model, name, row, replaced)
    kept = None if "dropout" in classifier_arguments else dropout
    usual = name == row.seam
    auxiliary_name = row.auxiliary if usual and row.auxiliary in dict(model.named_modules()) else ""

    fixed = sorted({"in_channels", "num_classes", "bias"} & set(classifier_arguments))
    if fixed:
        raise ValueError(f"the convolution at {name!r} fixes {' and '.join(fixed)}. Leave them out.")
    classifier = SeamClassifier(replaced, kept, criterion, classifier_arguments)
    check_criterion(classifier, criterion)
    added = sum(value.numel() for key, value in classifier.named_parameters() if "projector" in key)
    if not classifier.pointwise and added > MANY_PARAMETERS:
        logger.warning(
            "cacseg.convert: %r is a convolution over patches of %d channels, whose projectors have %.0f M parameters; "
            "fewer channels before it would cost less",
            name,
            classifier.in_channels,
            added / 1e6,
        )
    conversion = Conversion(name, dropout_name, auxiliary_name, auxiliary_weight, row.package == "transformers")
    placed: dict[str, Placed] = {name: classifier}
    if dropout_name:
        placed[dropout_name] = MovedDropout(model.get_submodule(dropout_name))
    if auxiliary_name:
        auxiliary = model.get_submodule(auxiliary_name)
        check_replaceable(auxiliary_name, auxiliary)
        assert isinstance(auxiliary, nn.Conv2d)
        placed[auxiliary_name] = AuxiliaryClassifier(auxiliary)
    converted: Any = model
    converted.__class__ = converted_class(type(model))  # what may fail comes first: the model is then as it was
    for key, module in placed.items():
        replace_module(model, model.get_submodule(key), module)
    converted.conversion = conversion
    return converted


def restore(model: nn.Module) -> Any:
    """Makes a converted model the original again, in place, with the weights as they are now; returns the model."""
    if not isinstance(model, ConvertedModel):
        raise TypeError(f"restore needs a model that cacseg.convert returned; got {type(model).__name__}.")
    seam, dropout, auxiliary, *_ = model.conversion
    for name in filter(None, (seam, dropout, auxiliary)):
        placed = model.get_submodule(name)
        assert isinstance(placed, SeamClassifier | MovedDropout | AuxiliaryClassifier)
        replace_module(model, placed, put_back(placed))
    restored: Any = model
    del restored.conversion
    restored.__class__ = model._cacseg_original
    return restored


def check_names(model: nn.Module, row: Row) -> None:
    """The methods that a conversion adds must not hide anything of the model; mmsegmentation's `loss` is known."""
    known = {"loss"} if row.package == "mmseg" else set()
    hidden = [name for name in ADDED if name in set(dir(model)) - known]
    if hidden:
        raise ValueError(
            f"a converted model has {', '.join(ADDED)}, and {type(model).__name__} has {', '.join(hidden)} of its own. "
            "Rename them, or convert the part of the model between images and scores."
        )
    if row.package == "segmentation_models_pytorch" and isinstance(model.classification_head, nn.Module):
        raise ValueError(
            "a converted model is trained with labels for pixels; this one has a classification head, which needs "
            "labels for images. Build it without aux_params."
        )


def check_criterion(classifier: SeamClassifier, criterion: ContextLoss) -> None:
    """Classifier and losses fit together: known here, before the first training step."""
    if criterion.ignore_index != classifier.ignore_index:
        raise ValueError(
            f"classifier and loss must ignore the same label; got {classifier.ignore_index} and "
            f"{criterion.ignore_index}. Pass ignore_index to convert, not in loss_arguments."
        )
    if criterion.class_weights is not None:
        check_class_weights(criterion.class_weights, classifier.num_classes)


def dropout_before(model: nn.Module, name: str, row: Row, conv: nn.Module) -> tuple[str, nn.Module | None]:
    """The name of the dropout whose output the seam reads, and one for the plain logits; "" and None without."""
    parent_name, _, last = name.rpartition(".")
    before = ""
    if name == row.seam and row.dropout:
        before = row.dropout
    elif isinstance(parent := model.get_submodule(parent_name), nn.Sequential):
        names = list(parent._modules)
        if names.index(last) > 0:
            before = f"{parent_name}.{names[names.index(last) - 1]}".lstrip(".")
    module = dict(model.named_modules()).get(before) if before else None
    if not isinstance(module, nn.Dropout | nn.Dropout2d) or module.p == 0.0:
        return "", None
    if isinstance(module, nn.Dropout) and not set(geometry_of(conv).kernel_size) <= {1}:
        return "", None  # single values, dropped from every patch they are in: that is only possible before the patches
    moved = nn.Dropout2d(module.p) if isinstance(module, nn.Dropout2d) else nn.Dropout(module.p)
    return before, moved.train(module.training)


def replace_module(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Puts one module in the place of another under every name that it has in the model."""
    for parent in list(model.modules()):
        for key, child in parent._modules.items():
            if child is old:
                parent._modules[key] = new
