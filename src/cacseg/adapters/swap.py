"""One line for a model of another library: a context-aware classifier where features become class scores."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from cacseg._checks import check_class_weights
from cacseg.adapters.converted import Conversion, ConvertedModel, converted_class, is_converted
from cacseg.adapters.mmseg import PACKAGE as MMSEG
from cacseg.adapters.mmseg import ConvertedSegmentor
from cacseg.adapters.patches import CONVOLUTIONS, geometry_of
from cacseg.adapters.rows import AUXILIARY_WEIGHT, Known
from cacseg.adapters.seam import AuxiliaryClassifier, MovedDropout, Placed, SeamClassifier, put_back
from cacseg.adapters.search import (
    check_bare,
    check_path,
    check_replaceable,
    check_unwrapped,
    find_by_running,
    get_by_name,
)
from cacseg.adapters.supported import known_inside, known_of, row_of
from cacseg.losses import ContextLoss
from cacseg.presets import DEFAULT, fill_preset

logger = logging.getLogger("cacseg")

ADDED = ("conversion", "drop_oracle", "loss", "plain", "seam")  # what a converted model has beside its own
MANY_PARAMETERS = 10_000_000  # of the projectors alone, beyond which a user is told


def convert(
    model: nn.Module,
    seam: str | None = None,
    *,
    example: Tensor | None = None,
    loss_arguments: Mapping[str, Any] | None = None,
    auxiliaries: Sequence[str] = (),
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
        auxiliaries: the names of further convolutions that make scores, for a loss of their own (deep supervision);
            those of the architectures in docs/convert.md are known.
        auxiliary_weight: of the cross-entropies of auxiliary classifiers, where the model has some; None for what the
            config of a model of transformers or the heads of mmsegmentation say, else 0.4.
        classifier_arguments: of `ContextAwareClassifier`. `preset` and `ignore_index` reach the loss too, unless
            `loss_arguments` has its own. With the presets "tuned" and "centred" classifier and losses have a feature
            where the model's own upsampling of the scores has it, with `align_corners=True` as without.
    """
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
    if auxiliary_weight is not None and not 0.0 <= auxiliary_weight < float("inf"):
        raise ValueError(f"auxiliary_weight must be finite and not negative; got {auxiliary_weight}.")
    row, known = row_of(model), known_of(model)
    if known.refusal:
        raise ValueError(f"{type(model).__name__} cannot be converted: {known.refusal}.")
    package = "" if row is None else row.package
    check_names(model, package)
    inside = known_inside(model) if row is None else Known()
    name = seam or known.seam or find_by_running(model, example, inside.seam)
    if not seam and not known.seam:
        logger.warning("cacseg.convert: %s makes its class scores at %r", type(model).__name__, name)
    if name == inside.seam:
        known = inside
    if known.ignore_index is not None:
        classifier_arguments.setdefault("ignore_index", known.ignore_index)
    shared: dict[str, Any] = {
        key: classifier_arguments[key] for key in ("preset", "ignore_index") if key in classifier_arguments
    }
    shared.update(loss_arguments or {})
    replaced = get_by_name(model, name)
    check_path(model, name)
    check_replaceable(name, replaced)
    follows = follows_upsampling(classifier_arguments) and follows_upsampling(shared)
    if follows and aligns_corners(model, name, known):
        fill_in(classifier_arguments, label_sampling="aligned")
        fill_in(shared, align_corners=True, context_align_corners=True)
    criterion = ContextLoss(**shared)
    check_is_classifier(model, name, replaced, known)
    dropout_name, dropout = dropout_before(model, name, known, replaced)
    kept = None if "dropout" in classifier_arguments else dropout
    weights = {**(known.auxiliaries if name == known.seam else {})}
    for other in check_auxiliaries(model, auxiliaries, name, replaced):
        weights.setdefault(other, AUXILIARY_WEIGHT)
    if auxiliary_weight is not None:
        weights = dict.fromkeys(weights, auxiliary_weight)

    fixed = sorted({"in_channels", "num_classes", "bias"} & set(classifier_arguments))
    if fixed:
        raise ValueError(f"the convolution at {name!r} fixes {' and '.join(fixed)}. Leave them out.")
    with torch.inference_mode(False):  # whose new parameters could never be trained
        classifier = SeamClassifier(replaced, kept, criterion, classifier_arguments)
    check_criterion(classifier, criterion)
    added = sum(value.numel() for key, value in classifier.named_parameters() if "projector" in key)
    if not classifier.geometry.pointwise and added > MANY_PARAMETERS:
        logger.warning(
            "cacseg.convert: %r is a convolution over patches of %d channels, whose projectors have %.0f M parameters; "
            "fewer channels before it would cost less",
            name,
            classifier.in_channels,
            added / 1e6,
        )
    aligned = frozenset(key for key in weights if follows and aligns_corners(model, key, known))
    conversion = Conversion(name, dropout_name, weights, aligned)
    placed: dict[str, Placed] = {name: classifier}
    if dropout_name:
        placed[dropout_name] = MovedDropout(model.get_submodule(dropout_name))
    for key in weights:
        auxiliary = model.get_submodule(key)
        check_replaceable(key, auxiliary)
        assert isinstance(auxiliary, nn.Conv2d)
        placed[key] = AuxiliaryClassifier(auxiliary, key)
    converted: Any = model
    kind = ConvertedSegmentor if package == MMSEG else ConvertedModel
    converted.__class__ = converted_class(kind, type(model))  # what may fail comes first: the model is then as it was
    for key, module in placed.items():
        replace_module(model, model.get_submodule(key), module)
    converted.conversion = conversion
    return converted


