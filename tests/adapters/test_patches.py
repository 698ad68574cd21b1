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
    "binary": lambda: nn.Conv2d(4, 1, 3, padding=1),
}
SETTINGS = {
    "tuned": {},
    "released": {"preset": "released"},
    "paper": {"preset": "paper"},
    "dot": {"context_similarity": "dot"},
    "epsilon": {"prototype_epsilon": 0.5},
    "no context": {"context_design": "none"},
    "weights": {"context_design": "weight", "oracle_design": "weight"},
}


def make(conv="3x3", **arguments):
    torch.manual_seed(0)
    return cacseg.convert(nn.Sequential(CONVOLUTIONS[conv]()), seam="0", **arguments)[0]


def draw(b=2, dtype=torch.float64, classes=3, size=(18, 22)):
    torch.manual_seed(1)
    features, labels = torch.randn(b, 4, 9, 11, dtype=dtype), torch.randint(0, classes, (b, *size))
    features[0, :, :3, :3] = 0.0  # a patch without any length
    labels[0] = labels[0].clamp(max=1)
    labels[:, :4] = 255
    return features.requires_grad_(), labels


def classify(seam, features, labels):
    return cacseg.ContextAwareClassifier.forward(seam, features, labels)


def over_patches(seam, **arguments):
    """A 1x1 classifier with the values of a seam, for what `F.unfold` makes."""
    values = {name: value.detach() for name, value in seam.state_dict().items()}
    values["weight"] = values["weight"].flatten(1)[..., None, None]
    n, channels = values["weight"].shape[:2]
    classifier = cacseg.ContextAwareClassifier(channels, n, bias="bias" in values, **arguments).to(seam.weight.dtype)
    classifier.load_state_dict(values)
    return classifier.train(seam.training)


@pytest.mark.parametrize("conv", CONVOLUTIONS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_logits_and_gradients_are_those_of_patches(conv, setting):
    seam = make(conv, **SETTINGS[setting]).double()
    truth = over_patches(seam, **SETTINGS[setting])
    size = [2 * one for one in seam.geometry.out_size((9, 11))]
    features, labels = draw(classes=max(2, seam.num_classes), size=size)
    results = []
    for classifier, values in ((seam, features), (truth, seam.unfold(features))):
        outputs = classify(classifier, values, labels)
        inputs = [features, *(one for _, one in sorted(classifier.named_parameters()))]
        gradients = torch.autograd.grad(seam.criterion(outputs, labels)["total"], inputs, allow_unused=True)
        results.append((outputs[:4], [None if one is None else one.flatten() for one in gradients]))
    for mine, expected in zip(*results, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(seam(features), truth(seam.unfold(features)))
    torch.testing.assert_close(seam.plain_logits(features), truth.plain_logits(seam.unfold(features)))
    if seam.oracle_design != "none":
        expected = truth.oracle_logits(seam.unfold(features), labels)
        torch.testing.assert_close(seam.oracle_logits(features, labels), expected)


def test_cosines_of_the_plain_classifier():
    seam, (features, labels) = make("same", plain_similarity="cosine").double(), draw()
    truth = over_patches(seam, plain_similarity="cosine")
    torch.testing.assert_close(classify(seam, features, labels)[:4], truth(seam.unfold(features), labels)[:4])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    seam, (features, labels) = make(), draw(dtype=torch.float32)
    truth = classify(seam, features, labels)
    half = classify(seam.to(dtype), features.to(dtype), labels)
    assert {one.dtype for one in half[:3]} == {dtype}
    for mine, exact in zip(half[:3], truth[:3], strict=True):
        torch.testing.assert_close(mine.float(), exact, rtol=0.05, atol=0.1)


def test_autocast_keeps_sums_wide():
    seam, (features, labels) = make(), draw(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = classify(seam, features, labels)
    assert {one.dtype for one in outputs[:3]} == {torch.bfloat16}
    exact = classify(seam, features, labels).context
    torch.testing.assert_close(outputs.context.float(), exact, rtol=0.05, atol=0.1)


def test_large_scores_saturate_in_float16():
    seam = make().half()
    features = torch.full((1, 4, 9, 11), 6e4, dtype=torch.float16)
    outputs = classify(seam, features, torch.zeros(1, 9, 11, dtype=torch.long))
    assert all(one.isfinite().all() for one in outputs[:3])


@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_sums_are_differentiable(conv):
    geometry, (features, _) = geometry_of(CONVOLUTIONS[conv]()), draw()
    shares = torch.rand(2, 3, *geometry.out_size(features.shape[2:]), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda f, s: patch_sums(f, s, geometry), (features, shares))


def test_what_is_kept_for_the_backward_pass_is_no_larger_than_the_maps():
    """Of 3x3 patches it would be nine times the features."""
    seam, kept = make(), []
    features, labels = torch.randn(2, 4, 30, 30, requires_grad=True), torch.randint(0, 3, (2, 30, 30))
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()) or tensor, lambda t: t):
        classify(seam, features, labels)
    assert max(kept) <= features.numel()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()) or tensor, lambda t: t):
        over_patches(seam)(seam.unfold(features), labels)
    assert max(kept) == 9 * features.numel()


@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_a_convolution_is_a_classifier_over_patches(conv):
    original = CONVOLUTIONS[conv]()
    model, features = cacseg.convert(nn.Sequential(original), seam="0"), torch.randn(2, 4, 9, 11)
    assert model[0].unfold(features).shape[1] == original.weight[0].numel()
    assert model[0].in_channels == 4
    torch.testing.assert_close(model[0].plain_logits(features), original(features))
    assert torch.equal(model.plain(features), original(features))
    assert model(features).shape == original(features).shape


def test_features_of_other_channels():
    with pytest.raises(ValueError, match="features must have 4 channels in dimension 1; got shape"):
        make()(torch.randn(2, 5, 9, 11))


@pytest.mark.parametrize("arguments", [{}, {"dropout": 0.5}])
def test_channels_are_dropped_before_patches_are_made(arguments):
    torch.manual_seed(0)
    layers = [nn.Identity() if arguments else nn.Dropout2d(0.5), nn.Conv2d(4, 3, 3, padding=1)]
    seam = cacseg.convert(nn.Sequential(*layers), seam="1", **arguments)[1]
    features, labels = draw(dtype=torch.float32)
    compiled = torch.compile(lambda *given: classify(seam, *given), backend="eager")
    answers = []
    for run in (lambda *given: classify(seam, *given), compiled):  # compilers get the patches
        torch.manual_seed(1)
        answers.append(run(features, labels)[:4])
    torch.manual_seed(1)
    torch.testing.assert_close(answers[0][1], seam.replaced_logits(features))
    torch.testing.assert_close(answers[1], answers[0])
    assert not torch.allclose(answers[0][1], seam.eval().replaced_logits(features))


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
