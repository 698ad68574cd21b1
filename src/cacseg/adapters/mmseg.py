"""mmsegmentation: one name for the seam in every decode head; auxiliary heads, cascades and its own samples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cacseg.adapters.calls import call_of
from cacseg.adapters.converted import ConvertedModel, is_converted
from cacseg.adapters.rows import Parts, Row

PACKAGE = "mmseg"
MASKS = "it classifies masks, not pixels: no convolution turns the features of a pixel into class scores"

SEGMENTORS = [
    Row(
        PACKAGE,
        "EncoderDecoder",
        "decode_head.conv_seg",
        dropout="decode_head.dropout",
        auxiliary="auxiliary_head.conv_seg",
        remark="`model.loss` takes a tensor of labels or its samples; auxiliary heads run where there are labels",
    ),
    Row(
        PACKAGE,
        "CascadeEncoderDecoder",
        "decode_head.1.conv_seg",
        dropout="decode_head.1.dropout",
        auxiliary="decode_head.0.conv_seg",
        remark="the last stage; the earlier ones count as auxiliary",
    ),
    Row(PACKAGE, "DepthEstimator", refusal="it estimates depth, not classes"),
    Row(PACKAGE, "MultimodalEncoderDecoder", refusal=f"its classes are embeddings of their names; {MASKS}"),
]
# Decode heads and auxiliary heads that have more, or something else, to learn than the scores of conv_seg.
HEADS = [
    Row(PACKAGE, "EncHead", refusal="it also learns which classes an image holds. Build it with use_se_loss=False"),
    Row(PACKAGE, "IterativeDecodeHead", refusal=f"its kernels are updated for each image already (K-Net); {MASKS}"),
    Row(PACKAGE, "Mask2FormerHead", refusal=MASKS),
    Row(PACKAGE, "MaskFormerHead", refusal=MASKS),
    Row(PACKAGE, "PIDHead", refusal="it also learns boundaries, which need labels of their own"),
    Row(PACKAGE, "PointHead", refusal="it scores single points, chosen anew in each run. Convert the coarse model"),
    Row(PACKAGE, "SegmenterMaskTransformerHead", refusal=MASKS),
    Row(PACKAGE, "SideAdapterCLIPHead", refusal=MASKS),
    Row(PACKAGE, "STDCHead", refusal="it learns boundaries, which need labels of their own. Leave it out"),
    Row(PACKAGE, "VPDDepthHead", refusal="it estimates depth, not classes"),
]
ROWS = [*SEGMENTORS, *HEADS]

# Further classifiers that a head runs while it trains, beside conv_seg.
SECOND_CLASSIFIERS = {"DAHead": ("pam_conv_seg", "cam_conv_seg"), "DDRHead": ("aux_cls_seg",)}


def read_model(row: Row, model: Any) -> Parts:
    """The seam of the last stage, and as auxiliaries the stages before it and the auxiliary heads."""
    if row.refusal:
        return Parts(refusal=row.refusal)
    stages, heads = named_heads(model, "decode_head"), named_heads(model, "auxiliary_head")
    last = list(stages)[-1]
    auxiliaries: dict[str, float] = {}
    for name, head in {**stages, **heads}.items():
        refusal = refusal_of(name, head)
        if refusal:
            return Parts(refusal=refusal)
        decode: Any = head.loss_decode
        losses: list[Any] = list(decode) if isinstance(decode, nn.ModuleList) else [decode]
        weights: list[float] = [loss.loss_weight for loss in losses if type(loss).__name__ in CROSS_ENTROPIES]
        if name != last:
            if not weights:
                kinds = " and ".join(type(loss).__name__ for loss in losses)
                return Parts(refusal=f"{name} must have a cross-entropy among its losses; it has {kinds}")
            auxiliaries[f"{name}.conv_seg"] = sum(weights)
        for second in second_classifiers(head):
            auxiliaries[f"{name}.{second}"] = weights[-1] if weights else 1.0
    head = stages[last]
    aligned = frozenset(
        f"{name}.{layer}"
        for name, one in {**stages, **heads}.items()
        for layer in ("conv_seg", *second_classifiers(one))
        if one.align_corners
    )
    return Parts(f"{last}.conv_seg", f"{last}.dropout", auxiliaries, head.ignore_index, aligned=aligned)


CROSS_ENTROPIES = ("CrossEntropyLoss", "OhemCrossEntropy")


def named_heads(model: nn.Module, name: str) -> dict[str, Any]:
    """The heads under a name, one or a list of them; none where the model has none."""
    held = dict(model.named_children()).get(name)
    if isinstance(held, nn.ModuleList):
        return {f"{name}.{index}": head for index, head in enumerate(held)}
    return {} if held is None else {name: held}


def refusal_of(name: str, head: Any) -> str:
    """Why a head cannot be part of a converted model; "" where it can."""
    known = {row.architecture: row.refusal for row in HEADS}
    for kind in type(head).__mro__:
        if kind.__name__ in known and not (kind.__name__ == "EncHead" and not head.use_se_loss):
            return f"{name} is {kind.__name__}: {known[kind.__name__]}"
    return ""


def second_classifiers(head: nn.Module) -> tuple[str, ...]:
    found = [SECOND_CLASSIFIERS[kind.__name__] for kind in type(head).__mro__ if kind.__name__ in SECOND_CLASSIFIERS]
    return found[0] if found else ()


class ConvertedSegmentor(ConvertedModel):
    """A converted segmentor of mmsegmentation; its Runner trains it as it would the original.

    `model(inputs, data_samples, mode="loss")` returns the named terms, and their weighted sum under the one name,
    "loss", that the Runner adds up.
    """

    def loss(self, *inputs: Any, labels: Any = None, data_samples: Any = None, **named: Any) -> Any:
        """`ConvertedModel.loss`, for a tensor of labels or for samples."""
        return super().loss(*inputs, labels=data_samples if labels is None else labels, **named)

    def extract_feat(self, inputs: Tensor) -> Any:
        """The features; where there are labels, the auxiliary heads run on them, which the original does by itself."""
        features = super().extract_feat(inputs)  # type: ignore[misc]
        call = call_of(self._cacseg_seam()) if is_converted(self) else None
        if call is not None and call.labels is not None:
            for head in named_heads(self, "auxiliary_head").values():
                head(features)
        return features

    def _cacseg_forward(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        given = {**dict(zip(("inputs", "data_samples", "mode"), inputs, strict=False)), **named}
        if given.get("mode") != "loss" or not is_converted(self):
            return super()._cacseg_forward(inputs, named)
        _, losses = self._cacseg_losses(self._cacseg_read_labels(given.get("data_samples")), (given["inputs"],), {})
        total = losses.pop("total")
        return {**losses, "loss": total}

    def _cacseg_read_labels(self, labels: Any) -> Tensor:
        if not isinstance(labels, list | tuple):
            return super()._cacseg_read_labels(labels)
        try:
            return torch.stack([sample.gt_sem_seg.data for sample in labels]).squeeze(1)
        except AttributeError as error:
            raise TypeError(
                "labels must be a torch.Tensor of integers [b, H, W] or samples with gt_sem_seg; got a list of "
                f"{', '.join(sorted({type(sample).__name__ for sample in labels}))}."
            ) from error
