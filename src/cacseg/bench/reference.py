"""Baselines: the usual loss, and the method as its authors' code computes it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from cacseg.classifier import ContextAwareClassifier


def usual_loss(logits: Tensor, labels: Tensor, align_corners: bool = False) -> Tensor:
    """F.interpolate to the labels' size and F.cross_entropy, as most segmentation models do."""
    full = F.interpolate(logits, size=labels.shape[1:], mode="bilinear", align_corners=align_corners)
    return F.cross_entropy(full, labels, ignore_index=255)


def looped_context(classifier: ContextAwareClassifier, features: Tensor) -> tuple[Tensor, Tensor]:
    """Context and plain logits with every probability and every normalised feature stored."""
    weight = classifier.weight.flatten(1)
    b, _, h, w = features.shape
    plain = F.conv2d(features, classifier.weight, classifier.bias)
    share = plain.softmax(1).flatten(2)
    share = share / (share.sum(-1, keepdim=True) + 1e-12)
    means = share @ features.flatten(2).transpose(1, 2)
    assert classifier.context_projector is not None
    rows = classifier.context_projector(torch.cat([means, weight.expand(b, -1, -1).to(means.dtype)], -1))
    directions = F.normalize(features, dim=1).flatten(2)
    return classifier.scale * (F.normalize(rows, dim=-1) @ directions).view(b, -1, h, w), plain


def looped_loss(classifier: ContextAwareClassifier, features: Tensor, labels: Tensor) -> Tensor:
    """The released preset, one class at a time; equal to `ContextLoss` of such a classifier to rounding."""
    weight = classifier.weight.flatten(1)
    h, w = features.shape[2:]
    directions = F.normalize(features, dim=1)
    small = F.interpolate(labels[:, None].float(), size=(h, w), mode="nearest")[:, 0].long()
    classes = [k for k in small.unique().tolist() if k != 255]

    context, plain = looped_context(classifier, features)
    assert classifier.oracle_projector is not None
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
