"""A converted model: the original object, whose class became a subclass that knows `loss` and `plain`."""

from __future__ import annotations

import copyreg
import inspect
import sys
from typing import Any, NamedTuple

from torch import Tensor, nn

from cacseg.adapters.seam import AuxiliaryClassifier, Call, SeamClassifier

ASKED = "_cacseg_asked"  # the argument by which `loss` and `plain` say what they want of a call


class Conversion(NamedTuple):
    """What `convert` did to a model: the names of the modules it replaced, and how their losses are given."""

    seam: str
    dropout: str  # "" where there was none to move
    auxiliary: str  # "" where the model has none
    auxiliary_weight: float
    keeps_output: bool  # with labels the model returns its own output with `loss` in it, not the named losses


class ConvertedModel(nn.Module):
    """What `convert` adds to the class of a model.

    `model(images)` returns what it returned, from the context logits. `model.loss(images, labels)` returns the named
    losses and their "total". `model(images, labels)` is the same for wrappers that see nothing but calls of the model
    (`DistributedDataParallel`); models of transformers take `labels=...` and return their output with its `loss`.
    `model.plain(images)` returns what the original model would.
    """

    _cacseg_original: type[nn.Module]  # of the subclass
    _cacseg_labels: LabelsPlace  # of the subclass
    accepts_loss_kwargs = False  # transformers' Trainer: the loss is a mean over this batch alone
    conversion: Conversion

    @property
    def seam(self) -> str:
        """The name of the module where features become class scores."""
        return self.conversion.seam

    def loss(self, *inputs: Any, labels: Tensor | None = None, **named: Any) -> dict[str, Tensor]:
        """The named terms, before their weights, and "total", their weighted sum: `loss(images, labels)`.

        The model's other inputs may be given too, by their names: `loss(**batch)`.
        """
        if labels is None and len(inputs) > 1:
            *others, labels = inputs
            inputs = tuple(others)
        if labels is None:
            raise TypeError("loss needs labels: model.loss(images, labels).")
        return self(*inputs, **named, labels=labels, **{ASKED: "losses"})

    def plain(self, *inputs: Any, **named: Any) -> Any:
        """What the original model returns for these inputs, with the weights as they are now."""
        return self(*inputs, **named, **{ASKED: "plain"})

    def drop_oracle(self) -> ConvertedModel:
        """Drops the branch that only training uses, in place, for deployment; returns the model."""
        self._cacseg_seam().drop_oracle()
        return self

    def _cacseg_answer(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Every call of the model comes here, `loss` and `plain` too, so that hooks and wrappers see them all."""
        if "conversion" not in vars(self):  # another instance of the class, which nobody converted
            return super().forward(*inputs, **named)
        asked = named.pop(ASKED, None)
        if asked == "plain":
            return self._cacseg_run(Call(plain=True), inputs, named)
        labels = named.pop("labels", None)
        _, position, is_originals = self._cacseg_labels
        if len(inputs) > position:
            labels = inputs[position]
            # None holds a place that the original has for labels; other arguments may follow it.
            inputs = (*inputs[:position], *((None,) if is_originals else ()), *inputs[position + 1 :])
        if labels is None:
            return self._cacseg_run(None, inputs, named)
        output, losses = self._cacseg_losses(labels, inputs, named)
        if asked == "losses" or not self.conversion.keeps_output:
            return losses
        if isinstance(output, tuple):
            return (losses["total"], *output)
        return type(output)(**{**output, "loss": losses["total"]})

    def _cacseg_losses(
        self, labels: Tensor, inputs: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[Any, dict[str, Tensor]]:
        if not isinstance(labels, Tensor):
            raise TypeError(
                f"labels must be a torch.Tensor of integers [b, H, W]; got {type(labels).__name__}. A converted model "
                "takes tensors, whatever samples the original's own training code has."
            )
        call = Call(labels=labels)
        output = self._cacseg_run(call, inputs, named)
        return output, self._cacseg_seam().losses(call, self.conversion.auxiliary_weight)

    def _cacseg_run(self, call: Call | None, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The original forward while the seam knows of this call; afterwards, whatever happens, it does not."""
        listeners: list[SeamClassifier | AuxiliaryClassifier] = [self._cacseg_seam()]
        if self.conversion.auxiliary:
            auxiliary = self.get_submodule(self.conversion.auxiliary)
            assert isinstance(auxiliary, AuxiliaryClassifier)
            listeners.append(auxiliary)
        outer = listeners[0].call  # of a call that this one is nested in
        for listener in listeners:
            listener.call = call
        try:
            return super().forward(*inputs, **named)
        finally:
            for listener in listeners:
                listener.call = outer

    def _cacseg_seam(self) -> SeamClassifier:
        seam = self.get_submodule(self.conversion.seam)
        assert isinstance(seam, SeamClassifier)
        return seam

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles name the original class, which can be imported; the subclass is made again."""
        reduced = super().__reduce_ex__(protocol)
        assert isinstance(reduced, tuple)
        make, arguments, *rest = reduced
        if make is not copyreg.__newobj__:  # type: ignore[attr-defined]
            raise TypeError(f"{type(self).__name__} has a way of its own to be copied. Restore it before copying.")
        return (new_converted, (self._cacseg_original, *arguments[1:]), *rest)


def converted_class(original: type[nn.Module]) -> type[ConvertedModel]:
    """The subclass of `original` that converted models have, always the same; it bears the original's name.

    The name matters: transformers writes it into saved configurations and looks up what to record by it.
    """
    if original in _classes:
        return _classes[original]

    def forward(self: ConvertedModel, *inputs: Any, **named: Any) -> Any:
        return self._cacseg_answer(inputs, named)

    place = place_labels(original)
    forward.__signature__ = place.signature  # type: ignore[attr-defined]
    forward.__doc__ = original.forward.__doc__
    namespace = {
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "_cacseg_original": original,
        "_cacseg_labels": place,
        "forward": forward,
    }
    _classes[original] = type(original.__name__, (ConvertedModel, original), namespace)
    return _classes[original]


_classes: dict[type[nn.Module], type[ConvertedModel]] = {}


def new_converted(original: type[nn.Module], *arguments: Any) -> nn.Module:
    """An empty instance, for copies and pickles to fill."""
    kind = converted_class(original)
    return kind.__new__(kind, *arguments)


class LabelsPlace(NamedTuple):
    """Where `labels` stands among the arguments of a converted forward."""

    signature: inspect.Signature  # of the converted forward
    position: int  # among the positional arguments
    is_originals: bool  # the original forward has that argument itself


def place_labels(original: type[nn.Module]) -> LabelsPlace:
    """The original's own place for labels, or a new one after its positional arguments."""
    signature = inspect.signature(original.forward)
    parameters = list(signature.parameters.values())
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [parameter.name for parameter in parameters if parameter.kind in kinds]
    if "labels" in signature.parameters:
        position = positional.index("labels") - 1 if "labels" in positional else sys.maxsize  # without self
        return LabelsPlace(signature, position, is_originals=True)
    takes_any = any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters)
    kind = inspect.Parameter.KEYWORD_ONLY if takes_any else inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters.insert(len(positional) + takes_any, inspect.Parameter("labels", kind, default=None))
    position = sys.maxsize if takes_any else len(positional) - 1
    return LabelsPlace(signature.replace(parameters=parameters), position, is_originals=False)
