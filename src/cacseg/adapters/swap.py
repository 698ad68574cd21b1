"""Converts models of other libraries: puts a context-aware classifier where features become class scores."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from cacseg._checks import check_class_weights, check_names, check_number
from cacseg.adapters.converted import Conversion, ConvertedModel, converted_class, is_converted
from cacseg.adapters.mmseg import ConvertedSegmentor
from cacseg.adapters.neighbours import aligns_corners, check_channels_after, find_dropout
from cacseg.adapters.patches import CONVOLUTIONS
from cacseg.adapters.saved import Arguments, load_projectors, read_conversion
from cacseg.adapters.seam import AuxiliaryClassifier, MovedDropout, Replacement, SeamClassifier, original_of
from cacseg.adapters.search import check_no_hooks, check_replaceable, check_unwrapped, find_by_running, get_by_name
from cacseg.adapters.supported import AUXILIARY_WEIGHT, MMSEG, Parts, find_row, known_parts, known_parts_inside
from cacseg.classifier import ContextAwareClassifier
from cacseg.losses import ContextLoss
from cacseg.presets import DEFAULT, fill_preset

logger = logging.getLogger("cacseg")

ADDED = ("conversion", "drop_oracle", "loss", "plain", "seam")  # what a converted model has beside its own
FIXED = ("in_channels", "num_classes", "bias")  # by the convolution
MANY_PARAMETERS = 10_000_000  # of the projectors alone, beyond which a user is told


def convert(
    model: nn.Module,
    seam: str | None = None,
    *,
    example: Tensor | None = None,
    saved: str | Path | None = None,
    loss_arguments: Mapping[str, Any] | None = None,
    auxiliaries: Sequence[str] = (),
    auxiliary_weight: float | None = None,
    **classifier_arguments: Any,
) -> Any:
    """Replaces the layer that turns features into class scores by a context-aware classifier, in place.

    Returns the model. The rest of it stays as it was, and so does the trained weight of the old classifier. The
    converted model has `model(images)` (the same type and size of output, from the context logits),
    `model.loss(images, labels)`, `model.plain(images)` and `model.seam`; `cacseg.restore(model)` undoes the conversion.

    A classifier with one channel is binary segmentation: the model still returns one channel, for a sigmoid. Labels are
    0 and 1, or a mask of bools or floats, [b, H, W] or [b, 1, H, W].

    Args:
        model: a model of segmentation_models_pytorch, torchvision, transformers or mmsegmentation (docs/convert.md
            lists the architectures), or any nn.Module.
        seam: the name of the layer to replace, such as "decode_head.conv_seg". By default the known one of the
            architecture; in other models the last 1x1 convolution before the output, found by running the model once,
            and logged.
        example: images for that run; by default random ones, 64x64, with the channels of the first
            convolution.
        saved: a folder, or a name on the Hugging Face Hub, that `save_pretrained` or `push_to_hub` of a converted
            model wrote; pass the `model` that the library's own `from_pretrained` returns. Seam, arguments and
            projectors come from there; loss and auxiliary arguments can be overridden.
        loss_arguments: arguments of `ContextLoss`.
        auxiliaries: names of further classifiers, each of which gets a cross-entropy (deep supervision); those of the
            architectures in docs/convert.md are known.
        auxiliary_weight: the weight of the auxiliary cross-entropies; by default what the config of transformers or the
            heads of mmsegmentation say, else 0.4.
        classifier_arguments: arguments of `ContextAwareClassifier`. The loss shares its `preset` and `ignore_index`.
            With the preset "tuned" the losses upsample as the model does, with or without `align_corners`.
    """
    told = Arguments(seam, classifier_arguments, dict(loss_arguments or {}), auxiliaries, auxiliary_weight)
    projectors = None
    if saved is not None:
        told, projectors = read_conversion(saved, told)
        seam, classifier_arguments, loss_arguments, auxiliaries, auxiliary_weight = told
    check_arguments(classifier_arguments, loss_arguments or {}, auxiliary_weight)
    check_model(model)
    row, parts = find_row(model), known_parts(model)
    if parts.refusal:
        raise ValueError(f"{type(model).__name__} cannot be converted: {parts.refusal}.")
    package = "" if row is None else row.package
    check_attributes(model, package)
    inside = known_parts_inside(model) if row is None else Parts()
    is_named = bool(seam or parts.seam)
    name = seam or parts.seam or find_by_running(model, example, inside.seam, auxiliaries)
    if name == inside.seam:
        parts = inside
    replaced = get_by_name(model, name)
    check_replaceable(name, replaced)
    classes = outputs_of(replaced)
    check_channels_after(model, name, classes)
    known = outputs_of(get_by_name(model, parts.seam)) if parts.seam else classes
    if classes != known:
        raise ValueError(
            f"the seam must be where features become class scores; {name!r} has {classes} outputs, and "
            f"{type(model).__name__} makes its {known} scores at {parts.seam!r}. Leave seam out."
        )
    if not is_named:
        binary = ", one channel: binary segmentation" if classes == 1 else ""
        logger.warning("cacseg.convert: %s makes its class scores at %r%s", type(model).__name__, name, binary)
    fixed = sorted(set(FIXED) & set(classifier_arguments))
    if fixed:
        raise ValueError(f"the convolution at {name!r} fixes {' and '.join(fixed)}. Leave them out.")

    # With centred labels the losses upsample as the model does.
    follows = fill_preset(classifier_arguments.get("preset", DEFAULT)).label_sampling == "centred"
    of_classifier, of_loss = dict(classifier_arguments), dict(loss_arguments or {})
    if parts.ignore_index is not None:
        of_classifier.setdefault("ignore_index", parts.ignore_index)
    if "ignore_index" in of_classifier:
        of_loss.setdefault("ignore_index", of_classifier["ignore_index"])
    if follows and aligns_corners(model, name, parts):
        set_defaults(of_classifier, label_sampling="aligned")
        set_defaults(of_loss, align_corners=True, context_align_corners=True)
    dropout_name, dropout = find_dropout(model, name, parts, replaced)
    if "dropout" in of_classifier:
        dropout = None
    with torch.inference_mode(False):  # whose new parameters could never be trained
        classifier = SeamClassifier(replaced, dropout, ContextLoss(**of_loss), of_classifier)
    check_criterion(classifier)
    if projectors is not None:
        load_projectors(classifier, projectors, f"{saved}")
    report_many_parameters(name, classifier)

    check_auxiliaries(model, auxiliaries, name, replaced)
    weights = dict(parts.auxiliaries) if name == parts.seam else {}
    for other in auxiliaries:
        weights.setdefault(other, AUXILIARY_WEIGHT)
    if auxiliary_weight is not None:
        weights = dict.fromkeys(weights, auxiliary_weight)
    aligned = frozenset(key for key in weights if follows and aligns_corners(model, key, parts))
    replacements: dict[str, Replacement] = {name: classifier}
    if dropout_name:
        replacements[dropout_name] = MovedDropout(model.get_submodule(dropout_name))
    for key in weights:
        auxiliary = model.get_submodule(key)
        check_replaceable(key, auxiliary)
        assert isinstance(auxiliary, nn.Conv2d)
        replacements[key] = AuxiliaryClassifier(auxiliary, key)
    converted: Any = model
    kind = ConvertedSegmentor if package == MMSEG else ConvertedModel
    converted.__class__ = converted_class(kind, type(model))  # what may fail comes first: the model is then as it was
    for key, module in replacements.items():
        replace_module(model, model.get_submodule(key), module)
    converted.conversion = Conversion(name, dropout_name, weights, aligned, told)
    return converted


def restore(model: nn.Module) -> Any:
    """Undoes `convert` in place, keeping the current weights; returns the model."""
    if not isinstance(model, ConvertedModel) or not is_converted(model):
        raise TypeError(f"restore needs a model that cacseg.convert returned; got {type(model).__name__}.")
    seam, dropout, auxiliaries, *_ = model.conversion
    names = [name for name in (seam, dropout, *auxiliaries) if name]
    for name in names:
        check_no_hooks(name, model.get_submodule(name))
    for name in names:
        replacement = model.get_submodule(name)
        assert isinstance(replacement, SeamClassifier | MovedDropout | AuxiliaryClassifier)
        replace_module(model, replacement, original_of(replacement))
    restored: Any = model
    del restored.conversion
    restored.__class__ = model._cacseg_original
    return restored


def check_arguments(
    of_classifier: Mapping[str, Any], of_loss: Mapping[str, Any], auxiliary_weight: float | None
) -> None:
    """Checks the names of arguments, and that there is one preset."""
    own = [name for name, one in inspect.signature(convert).parameters.items() if one.kind is not one.VAR_KEYWORD]
    check_names("convert", of_classifier, {*own, *inspect.signature(ContextAwareClassifier).parameters})
    check_names("ContextLoss", of_loss, inspect.signature(ContextLoss).parameters)
    preset = of_classifier.get("preset", DEFAULT)
    if of_loss.get("preset", preset) not in (None, preset):
        raise ValueError(
            f"classifier and loss must have one preset; got {preset!r} for the classifier and {of_loss['preset']!r} in "
            f"loss_arguments. Pass it to convert alone: convert(model, preset={of_loss['preset']!r})."
        )
    if auxiliary_weight is not None:
        check_number("auxiliary_weight", auxiliary_weight, scalars=True)


def check_model(model: nn.Module) -> None:
    """Checks that it is a model around a classifier, neither converted nor wrapped."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"convert needs an nn.Module; got {type(model).__name__}.")
    if isinstance(model, (*CONVOLUTIONS, nn.Linear)):
        raise TypeError(
            f"convert needs the model around a classifier; got {type(model).__name__}, a layer. For the layer alone: "
            "cacseg.ContextAwareClassifier.from_conv(layer)."
        )
    if isinstance(model, ConvertedModel):
        if is_converted(model):
            raise ValueError(
                f"the model is converted already, at {model.seam!r}. cacseg.restore(model) makes it the original again."
            )
        model.__class__ = model._cacseg_original  # type: ignore[assignment]  # built from a converted model's class
    check_unwrapped(model)


