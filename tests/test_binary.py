"""Binary segmentation: one channel outside, background and foreground inside."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import cacseg
import naive
from cacseg.presets import PRESETS
from projectors import wake

B, D, SIZE = 2, 8, (4, 6)


def make(kind=nn.Conv2d, **arguments):
    torch.manual_seed(0)
    conv = (kind(D, 1) if kind is nn.Linear else kind(D, 1, 1)).double()
    return conv, wake(cacseg.ContextAwareClassifier.from_conv(conv, **arguments))


def draw(full=SIZE):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(B, D, *SIZE, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 2, (B, *full), generator=generator)
    labels[:, 0] = 255
    return features, labels


def test_one_row_of_parameters_and_one_channel():
    conv, classifier = make()
    features, labels = draw()
    assert classifier.weight.shape == (1, D, 1, 1)
    assert classifier.bias.shape == (1,)
    for logits in (
        classifier(features),
        classifier.plain_logits(features),
        classifier.oracle_logits(features, labels),
        *classifier.both_logits(features),
    ):
        assert logits.shape == (B, 1, *SIZE)
    outputs = classifier(features, labels)
    assert outputs.plain.shape == outputs.context.shape == outputs.oracle.shape == (B, 2, *SIZE)
    torch.testing.assert_close(outputs.context[:, 1:] - outputs.context[:, :1], classifier(features))
    torch.testing.assert_close(classifier.plain_logits(features), conv(features))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
def test_plain_logits_are_the_convolutions_to_the_bit(bias, dtype):
    """Where sums round, their order matters, which is not ours; halving and doubling never do."""
    generator = torch.Generator().manual_seed(0)
    conv = nn.Conv2d(D, 1, 1, bias=bias, dtype=dtype)
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.copy_(torch.randint(-99, 99, parameter.shape, generator=generator) / 64)
    features = (torch.randint(-999, 999, (B, D, *SIZE), generator=generator) / 32).to(dtype)
    assert torch.equal(cacseg.ContextAwareClassifier.from_conv(conv).plain_logits(features), conv(features))


@pytest.mark.parametrize("preset", PRESETS)
def test_losses_are_those_of_two_classes(preset):
    """Against loops over pixels, and PyTorch's binary cross-entropy."""
    conv, classifier = make(preset=preset)
    features, labels = draw()
    losses = cacseg.ContextLoss()(classifier(features, labels), labels)
    options, weight = PRESETS[preset], conv.weight.detach().flatten(1)
    rows = torch.cat([-weight / 2, weight / 2])
    plain = F.conv2d(features, rows[..., None, None], torch.cat([-conv.bias / 2, conv.bias / 2])).detach()

    def score(prototypes, projector):
        fixed = rows.expand_as(prototypes)
        made = projector(torch.cat([prototypes, fixed], dim=-1))
        made = made + fixed if preset == "tuned" else made
        return naive.cosine_logits(features, made.expand(B, -1, -1), 15.0)

    pooled = options.oracle_scope == "batch"
    context = score(naive.context_prototypes(features, plain), classifier.context_projector)
    oracle = score(naive.oracle_prototypes(features, labels, rows, pooled), classifier.oracle_projector)
    valid, mask = labels != 255, (labels == 1).double()
    for name, logits in (("plain", plain), ("context", context), ("oracle", oracle)):
        costs = F.binary_cross_entropy_with_logits((logits[:, 1] - logits[:, 0])[valid], mask[valid], reduction="sum")
        is_over_all = name == "context" and options.context_average == "all"
        torch.testing.assert_close(losses[name], costs / (labels.numel() if is_over_all else valid.sum()))
    truth = naive.distillation(
        context,
        oracle,
        labels,
        by_class=True,
        entropy_logits=oracle,
        pool_batch=options.distillation_scope == "batch",
        soft_target_weight=options.soft_target_weight,
    )
    torch.testing.assert_close(losses["distillation"], torch.tensor(truth, dtype=torch.float64))
    if options.overlap_weight:
        truth = torch.tensor(naive.overlap_loss(context, labels), dtype=torch.float64)
        torch.testing.assert_close(losses["overlap"], truth)


