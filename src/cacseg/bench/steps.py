"""What is timed: the loss from the features on, a whole training step, inference; and the baselines beside them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cacseg import ops
from cacseg.classifier import ContextAwareClassifier
from cacseg.engine.graph import WARM_UP_CALLS, Replayed
from cacseg.losses import ContextLoss
from cacseg.models import create_model
from cacseg.models.levels import PyramidConvNormAct
from cacseg.models.model import SegmentationModel
from cacseg.outputs import ContextLogits
from cacseg.presets import DEFAULT, PRESETS, PresetName

Mode = Literal["eager", "graph", "compile", "compiled-graph"]
MODES = ("eager", "graph", "compile", "compiled-graph")
Steps = dict[str, Callable[[], object]]
PLAIN, OUR_CROSS_ENTROPY, CONTEXT, LOOPED = "plain", "plain, upsampled_cross_entropy", "context", "looped"


def loss_steps(
    device: torch.device,
    dtype: torch.dtype,
    *,
    batch: int = 4,
    classes: int = 150,
    channels: int = 512,
    size: int = 128,
    ratio: int = 4,
    mode: Mode = "eager",
    looped: bool = True,
) -> Steps:
    """Classifier and loss, forward and backward from the features.

    Rows: "plain" (conv, F.interpolate, F.cross_entropy), "plain, upsampled_cross_entropy" (conv and that function),
    each preset, and "looped".
    """
    torch.manual_seed(0)
    features = torch.randn(batch, channels, size, size, device=device, dtype=dtype, requires_grad=True)
    labels = torch.randint(0, classes, (batch, size * ratio, size * ratio), device=device)  # every class is present
    conv = nn.Conv2d(channels, classes, 1).to(device)
    losses: dict[str, Callable[[], Tensor]] = {
        PLAIN: lambda: usual_loss(conv(features), labels),
        OUR_CROSS_ENTROPY: lambda: ops.upsampled_cross_entropy(conv(features), labels, ignore_index=255),
    }
    parameters = [features, *conv.parameters()]
    for preset in sorted(PRESETS, key=lambda name: name != "released"):
        classifier, criterion = ContextAwareClassifier.from_conv(conv, preset=preset), ContextLoss()
        losses[preset] = partial(_our_loss, classifier, criterion, features, labels)
        parameters += classifier.parameters()
        if preset == "released" and looped and mode == "eager":
            losses[LOOPED] = partial(looped_loss, classifier, features, labels)

    def clear() -> None:
        for one in parameters:
            one.grad = None

    if mode.startswith("compile"):
        losses = {name: torch.compile(loss, dynamic=False) for name, loss in losses.items()}
    steps = {name: _backward_step(loss, device, dtype, clear) for name, loss in losses.items()}
    return {name: _in_mode(step, mode, device) for name, step in steps.items()}


def train_steps(
    model_name: str,
    device: torch.device,
    dtype: torch.dtype,
    *,
    batch: int = 4,
    classes: int = 150,
    size: int = 512,
    auxiliary: bool = True,
    preset: PresetName = DEFAULT,
) -> Steps:
    """A whole training step with AdamW, the auxiliary head's loss included.

    Rows: "plain" (F.interpolate and F.cross_entropy), "plain, upsampled_cross_entropy" (the same model with that
    function in both losses), "context".
    """
    steps: Steps = {}
    images = torch.randn(batch, 3, size, size, device=device)
    labels = torch.randint(0, classes, (batch, size, size), device=device)
    for row in (PLAIN, OUR_CROSS_ENTROPY, CONTEXT):
        torch.manual_seed(0)
        classifier: Literal["plain", "context"] = "context" if row == CONTEXT else "plain"
        model = create_model(model_name, classes, classifier, preset=preset, auxiliary=auxiliary).to(device).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=6e-5)
        loss = partial(usual_model_loss if row == PLAIN else _own_loss, model, images, labels)
        steps[row] = _backward_step(loss, device, dtype, optimizer.zero_grad, optimizer.step)
    return steps


def _own_loss(model: SegmentationModel, images: Tensor, labels: Tensor) -> Tensor:
    return model.loss(images, labels)["total"]


def usual_model_loss(model: SegmentationModel, images: Tensor, labels: Tensor) -> Tensor:
    """Of a plain model, as most code has it: `usual_loss` of its logits, and of the auxiliary head's."""
    features, auxiliary = model._decode(images, with_auxiliary=True)
    total = usual_loss(model.classifier(features), labels)
    return total if auxiliary is None else total + model.auxiliary_weight * usual_loss(auxiliary, labels)


def use_usual_pyramid(model: nn.Module) -> None:
    """In place: levels are concatenated before they are convolved, as most code has it."""
    for module in model.modules():
        if isinstance(module, PyramidConvNormAct):
            module.always_joined = True