def check_attributes(model: nn.Module, package: str) -> None:
    """Checks that the added methods hide none of the model's own; mmsegmentation's `loss` may be replaced."""
    known = {"loss"} if package == MMSEG else set()
    hidden = [name for name in ADDED if name in set(dir(model)) - known]
    if hidden:
        raise ValueError(
            f"a converted model has {', '.join(ADDED)}, and {type(model).__name__} has {', '.join(hidden)} of its own. "
            "Rename them, or convert the part of the model between images and scores."
        )
    if package == "segmentation_models_pytorch" and isinstance(model.classification_head, nn.Module):
        raise ValueError(
            "a converted model is trained with labels for pixels; this one has a classification head, which needs "
            "labels for images. Build it without aux_params."
        )


def outputs_of(layer: nn.Module) -> int:
    """The number of outputs of a convolution or linear layer."""
    return cast(Tensor, layer.weight).shape[0]


def check_auxiliaries(model: nn.Module, names: Sequence[str], seam: str, replaced: nn.Module) -> None:
    """Checks that each is a 2-D convolution with the classes of the seam, and not the seam."""
    if isinstance(names, str):
        raise TypeError(f"auxiliaries must be a list of names; got the text {names!r}. Put it in a list.")
    classes = outputs_of(replaced)
    for name in names:
        module = get_by_name(model, name)
        if not isinstance(module, nn.Conv2d) or module is replaced or module.out_channels != classes:
            raise ValueError(
                f"an auxiliary classifier must be an nn.Conv2d with the {classes} classes of {seam!r}, beside it; "
                f"{name!r} is {module}. Leave it out."
            )