@pytest.mark.parametrize(
    "read",
    [
        lambda labels: labels[:, None],
        lambda labels: labels.to(torch.uint8),
        lambda labels: labels.float(),  # 255 is ignored in floats too
        lambda labels: labels[:, None].half(),
        lambda labels: torch.where(labels == 1, 0.7, torch.where(labels == 0, 0.3, 255.0)),
    ],
)
def test_labels_may_be_masks(read):
    classifier, (features, labels) = make()[1], draw(full=(8, 12))
    expected = cacseg.ContextLoss()(classifier(features, labels), labels)
    given = read(labels)
    torch.testing.assert_close(cacseg.ContextLoss()(classifier(features, given), given), expected)


def test_bools():
    classifier, (features, labels) = make()[1], draw()
    labels = labels.clamp(max=1)
    expected, mask = cacseg.ContextLoss()(classifier(features, labels), labels), labels.bool()[:, None]
    torch.testing.assert_close(cacseg.ContextLoss()(classifier(features, mask), mask), expected)


def test_labels_that_are_no_mask():
    classifier, (features, labels) = make()[1], draw()
    with pytest.raises(ValueError, match=r"labels must be in \[0, 2\) or the ignore index 255; got the values 7"):
        classifier(features, labels.where(labels != 1, 7))
    with pytest.raises(ValueError, match=r"Of one-hot labels: labels\.argmax\(1\)"):
        classifier(features, torch.stack([labels == 0, labels == 1], dim=1).long())


def test_class_weights_are_two_numbers():
    classifier, (features, labels) = make()[1], draw()
    outputs = classifier(features, labels)
    assert cacseg.ContextLoss(class_weights=[1.0, 3.0])(outputs, labels)["total"].isfinite()
    with pytest.raises(ValueError, match="one number for each of the 2 classes"):
        cacseg.ContextLoss(class_weights=[1.0])(outputs, labels)


@pytest.mark.parametrize("preset", PRESETS)
def test_gradients_are_those_of_differences(preset):
    """Of the sum of all terms: along random directions, in float64. The target of the distillation has none."""
    classifier, (features, labels) = make(preset=preset)[1], draw()
    criterion, inputs = cacseg.ContextLoss(kl_weight=0.0), [features.requires_grad_(), *classifier.parameters()]
    total = lambda: criterion(classifier(features, labels), labels)["total"]  # noqa: E731
    gradients = torch.autograd.grad(total(), inputs)
    for tensor, gradient in zip(inputs, gradients, strict=True):
        direction = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        ends = []
        with torch.no_grad():
            for step in (1e-6, -2e-6, 1e-6):  # back where it was at the end
                tensor += step * direction
                ends.append(total())
        slope = (ends[0] - ends[1]) / 2e-6
        torch.testing.assert_close((gradient * direction).sum(), slope, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear])
def test_the_state_dict_of_the_convolution_loads(kind):
    conv, _ = make(kind)
    classifier = cacseg.ContextAwareClassifier(D, 1).double()
    classifier.load_state_dict(conv.state_dict())
    assert torch.equal(classifier.weight.flatten(), conv.weight.flatten())
    assert torch.equal(classifier.bias, conv.bias)


def test_exchanging_the_classes_changes_the_sign():
    """-w and -b with 1 - y are the same problem."""
    classifier = make(context_design="prototype", oracle_design="prototype")[1]
    features, labels = draw()
    logits = classifier(features)
    losses = cacseg.ContextLoss()(classifier(features, labels), labels)
    with torch.no_grad():
        for parameter in (classifier.weight, classifier.bias):
            parameter.neg_()
    other = torch.where(labels == 255, 255, 1 - labels)
    torch.testing.assert_close(classifier(features), -logits)
    torch.testing.assert_close(cacseg.ContextLoss()(classifier(features, other), other), losses)


def test_mistyped_arguments_get_the_nearest():
    with pytest.raises(TypeError, match=r"ContextAwareClassifier has no argument 'presett'\. Did you mean 'preset'\?"):
        cacseg.ContextAwareClassifier.from_conv(nn.Conv2d(D, 1, 1), presett="paper")
    with pytest.raises(TypeError, match=r"has no argument 'foo'\. There are bias, context_design"):
        cacseg.ContextAwareClassifier.from_conv(nn.Conv2d(D, 1, 1), foo=1)
