"""A packed batch gives what the images give one by one, and what the dense form gives on equal sizes."""

from functools import partial

import pytest
import torch

from cacseg import functional
from cacseg.functional import packed

SIZES = [5, 0, 1, 2300, 7]  # an empty cloud, a single point, one longer than two blocks


def draw(sizes, d=4, n=3, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(sum(sizes), d, generator=generator, dtype=dtype)
    logits = torch.randn(sum(sizes), n, generator=generator, dtype=dtype) * 2
    labels = torch.randint(0, n, (sum(sizes),), generator=generator)
    labels[::3] = 255
    weight = torch.randn(n, d, generator=generator, dtype=dtype)
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    return features, logits, labels, weight, offsets


def cut(tensor, offsets):
    """Each image as a dense batch of one, [1, c, size]."""
    return [tensor[a:b].T[None] for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]


def to_packed(tensor):
    """[b, c, size] -> [b * size, c]."""
    return tensor.transpose(1, 2).flatten(0, 1)


def test_prototypes_of_ragged_images():
    features, logits, labels, weight, offsets = draw(SIZES)
    for epsilon in (0.0, 0.6):
        ours = functional.context_prototypes(features, logits, offsets=offsets, epsilon=epsilon)
        for i, (f, p) in enumerate(zip(cut(features, offsets), cut(logits, offsets), strict=True)):
            truth = functional.context_prototypes(f, p, epsilon=epsilon) if f.numel() else torch.zeros(1, 3, 4).double()
            torch.testing.assert_close(ours[i : i + 1], truth)
    ours = functional.oracle_prototypes(features, labels, weight, offsets=offsets)
    for i, (f, y) in enumerate(zip(cut(features, offsets), cut(labels[:, None], offsets), strict=True)):
        truth = functional.oracle_prototypes(f, y[:, 0], weight) if f.numel() else weight[None]
        torch.testing.assert_close(ours[i : i + 1], truth)
    pooled = functional.oracle_prototypes(features, labels, weight, offsets=offsets, scope="batch")
    torch.testing.assert_close(pooled, functional.oracle_prototypes(features.T[None], labels[None], weight))


def test_logits_of_ragged_images():
    features, _, _, _, offsets = draw(SIZES)
    classifier = torch.randn(len(SIZES), 3, 4).double()
    for function in (functional.cosine_logits, functional.dot_logits):
        ours = function(features, classifier, offsets=offsets)
        parts = [
            to_packed(function(f, classifier[i : i + 1])) for i, f in enumerate(cut(features, offsets)) if f.numel()
        ]
        torch.testing.assert_close(ours, torch.cat(parts))
        shared = function(features, classifier[:1], offsets=offsets)
        torch.testing.assert_close(shared, to_packed(function(features.T[None], classifier[:1])))


@pytest.mark.parametrize("size", [6, 1500])
@pytest.mark.parametrize("scope", ["image", "batch"])
def test_equal_sizes_give_the_dense_result(size, scope):
    features, logits, labels, weight, offsets = draw([size] * 3)
    dense_features, dense_logits = (x.view(3, size, -1).transpose(1, 2) for x in (features, logits))
    dense_labels = labels.view(3, size)
    torch.testing.assert_close(
        functional.context_prototypes(features, logits, offsets=offsets),
        functional.context_prototypes(dense_features, dense_logits),
    )
    torch.testing.assert_close(
        functional.oracle_prototypes(features, labels, weight, offsets=offsets, scope=scope),
        functional.oracle_prototypes(dense_features, dense_labels, weight, scope=scope),
    )
    oracle = logits.roll(1, 0)
    dense_oracle = oracle.view(3, size, -1).transpose(1, 2)
    for name in ("vanilla", "entropy", "classwise", "classwise_entropy"):
        function = partial(functional.distillation, form=name)
        ours = function(logits, oracle, labels, offsets=offsets, scope=scope, soft_target_weight=0.5)
        truth = function(dense_logits, dense_oracle, dense_labels, scope=scope, soft_target_weight=0.5)
        torch.testing.assert_close(ours, truth)


def test_gradients():
    features, logits, _, _, offsets = draw([3, 2])
    features, logits = features.requires_grad_(), logits.requires_grad_()
    classifier = torch.randn(2, 3, 4).double().requires_grad_()
    pool = lambda f, p: functional.context_prototypes(f, p, offsets=offsets)  # noqa: E731
    torch.autograd.gradcheck(pool, (features, logits))
    score = lambda f, a: functional.cosine_logits(f, a, offsets=offsets)  # noqa: E731
    torch.autograd.gradcheck(score, (features, classifier))


def test_blocks_hold_every_row_once_and_one_image_each():
    offsets = torch.tensor([0, 5, 5, 6, 2306, 2313])
    blocks = packed.cut_into_blocks(offsets, 2313, block=64)
    assert blocks.row[blocks.real.bool()].sort().values.tolist() == list(range(2313))
    assert torch.equal(blocks.row.flatten()[blocks.place], torch.arange(2313))
    image = packed.image_of_row(offsets, 2313)
    for row, real, owner in zip(blocks.row, blocks.real.bool(), blocks.image, strict=True):
        assert (image[row[real]] == owner).all()


def test_wrong_offsets_are_refused():
    features, logits, _, _, offsets = draw([3, 2])
    with pytest.raises(ValueError, match=r"end at N = 5; got \[0, 3, 4\]"):
        functional.context_prototypes(features, logits, offsets=torch.tensor([0, 3, 4]))
    with pytest.raises(ValueError, match=r"got \[3, 5\].*F.pad\(ends, \(1, 0\)\)"):
        functional.context_prototypes(features, logits, offsets=offsets[1:])
    with pytest.raises(TypeError, match=r"offsets must be a torch.Tensor of integers; got torch.float32"):
        functional.context_prototypes(features, logits, offsets=offsets.float())
    with pytest.raises(ValueError, match=r"packed features \(offsets given\) must be \[N, d\]; got shape \(1, 4, 5\)"):
        functional.context_prototypes(features.T[None], logits, offsets=offsets)
