"""Converted segmentors of mmsegmentation: auxiliary heads, and its own samples as labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cacseg.adapters.calls import call_of
from cacseg.adapters.converted import ConvertedModel, is_converted
from cacseg.adapters.supported import named_heads


class ConvertedSegmentor(ConvertedModel):
    """A converted segmentor of mmsegmentation, which its Runner trains like the original.

    `model(inputs, data_samples, mode="loss")` returns the named terms, and their weighted sum under the one name,
    "loss", that the Runner adds up.
    """

    def loss(self, *inputs: Any, labels: Any = None, data_samples: Any = None, **named: Any) -> Any:
        """`ConvertedModel.loss`, for a tensor of labels or for samples."""
        return super().loss(*inputs, labels=data_samples if labels is None else labels, **named)

    def extract_feat(self, inputs: Tensor) -> Any:
        """The features; with labels the auxiliary heads run on them too."""
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
        _, losses = self._cacseg_losses(given.get("data_samples"), (given["inputs"],), {})
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
