"""A converted model: the original object, whose class became a subclass that knows `loss` and `plain`."""

from __future__ import annotations

import copyreg
import dataclasses
import inspect
import logging
import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cacseg import ops
from cacseg._checks import check_proportions, have_one_stride
from cacseg.adapters.calls import Call, current_call, remember_in_backward, set_call
from cacseg.adapters.neighbours import CONVOLUTION_AFTER
from cacseg.adapters.saved import Arguments, with_conversion
from cacseg.adapters.seam import SeamClassifier
from cacseg.adapters.search import tensors_in

logger = logging.getLogger("cacseg")
REQUEST = "_cacseg_request"  # the argument by which `loss` and `plain` say what they want of a call


class LabelsArgument(NamedTuple):
    """The position of `labels` among the arguments of a converted forward."""

    signature: inspect.Signature  # of the converted forward
    position: int  # among the positional arguments
    is_originals: bool  # the original forward has that argument itself


class Conversion(NamedTuple):
    """What `convert` did to a model: the names of the modules it replaced, and the weights of their losses."""

    seam: str
    dropout: str  # "" where there was none to move
    auxiliaries: dict[str, float]  # the weight of each auxiliary classifier, by its name
    aligned: frozenset[str]  # those whose logits are upsampled with align_corners=True in their loss
    arguments: Arguments  # that `convert` was given


