"""The training and validation steps, for Lightning's Trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from cacseg.data.transforms import normalise
from cacseg.engine._lightning import LightningModule
from cacseg.engine.inference import Inference, predict
from cacseg.engine.stream import Batch, Picture
from cacseg.metrics import Scores, confusion, scores
from cacseg.models import SegmentationModel


class SegmentationTask(LightningModule):
    """A model with its training loss, optimiser, learning rates and validation scores.

    Args:
        model: its `mean`, `std` and `ignore_index` are used.
        make_optimiser: the optimiser of a model.
        rate_at: the share of the learning rate at a step, 0 being the first.
        inference: how validation images are predicted.
        channels_last: the memory format of images and weights; quicker on GPUs with half precision.
        compile: whether `torch.compile` makes the training step.
        freeze_batch_norm: normalise with the running statistics and leave them as they are; weights still learn.
    """

    def __init__(
        self,
        model: SegmentationModel,
        make_optimiser: Callable[[nn.Module], torch.optim.Optimizer],
        rate_at: Callable[[int], float],
        inference: Inference | None = None,
        *,
        channels_last: bool = False,
        compile: bool = False,
        freeze_batch_norm: bool = False,
    ) -> None:
        super().__init__()
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self.model: SegmentationModel = model.to(memory_format=self.memory_format)  # type: ignore[call-overload]
        self.make_optimiser = make_optimiser
        self.rate_at = rate_at
        self.inference = Inference() if inference is None else inference
        self.compiled_loss: Any = torch.compile(model.loss) if compile else None
        begin_training(model, freeze_batch_norm=freeze_batch_norm)
        # Not buffers: averaged weights are swapped in and out for validation, buffers with them.
        self.counts: Tensor | None = None
        self.mean_and_std: Tensor | None = None
        self.scores: Scores | None = None

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """The named losses of a batch of bytes on the model's device."""
        images = self._normalised(batch.images, batch.sizes)
        loss = self.model.loss if self.compiled_loss is None else self.compiled_loss
        return loss(images, batch.labels.long())

    def predicted(self, picture: Picture) -> Tensor:
        """The class of each pixel, at the labels' size."""
        height, width = picture.labels.shape[-2:]
        found = predict(self.model, self._normalised(picture.images, None), (height, width), self.inference)
        return found.argmax(1)

    def training_step(self, batch: Batch) -> dict[str, Any]:
        losses = self.losses(batch)
        return {"loss": losses["total"], "terms": {name: value.detach() for name, value in losses.items()}}

    def on_validation_epoch_start(self) -> None:
        self.counts = torch.zeros(self.model.num_classes, self.model.num_classes, dtype=torch.int64, device=self.device)

    def validation_step(self, picture: Picture) -> None:
        assert self.counts is not None
        self.counts += confusion(
            self.predicted(picture), picture.labels, self.model.num_classes, self.model.ignore_index
        )

    def on_validation_epoch_end(self) -> None:
        """The scores of the whole split: counts, unlike scores, add up over processes."""
        assert self.counts is not None
        self.scores = scores(self.trainer.strategy.reduce(self.counts, reduce_op="sum").cpu())

    def configure_optimizers(self) -> Any:
        optimiser = self.make_optimiser(self.model)
        return {
            "optimizer": optimiser,
            "lr_scheduler": {"scheduler": LambdaLR(optimiser, self.rate_at), "interval": "step"},
        }

    def _normalised(self, images: Tensor, sizes: Tensor | None) -> Tensor:
        # Cached on the device: sending six numbers in each step would wait for a GPU.
        if self.mean_and_std is None or self.mean_and_std.device != images.device:
            self.mean_and_std = torch.tensor([self.model.mean, self.model.std], device=images.device)
        mean, std = self.mean_and_std
        return normalise(images, mean, std, sizes).contiguous(memory_format=self.memory_format)


def begin_training(model: nn.Module, *, freeze_batch_norm: bool = False) -> None:
    """In training mode; frozen normalisations keep their running statistics and normalise with them."""
    model.train()
    if freeze_batch_norm:
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
