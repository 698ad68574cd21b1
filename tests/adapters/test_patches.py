"""Convolutions in the place of patches: the same numbers as `F.unfold` and a 1x1 classifier, gradients too."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import cacseg
from cacseg.adapters.patches import geometry_of, patch_inverse_norms, patch_scores, patch_sums

CONVOLUTIONS = {
    "3x3": lambda: nn.Conv2d(4, 3, 3, padding=1),
    "3x5, strided, dilated": lambda: nn.Conv2d(4, 3, (3, 5), padding=(1, 0), stride=(2, 1), dilation=(1, 2)),
    "same": lambda: nn.Conv2d(4, 3, 3, padding="same", dilation=2, bias=False),
    "1x1, strided": lambda: nn.Conv2d(4, 3, 1, stride=2),
    "2x2, valid": lambda: nn.Conv2d(4, 3, 2, padding="valid"),
}
SETTINGS = {
    "tuned": {},
    "released": {"preset": "released"},
    "paper": {"preset": "paper"},
    "dot": {"context_similarity": "dot"},
    "threshold": {"confidence_threshold": 0.4},
    "detached": {"preset": "released", "detach_plain": True},
    "still": {"preset": "released", "detach_prototypes": True},
    "balanced": {"gradient_ratio": 0.5},
    "no context": {"context_design": "none"},
    "presence": {"presence": True},
    "presence, taught": {"presence": True, "presence_gradient": 2.0},
    "weights": {"context_design": "weight", "oracle_design": "weight"},
}


def make(conv="3x3", **arguments):
    torch.manual_seed(0)
    return cacseg.convert(nn.Sequential(CONVOLUTIONS[conv]()), seam="0", **arguments)[0]


def draw(b=2, dtype=torch.float64):
    torch.manual_seed(1)
    features, labels = torch.randn(b, 4, 9, 11, dtype=dtype), torch.randint(0, 3, (b, 18, 22))
    features[0, :, :3, :3] = 0.0  # a patch without any length
    labels[0] = labels[0].clamp(max=1)
    labels[:, :4] = 255
    return features.requires_grad_(), labels


def unfolded(seam, features, labels):
    return cacseg.ContextAwareClassifier.forward(seam, seam.patches(features), labels)


@pytest.mark.parametrize("conv", CONVOLUTIONS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_logits_and_gradients_are_those_of_patches(conv, setting):
    seam, (features, labels) = make(conv, **SETTINGS[setting]).double(), draw()
    if seam.presence_head is not None:
        nn.init.normal_(seam.presence_head.weight)
        assert seam.presence_head.in_features == 2 * 4  # however large the patches are
    results = []
    for classify in (seam._classify, lambda *given: unfolded(seam, *given)):
        outputs = classify(features, labels)
        inputs = [features, *seam.parameters()]
        gradients = torch.autograd.grad(seam.criterion(outputs, labels)["total"], inputs, allow_unused=True)
        results.append((outputs, gradients))
    for mine, truth in zip(*results, strict=True):
        torch.testing.assert_close(mine, truth, rtol=1e-10, atol=1e-12)
    found = results[0][0]
    expected = cacseg.functional.add_presence(found.context, found.presence, found.usual_odds)
    torch.testing.assert_close(seam._classify(features, None), expected)


def test_cosines_of_the_plain_classifier():
    seam, (features, labels) = make("same", plain_similarity="cosine").double(), draw()
    torch.testing.assert_close(seam._classify(features, labels), unfolded(seam, features, labels))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    seam, (features, labels) = make(), draw(dtype=torch.float32)
    truth = seam._classify(features, labels)
    half = seam.to(dtype)._classify(features.to(dtype), labels)
    assert {one.dtype for one in half[:3]} == {dtype}
    for mine, exact in zip(half[:3], truth[:3], strict=True):
        torch.testing.assert_close(mine.float(), exact, rtol=0.05, atol=0.1)


def test_autocast_keeps_sums_wide():
    seam, (features, labels) = make(), draw(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = seam._classify(features, labels)
    assert {one.dtype for one in outputs[:3]} == {torch.bfloat16}
    torch.testing.assert_close(outputs.context.float(), seam._classify(features, labels).context, rtol=0.05, atol=0.1)


def test_large_scores_saturate_in_float16():
    seam = make().half()
    features = torch.full((1, 4, 9, 11), 6e4, dtype=torch.float16)
    outputs = seam._classify(features, torch.zeros(1, 9, 11, dtype=torch.long))
    assert all(one.isfinite().all() for one in outputs[:3])


@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_sums_are_differentiable(conv):
    geometry, (features, _) = geometry_of(CONVOLUTIONS[conv]()), draw()
    shares = torch.rand(2, 3, *geometry.out_size(features.shape[2:]), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda f, s: patch_sums(f, s, geometry), (features, shares))


@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_presence_reads_the_middle_of_each_patch(conv):
    seam, (features, _) = make(conv, presence=True).double(), draw()
    nn.init.normal_(seam.presence_head.weight)
    kernel, stride, padding, dilation = geometry_of(CONVOLUTIONS[conv]())
    padded = F.pad(features, (padding[1], padding[1], padding[0], padding[0]))
    first = [k // 2 * d for k, d in zip(kernel, dilation, strict=True)]
    height, width = seam.replaced_logits(features).shape[2:]
    middle = padded[:, :, first[0] :: stride[0], first[1] :: stride[1]][:, :, :height, :width]
    expected = cacseg.ContextAwareClassifier.presence_logits(seam, middle)
    torch.testing.assert_close(seam.presence_logits(seam.patches(features)), expected)


@pytest.mark.parametrize("presence", [False, "relative"])
def test_what_is_kept_for_the_backward_pass_is_no_larger_than_the_maps(presence):
    """Of 3x3 patches it would be nine times the features."""
    seam, kept = make(presence=presence), []
    features, labels = torch.randn(2, 4, 30, 30, requires_grad=True), torch.randint(0, 3, (2, 30, 30))
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()) or tensor, lambda t: t):
        seam._classify(features, labels)
    assert max(kept) <= features.numel()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()) or tensor, lambda t: t):
        unfolded(seam, features, labels)
    assert max(kept) == 9 * features.numel()


@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_a_convolution_is_a_classifier_over_patches(conv):
    original = CONVOLUTIONS[conv]()
    model, features = cacseg.convert(nn.Sequential(original), seam="0"), torch.randn(2, 4, 9, 11)
    patches = model[0].patches(features)
    assert patches.shape[1] == original.weight[0].numel()
    torch.testing.assert_close(model[0].plain_logits(patches), original(features))
    assert torch.equal(model.plain(features), original(features))
    assert model(features).shape == original(features).shape


def test_channels_are_dropped_before_patches_are_made():
    torch.manual_seed(0)
    model = cacseg.convert(nn.Sequential(nn.Dropout2d(0.5), nn.Conv2d(4, 3, 3, padding=1)), seam="1")
    seam, (features, labels) = model[1], draw(dtype=torch.float32)
    answers = []
    for classify in (seam._classify, lambda *given: unfolded(seam, *given)):
        torch.manual_seed(1)
        answers.append(classify(features, labels))
    torch.manual_seed(1)
    torch.testing.assert_close(answers[0].plain, seam.replaced_logits(features))
    torch.testing.assert_close(answers[1], answers[0])


def test_the_pieces_against_unfold():
    (features, _), geometry = draw(), geometry_of(CONVOLUTIONS["3x5, strided, dilated"]())
    patches = F.unfold(features, (3, 5), (1, 2), (1, 0), (2, 1))
    size = geometry.out_size(features.shape[2:])
    rows = torch.randn(2, 3, 60, dtype=torch.float64)
    torch.testing.assert_close(patch_scores(features, rows, geometry).flatten(2), rows @ patches)
    shares = torch.rand(2, 3, *size, dtype=torch.float64)
    torch.testing.assert_close(patch_sums(features, shares, geometry), shares.flatten(2) @ patches.mT)
    lengths = patches.norm(dim=1, keepdim=True)
    inverse = torch.where(lengths > 0, 1 / lengths, 0.0)
    torch.testing.assert_close(patch_inverse_norms(features, geometry).flatten(2), inverse)