class ConvertedModel(nn.Module):
    """What `convert` adds to the class of a model.

    `model(images)` returns what it returned, from the context logits. `model(images, labels)` is `model.loss` for
    wrappers that see nothing but calls of the model (`DistributedDataParallel`); a model whose own forward has
    `labels`, as those of transformers, returns its output with the loss in it.
    """

    _cacseg_kind: type[ConvertedModel]  # of the subclass, as the two after it
    _cacseg_original: type[nn.Module]
    _cacseg_labels: LabelsArgument
    accepts_loss_kwargs = False  # transformers' Trainer: the loss is a mean over this batch alone
    conversion: Conversion

    @property
    def seam(self) -> str:
        """The name of the module where features become class scores."""
        return self.conversion.seam

    def loss(self, *inputs: Any, labels: Tensor | None = None, return_output: bool = False, **named: Any) -> Any:
        """The named terms, before their weights, and "total", their weighted sum: `loss(images, labels)`.

        The model's other inputs may be given too, by their names: `loss(**batch)`. With `return_output`, what the model
        returns comes first, from the same run: `output, losses = loss(images, labels, return_output=True)`.
        """
        if labels is None and len(inputs) > 1:
            *others, labels = inputs
            inputs = tuple(others)
        if labels is None:
            raise TypeError("loss needs labels: model.loss(images, labels).")
        return self(*inputs, **named, labels=labels, return_output=return_output, **{REQUEST: "losses"})

    def plain(self, *inputs: Any, **named: Any) -> Any:
        """Returns what the original model would return, with the current weights."""
        return self(*inputs, **named, **{REQUEST: "plain"})

    def drop_oracle(self) -> ConvertedModel:
        """Removes the branch that only training uses, in place; returns the model."""
        self._cacseg_seam().drop_oracle()
        return self

    def _cacseg_forward(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Every call of the model comes here, `loss` and `plain` too, so that hooks and wrappers see them all."""
        request = named.pop(REQUEST, None)
        if not is_converted(self):
            if request is None:
                return super().forward(*inputs, **named)
            raise TypeError(
                f"loss and plain need a model that cacseg.convert returned; this {type(self).__name__} was built from "
                "the class of one. Convert it too."
            )
        if request == "plain":
            return self._cacseg_run_original(Call(self._cacseg_seam(), plain=True), inputs, named)
        labels, return_output = named.pop("labels", None), named.pop("return_output", False)
        _, position, is_originals = self._cacseg_labels
        if len(inputs) > position:
            labels = inputs[position]
            # None holds a place that the original has for labels; other arguments may follow it.
            inputs = (*inputs[:position], *((None,) if is_originals else ()), *inputs[position + 1 :])
        if labels is None:
            if return_output:
                raise TypeError("return_output is of a call with labels; got none. Pass labels, or leave it out.")
            return self._cacseg_run_original(Call(self._cacseg_seam()), inputs, named)
        output, losses = self._cacseg_losses(labels, inputs, named)
        if return_output:
            return output, losses
        return losses if request == "losses" or not is_originals else with_loss(output, losses)

    def _cacseg_read_labels(self, labels: Any) -> Tensor:
        if not isinstance(labels, Tensor):
            raise TypeError(
                f"labels must be a torch.Tensor of integers [b, H, W]; got {type(labels).__name__}. A converted model "
                "takes tensors, whatever samples the original's own training code has."
            )
        return labels

    def _cacseg_losses(
        self, labels: Any, inputs: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[Any, dict[str, Tensor]]:
        """The output, the named terms of the criterion and of the auxiliaries, and their weighted "total"."""
        seam = self._cacseg_seam()
        labels = seam.read_labels(self._cacseg_read_labels(labels))
        call = Call(seam, labels=labels)
        output = self._cacseg_run_original(call, inputs, named)
        outputs, auxiliary = call.outputs, call.auxiliary
        call.outputs, call.auxiliary = None, {}  # so as not to hold the graph
        if outputs is None:
            raise RuntimeError(
                "the model must run its classifier once in each call; it did not run. Name the convolution that "
                "every call passes: cacseg.convert(cacseg.restore(model), seam=...)."
            )
        check_label_size(labels, (inputs, named), output)
        if not seam.is_checked and not torch.compiler.is_compiling():
            check_output_channels(self, seam, output)
            if seam.num_classes == 1:
                warn_of_ignored_foreground(labels, seam.ignore_index)
            seam.is_checked = True
        scores = (outputs.context, outputs.plain, outputs.oracle, *auxiliary.values())
        remember_in_backward(call, [one for one in scores if one is not None])
        losses = seam.criterion(outputs, labels)
        total = losses.pop("total")
        ran = {name: weight for name, weight in self.conversion.auxiliaries.items() if name in auxiliary}
        for index, (name, weight) in enumerate(ran.items()):
            term = "auxiliary" if len(ran) == 1 else f"auxiliary_{index}"
            losses[term] = ops.upsampled_cross_entropy(
                auxiliary[name],
                labels,
                ignore_index=seam.criterion.ignore_index,
                weight=seam.criterion.class_weights,
                label_smoothing=seam.criterion.label_smoothing,
                align_corners=name in self.conversion.aligned,
            )
            total = total + weight * losses[term]
        return output, {**losses, "total": total}

    def _cacseg_run_original(self, call: Call, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Runs the original forward within a call, and leaves the call afterwards, also after an error."""
        outer = current_call()
        set_call(call)
        try:
            output = super().forward(*inputs, **named)
        finally:
            set_call(outer)
        remember_in_backward(call, list(tensors_in(output)))
        return output

    def _cacseg_seam(self) -> SeamClassifier:
        seam = self.get_submodule(self.conversion.seam)
        assert isinstance(seam, SeamClassifier)
        return seam

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles name the original class, which can be imported; the subclass is created again on loading."""
        reduced = super().__reduce_ex__(protocol)
        assert isinstance(reduced, tuple)
        make, arguments, *rest = reduced
        if make is not copyreg.__newobj__:  # type: ignore[attr-defined]
            raise TypeError(f"{type(self).__name__} has a way of its own to be copied. Restore it before copying.")
        return (new_converted, (self._cacseg_kind, self._cacseg_original, *arguments[1:]), *rest)


def is_converted(model: nn.Module) -> bool:
    """False also for an instance of the subclass that was not converted itself."""
    return isinstance(model, ConvertedModel) and "conversion" in model.__dict__  # `vars` does not trace in torch 2.8


def check_output_channels(model: ConvertedModel, seam: SeamClassifier, output: Any) -> None:
    """The model must return maps with as many channels as the seam; else it is the wrong layer."""
    shapes = [tuple(tensor.shape) for tensor in tensors_in(output) if tensor.ndim > 2]
    if shapes and not any(seam.num_classes in (shape[1], shape[-1]) for shape in shapes):
        raise ValueError(
            f"the seam must make the scores that the model returns; {model.seam!r} makes {seam.num_classes} channels, "
            f"and {type(model).__name__} returns {', '.join(map(str, shapes))}. Name the layer that makes the scores: "
            f"cacseg.convert(cacseg.restore(model), seam=...). {CONVOLUTION_AFTER}"
        )


def with_loss(output: Any, losses: dict[str, Tensor]) -> Any:
    """The output of a model that takes labels itself: its own with the loss filled in; for a tensor, the losses."""
    total = losses["total"]
    if isinstance(output, Tensor):
        return losses
    if isinstance(output, dict):  # the outputs of transformers are dicts and dataclasses
        filled = {**output, "loss": total}
        return type(output)(**filled) if dataclasses.is_dataclass(output) else filled
    if dataclasses.is_dataclass(output) and "loss" in [field.name for field in dataclasses.fields(output)]:
        return dataclasses.replace(output, loss=total)  # type: ignore[type-var]
    if type(output) is tuple:
        return (total, *output)
    raise TypeError(
        "with labels, a model whose forward takes them must return a tuple, a dict or a dataclass with a field loss; "
        f"got {type(output).__name__}. model.loss(images, labels) gives the losses of any."
    )


def converted_class(kind: type[ConvertedModel], original: type[nn.Module]) -> type[ConvertedModel]:
    """The subclass of `original` that converted models have, always the same; it bears the original's name.

    The name matters: transformers writes it into saved configurations and looks up what to record by it.
    """
    if (kind, original) in _classes:
        return _classes[kind, original]

    def forward(self: nn.Module, *inputs: Any, **named: Any) -> Any:
        # Mixed precision of accelerate keeps this method bound to a model, which may be restored by then.
        if not isinstance(self, ConvertedModel):
            return original.forward(self, *inputs, **named)
        return self._cacseg_forward(inputs, named)

    labels = find_labels_argument(original)
    forward.__signature__ = labels.signature  # type: ignore[attr-defined]
    forward.__doc__ = original.forward.__doc__
    namespace = {
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "_cacseg_kind": kind,
        "_cacseg_original": original,
        "_cacseg_labels": labels,
        "forward": forward,
    }
    if save := getattr(original, "save_pretrained", None):
        namespace["save_pretrained"] = with_conversion(save, is_converted)
    _classes[kind, original] = type(original.__name__, (kind, original), namespace)
    return _classes[kind, original]


_classes: dict[tuple[type[ConvertedModel], type[nn.Module]], type[ConvertedModel]] = {}


def new_converted(kind: type[ConvertedModel], original: type[nn.Module], *arguments: Any) -> nn.Module:
    """An empty instance, for copies and pickles to fill."""
    made = converted_class(kind, original)
    return made.__new__(made, *arguments)


def find_labels_argument(original: type[nn.Module]) -> LabelsArgument:
    """The original's own position of labels, or a new one after its positional arguments."""
    signature = inspect.signature(original.forward)
    parameters = list(signature.parameters.values())
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [parameter.name for parameter in parameters if parameter.kind in kinds]
    if "labels" in signature.parameters:
        if signature.parameters["labels"].default is inspect.Parameter.empty:
            raise TypeError(
                f"the forward of {original.__name__} requires labels, and a converted model runs it without: its "
                "losses come from the classifier. Give the argument the default None."
            )
        position = positional.index("labels") - 1 if "labels" in positional else sys.maxsize  # without self
        return LabelsArgument(signature, position, is_originals=True)
    takes_any = any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters)
    kind = inspect.Parameter.KEYWORD_ONLY if takes_any else inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters.insert(len(positional) + takes_any, inspect.Parameter("labels", kind, default=None))
    position = sys.maxsize if takes_any else len(positional) - 1
    return LabelsArgument(signature.replace(parameters=parameters), position, is_originals=False)