def restore(model: nn.Module) -> Any:
    """Makes a converted model the original again, in place, with the weights as they are now; returns the model."""
    if not isinstance(model, ConvertedModel) or not is_converted(model):
        raise TypeError(f"restore needs a model that cacseg.convert returned; got {type(model).__name__}.")
    seam, dropout, auxiliaries, _ = model.conversion
    names = [name for name in (seam, dropout, *auxiliaries) if name]
    for name in names:
        check_bare(name, model.get_submodule(name))
    for name in names:
        placed = model.get_submodule(name)
        assert isinstance(placed, SeamClassifier | MovedDropout | AuxiliaryClassifier)
        replace_module(model, placed, put_back(placed))
    restored: Any = model
    del restored.conversion
    restored.__class__ = model._cacseg_original
    return restored


def check_names(model: nn.Module, package: str) -> None:
    """The methods that a conversion adds must not hide anything of the model; mmsegmentation's `loss` is known."""
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


def check_is_classifier(model: nn.Module, name: str, replaced: nn.Module, known: Known) -> None:
    """A layer that the caller named has as many outputs as the classifier of a known architecture."""
    if not known.seam or name == known.seam:
        return
    usual = get_by_name(model, known.seam)
    (n, *_), (classes, *_) = (cast(Tensor, module.weight).shape for module in (replaced, usual))
    if n != classes:
        raise ValueError(
            f"the seam must be where features become class scores; {name!r} has {n} outputs, and "
            f"{type(model).__name__} makes its {classes} scores at {known.seam!r}. Leave seam out."
        )


def check_auxiliaries(model: nn.Module, names: Sequence[str], seam: str, replaced: nn.Module) -> Sequence[str]:
    """Each is a 2-D convolution with the classes of the seam, and another than the seam."""
    if isinstance(names, str):
        raise TypeError(f"auxiliaries must be a list of names; got the text {names!r}. Put it in a list.")
    classes = cast(Tensor, replaced.weight).shape[0]
    for name in names:
        module = get_by_name(model, name)
        check_path(model, name)
        if not isinstance(module, nn.Conv2d) or module is replaced or module.out_channels != classes:
            raise ValueError(
                f"an auxiliary classifier must be an nn.Conv2d with the {classes} classes of {seam!r}, beside it; "
                f"{name!r} is {module}. Leave it out."
            )
    return names