def check_criterion(classifier: SeamClassifier) -> None:
    """Checks that classifier and losses fit together, before the first training step."""
    criterion, ignored = classifier.criterion, classifier.ignore_index
    if criterion.ignore_index != ignored:
        raise ValueError(
            f"classifier and loss must ignore the same label; got {ignored} and {criterion.ignore_index}. Pass "
            "ignore_index to convert, not in loss_arguments."
        )
    if criterion.class_weights is not None:
        check_class_weights(criterion.class_weights, max(2, classifier.num_classes))


def report_many_parameters(name: str, classifier: SeamClassifier) -> None:
    """Warns where projectors over patches have many parameters."""
    added = sum(value.numel() for key, value in classifier.named_parameters() if "projector" in key)
    if not classifier.geometry.pointwise and added > MANY_PARAMETERS:
        channels = classifier.weight[0].numel()
        logger.warning(
            f"cacseg.convert: {name!r} is a convolution over patches of {channels} channels, whose projectors have "
            f"{added / 1e6:.0f} M parameters; fewer channels before it would cost less"
        )


def set_defaults(arguments: dict[str, Any], **values: Any) -> None:
    """Fills in arguments that are left out or None."""
    arguments.update({name: value for name, value in values.items() if arguments.get(name) is None})


def replace_module(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Replaces a module under every name that it has in the model."""
    for parent in list(model.modules()):
        for key, child in parent._modules.items():
            if child is old:
                parent._modules[key] = new