def check_label_size(labels: Tensor, inputs: Any, output: Any) -> None:
    """Labels [b, H, W] must have the proportions of the images, or the size of a map that the model returns.

    The images are the maps among the inputs, with channels first or last. A model may return less than it reads:
    convolutions without padding cut the borders off.
    """
    images = [one for one in tensors_in(inputs) if one.ndim == 4]
    if not images or labels.ndim != 3:
        return
    size = labels.shape[1:]
    if any(have_one_stride(size, one.shape[2:]) or have_one_stride(size, one.shape[1:3]) for one in images):
        return
    if not any(size in (one.shape[2:], one.shape[1:3]) for one in tensors_in(output) if one.ndim == 4):
        check_proportions("labels", size, "images", images[0].shape[2:])


def warn_of_ignored_foreground(labels: Tensor, ignore_index: int) -> None:
    """Warns of binary labels that look like a mask of 0 and 255, whose foreground would be ignored."""
    if labels.is_meta or torch.any(labels == 1):
        return
    ignored = (labels == ignore_index).float().mean().item()
    if ignored > 0.0:
        logger.warning(
            f"cacseg: labels of binary segmentation are 0 and 1; the first ones hold no 1, and {ignored:.0%} are "
            f"{ignore_index}, which is ignored. Masks of 0 and {ignore_index}: pass labels > 0, or another "
            "ignore_index to convert."
        )
