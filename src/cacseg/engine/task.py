"""The training and validation steps, for Lightning's Trainer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from cacseg.data.transforms import normalise
from cacseg.engine.graph import RecordedStep
from cacseg.engine.inference import Inference, mean_and_std, networks_of, output_names, predict_each, scale_images
from cacseg.engine.optim import make_optimiser, rate_at
from cacseg.engine.options import OptimiserOptions, ScheduleOptions, TrainingOptions
from cacseg.engine.resident import Draws
from cacseg.engine.stream import Batch, Picture
from cacseg.metrics import Scores, confusion, most_likely, scores
from cacseg.models import SegmentationModel


class SplitScores(NamedTuple):
    """What a validation found on some images."""

    images: int
    labelled: list[int]  # pixels of each class
    counts: dict[str, Tensor]  # the confusion matrix of each output
    outputs: dict[str, Scores]


class SegmentationTask(LightningModule):
    """A model with its training loss, optimiser, learning rates and validation scores.

    Args:
        model: its `mean`, `std` and `ignore_index` are used.
        optimiser, schedule, training: their settings. `training.graph` must be decided, not "auto".
        inference: how validation images are predicted.
    """

    def __init__(
        self,
        model: SegmentationModel,
        optimiser: OptimiserOptions,
        schedule: ScheduleOptions,
        training: TrainingOptions,
        inference: Inference | None = None,
    ) -> None:
        super().__init__()
        self.memory_format = torch.channels_last if training.channels_last else torch.contiguous_format
        self.model: SegmentationModel = model.to(memory_format=self.memory_format)  # type: ignore[call-overload]
        self.optimiser_options, self.schedule, self.training_options = optimiser, schedule, training
        self.inference = Inference() if inference is None else inference
        self.compiled_loss: Any = torch.compile(model.loss) if training.compile else None
        self.outputs = [name for name in output_names(model, oracle=True) if name != "mean"]
        model.train()
        for module in model.modules() if training.freeze_batch_norm else ():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()  # keeps its running statistics and normalises with them
        # Not buffers: averaged weights are swapped in and out for validation.
        self.counts: dict[str, dict[str, Tensor]] = {}  # by split and output
        self.images: dict[str, int] = {}
        self.scores: dict[str, SplitScores] = {}
        self.recorded: RecordedStep | None = None

    @property
    def mean_iou(self) -> float:
        """Of the last validation: of the model's own output on the validation split."""
        return self.scores["val"].outputs[self.model.default_output].mean_iou

    def rate_at(self, step: int) -> float:
        """The share of the learning rate at a step."""
        return rate_at(self.optimiser_options, self.schedule, step)

    def losses(self, batch: Batch | Draws) -> dict[str, Tensor]:
        """The named losses of a batch of bytes on the model's device, or of one that is still to be cut there."""
        loaders: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        crops: Batch = loaders.cut(batch) if isinstance(batch, Draws) else batch
        images = self.normalised(crops.images, crops.sizes)
        loss = self.model.loss if self.compiled_loss is None else self.compiled_loss
        return loss(images, crops.labels.long())

    def count(self, picture: Picture) -> dict[str, Tensor]:
        """The confusion matrix of each output, at the labels' size."""
        (height, width), n, ignored = picture.labels.shape[-2:], self.model.num_classes, self.model.ignore_index
        images = self.normalised(picture.images)
        shown = [scale_images(images, ratio) for ratio in self.inference.ratios]
        known = picture.labels.long() if "oracle" in self.outputs else None
        found = predict_each(networks_of(self.model, self.outputs), shown, (height, width), self.inference, known)
        return {
            name: confusion(most_likely(logits, 1), picture.labels, n, ignored)
            for name, logits in zip(self.outputs, found, strict=True)
        }

    def on_train_start(self) -> None:
        if self.training_options.graph is True:
            optimiser: Any = self.trainer.optimizers[0]
            self.recorded = RecordedStep(self.losses, optimiser, self.optimiser_options.clip, self.device)

    def training_step(self, batch: Batch | Draws) -> dict[str, Any]:
        if self.recorded is not None:
            terms = self.recorded(batch)
            return {"loss": terms["total"], "terms": terms}
        losses = self.losses(batch)
        return {"loss": losses["total"], "terms": {name: value.detach() for name, value in losses.items()}}

    # A recorded step has its backward pass and its optimiser within.

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        if self.recorded is None:
            super().backward(loss, *args, **kwargs)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        if self.recorded is None:
            super().optimizer_zero_grad(epoch, batch_idx, optimizer)

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Callable[[], Any] | None = None
    ) -> None:
        if self.recorded is None:
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        elif optimizer_closure is not None:
            optimizer_closure()

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """After unscaling, where gradients are scaled. Lightning's own refuses fused optimisers."""
        clip = self.optimiser_options.clip
        if self.recorded is None and clip is not None:
            nn.utils.clip_grad_norm_(list(self.model.parameters()), clip)

    def on_validation_epoch_start(self) -> None:
        n = self.model.num_classes
        empty = partial(torch.zeros, n, n, dtype=torch.int64, device=self.device)
        splits: list[str] = self.trainer.datamodule.validated  # type: ignore[attr-defined]
        self.counts = {split: {name: empty() for name in self.outputs} for split in splits}
        self.images = dict.fromkeys(splits, 0)

    def validation_step(self, picture: Picture, batch_idx: int, dataloader_idx: int = 0) -> None:
        split = list(self.counts)[dataloader_idx]
        self.images[split] += len(picture.labels)
        for name, found in self.count(picture).items():
            self.counts[split][name] += found

    def on_validation_epoch_end(self) -> None:
        """The scores of whole splits: counts, unlike scores, add up over processes."""
        self.scores = {split: self._split_scores(split) for split in self.counts}

    def _split_scores(self, split: str) -> SplitScores:
        counts = {name: self._sum(found).cpu() for name, found in self.counts[split].items()}
        images = int(self._sum(torch.tensor(self.images[split], device=self.device)))
        labelled = counts["plain"].sum(1).tolist()
        return SplitScores(images, labelled, counts, {name: scores(found) for name, found in counts.items()})

    def _sum(self, found: Tensor) -> Tensor:
        return self.trainer.strategy.reduce(found, reduce_op="sum")

    def configure_optimizers(self) -> Any:
        # A fused optimiser would unscale gradients within, after they are clipped.
        fused = self.device.type == "cuda" and self.training_options.precision != "fp16"
        optimiser = make_optimiser(self.optimiser_options, self.model, fused=fused)
        return {
            "optimizer": optimiser,
            "lr_scheduler": {"scheduler": LambdaLR(optimiser, self.rate_at), "interval": "step"},
        }

    def normalised(self, images: Tensor, sizes: Tensor | None = None) -> Tensor:
        """Bytes as the model takes them."""
        mean, std = mean_and_std(tuple(self.model.mean), tuple(self.model.std), images.device)
        return normalise(images, mean, std, sizes).contiguous(memory_format=self.memory_format)