def check_criterion(classifier: SeamClassifier, criterion: ContextLoss) -> None:
    """Classifier and losses fit together: known here, before the first training step."""
    if criterion.ignore_index != classifier.ignore_index:
        raise ValueError(
            f"classifier and loss must ignore the same label; got {classifier.ignore_index} and "
            f"{criterion.ignore_index}. Pass ignore_index to convert, not in loss_arguments."
        )
    if criterion.class_weights is not None:
        check_class_weights(criterion.class_weights, classifier.num_classes)


def dropout_before(model: nn.Module, name: str, known: Known, conv: nn.Module) -> tuple[str, nn.Module | None]:
    """The name of the dropout whose output the seam reads, and one for the plain logits; "" and None without."""
    parent_name, _, last = name.rpartition(".")
    parent, before = model.get_submodule(parent_name), ""
    if name == known.seam and known.dropout:
        before = known.dropout
    elif isinstance(parent, nn.Sequential) and type(parent).forward is nn.Sequential.forward:
        names = list(parent._modules)
        if names.index(last) > 0:
            before = f"{parent_name}.{names[names.index(last) - 1]}".lstrip(".")
    module = dict(model.named_modules(remove_duplicate=False)).get(before) if before else None
    if module is None or module_places(model, module) > 1:
        return "", None  # one that stands elsewhere too goes on dropping there
    size = geometry_of(conv).kernel_size
    kinds = (nn.Dropout, *CHANNEL_DROPOUTS.get(len(size), ()))
    kind = next((kind for kind in kinds if type(module).forward is kind.forward), None)
    if not isinstance(module, kinds) or kind is None or module.p == 0.0:
        return "", None
    if kind is nn.Dropout and not set(size) <= {1}:
        return "", None  # single values, dropped from every patch they are in: that is only possible before the patches
    check_bare(before, module)
    return before, kind(module.p).train(module.training)


def aligns_corners(model: nn.Module, name: str, known: Known) -> bool:
    """Whether the model upsamples the scores of a convolution with align_corners=True, as far as modules can tell."""
    while name:
        if name in known.aligned:
            return True
        parent_name, _, last = name.rpartition(".")
        parent = model.get_submodule(parent_name)
        if not isinstance(parent, nn.Sequential) or type(parent).forward is not nn.Sequential.forward:
            return False
        names = list(parent._modules)
        after = (parent._modules[key] for key in names[names.index(last) + 1 :])
        changing = next((one for one in after if not isinstance(one, (nn.Identity, *DROPOUTS))), None)
        if changing is not None:
            return bool(getattr(changing, "align_corners", False))
        name = parent_name  # the last of its Sequential: what follows that?
    return False


def follows_upsampling(arguments: Mapping[str, Any]) -> bool:
    """Whether a preset has each feature at one place: it is then where the model's own upsampling has it."""
    return fill_preset(arguments.get("preset", DEFAULT)).label_sampling == "centred"


def fill_in(arguments: dict[str, Any], **values: Any) -> None:
    """What is left out, or None."""
    arguments.update({name: value for name, value in values.items() if arguments.get(name) is None})


DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
# By the dimensions of the kernel: what drops whole channels of a map. Of what a linear layer reads none does.
CHANNEL_DROPOUTS: dict[int, tuple[type[nn.Dropout1d | nn.Dropout2d | nn.Dropout3d], ...]] = {
    1: (nn.Dropout1d,),
    2: (nn.Dropout2d,),
    3: (nn.Dropout3d,),
}


def module_places(model: nn.Module, module: nn.Module) -> int:
    """In how many places of the model a module stands."""
    return sum(child is module for parent in model.modules() for child in parent._modules.values())


def replace_module(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Puts one module in the place of another under every name that it has in the model."""
    for parent in list(model.modules()):
        for key, child in parent._modules.items():
            if child is old:
                parent._modules[key] = new