def _backward_step(
    loss: Callable[[], Tensor],
    device: torch.device,
    dtype: torch.dtype,
    clear: Callable[[], object],
    update: Callable[[], object] = lambda: None,
) -> Callable[[], object]:
    def step() -> None:
        clear()
        with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
            value = loss()
        value.backward()
        update()

    return step


def inference_steps(
    model_name: str,
    device: torch.device,
    dtype: torch.dtype,
    *,
    batch: int = 1,
    classes: int = 150,
    size: int = 512,
    mode: Mode = "eager",
    preset: PresetName = DEFAULT,
) -> Steps:
    """Logits at the images' size, weights in `dtype`, of a "plain" and a "context" model."""
    images = torch.randn(batch, 3, size, size, device=device, dtype=dtype)
    steps: Steps = {}
    kinds: tuple[Literal["plain", "context"], ...] = ("plain", "context")
    for row in kinds:
        torch.manual_seed(0)
        model = create_model(model_name, classes, row, preset=preset).to(device, dtype).eval()
        infer = partial(model, images)
        # For this size alone: a second size would make torch compile for any, which is slower.
        run = torch.compile(infer, dynamic=False) if mode.startswith("compile") else infer
        steps[row] = _in_mode(torch.inference_mode()(run), mode, device)
    return steps


def _in_mode(step: Callable[[], object], mode: Mode, device: torch.device) -> Callable[[], object]:
    """With "graph" and "compiled-graph", the step as a CUDA graph: what the device needs, without the host."""
    if not mode.endswith("graph"):
        return step
    if device.type != "cuda":
        raise ValueError(f"mode {mode!r} needs a CUDA device; got {device}. Use --mode eager.")
    replayed = Replayed(step, device)
    for _ in range(WARM_UP_CALLS + 1):  # up to its recording
        replayed()
    return replayed


def _our_loss(classifier: ContextAwareClassifier, criterion: ContextLoss, features: Tensor, labels: Tensor) -> Tensor:
    outputs = classifier(features, labels)
    assert isinstance(outputs, ContextLogits)
    return criterion(outputs, labels)["total"]


def usual_loss(logits: Tensor, labels: Tensor, align_corners: bool = False) -> Tensor:
    """F.interpolate to the labels' size and F.cross_entropy, as most segmentation models do."""
    full = F.interpolate(logits, size=labels.shape[1:], mode="bilinear", align_corners=align_corners)
    return F.cross_entropy(full, labels, ignore_index=255)


def looped_loss(classifier: ContextAwareClassifier, features: Tensor, labels: Tensor) -> Tensor:
    """The released preset, one class at a time; equal to `ContextLoss` of such a classifier to rounding."""
    weight = classifier.weight.flatten(1)
    b, _, h, w = features.shape
    directions = F.normalize(features, dim=1)
    small = F.interpolate(labels[:, None].float(), size=(h, w), mode="nearest")[:, 0].long()
    classes = [k for k in small.unique().tolist() if k != 255]

    plain = F.conv2d(features, classifier.weight, classifier.bias)
    share = plain.softmax(1).flatten(2)
    share = share / (share.sum(-1, keepdim=True) + 1e-12)
    means = share @ features.flatten(2).transpose(1, 2)
    assert classifier.context_projector is not None
    assert classifier.oracle_projector is not None
    rows = classifier.context_projector(torch.cat([means, weight.expand(b, -1, -1).to(means.dtype)], -1))
    context = classifier.scale * (F.normalize(rows, dim=-1) @ directions.flatten(2)).view(b, -1, h, w)
    prototypes = weight.detach().clone()
    for k in classes:
        mask = (small == k)[:, None]
        mean = (mask * features).sum((0, 2, 3)) / mask.sum()
        here = F.one_hot(torch.tensor(k), len(weight)).to(features)[:, None]
        prototypes = prototypes * (1 - here) + mean * here
    rows = F.normalize(classifier.oracle_projector(torch.cat([prototypes, weight], -1)), dim=-1)
    oracle = classifier.scale * F.conv2d(directions, rows[:, :, None, None])

    soft = oracle.detach().softmax(1)
    hard = F.one_hot(small.clamp_max(len(weight) - 1), len(weight)).permute(0, 3, 1, 2)
    cost = -((0.5 * soft + 0.5 * hard) * context.log_softmax(1)).sum(1)
    entropy = -(soft * (soft + 1e-12).log()).sum(1)
    terms = []
    for k in classes:
        weights = entropy * (small == k)
        terms.append((weights * cost).sum() / weights.sum())
    full = F.interpolate(context, size=labels.shape[1:], mode="bilinear", align_corners=False)
    return (
        usual_loss(plain, labels, align_corners=True)
        + F.cross_entropy(full, labels, ignore_index=255, reduction="none").mean()
        + usual_loss(oracle, labels, align_corners=True)
        + torch.stack(terms).mean()
    )
