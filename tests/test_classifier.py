import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import cacseg
from cacseg import functional
from cacseg.classifier import DESIGNS
from reference_vectors import CASES, load, make_classifier

B, D, N = 2, 8, 5


def draw(spatial=(4, 6), full=None, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(B, D, *spatial, generator=generator, dtype=dtype)
    labels = torch.randint(0, N - 1, (B, *(full or spatial)), generator=generator)
    labels.view(B, -1)[:, :2] = 255
    return features, labels


def make(dtype=torch.float64, preset="released", **arguments):
    """Not from zero: projectors that give 0 would hide what goes wrong in them."""
    torch.manual_seed(0)
    return cacseg.ContextAwareClassifier(D, N, preset=preset, **arguments).to(dtype)


@pytest.mark.parametrize("case", CASES)
def test_released_vectors(case):
    v = load("released", case)
    outputs = make_classifier(v, "released")(v["in_features"], v["in_labels"])
    for ours, theirs in ((outputs.plain, "out_p"), (outputs.context, "out_p_p"), (outputs.oracle, "out_p_y")):
        torch.testing.assert_close(ours, v[theirs], rtol=0, atol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_paper_vectors(case):
    v = load("paper", case)
    classifier = make_classifier(v, "paper")
    features, labels, weight = v["in_features"], v["in_labels"], v["in_conv_seg_weight"]
    outputs = classifier(features, labels)
    close = dict(rtol=0, atol=1e-9)
    torch.testing.assert_close(outputs.plain, v["in_logits"], **close)
    torch.testing.assert_close(outputs.context, v["out_p_p"], **close)
    torch.testing.assert_close(outputs.oracle, v["out_p_y"], **close)
    assert torch.equal(torch.where(outputs.labels == -1, 255, outputs.labels), v["labels_lowres"])
    prototypes = functional.oracle_prototypes(features, labels, weight)
    torch.testing.assert_close(prototypes, v["out_C_y"], **close)
    joined = torch.cat([prototypes, weight.expand_as(prototypes)], dim=-1)
    torch.testing.assert_close(classifier.oracle_projector(joined), v["out_A_y"], **close)
    prototypes = functional.context_prototypes(features, v["in_logits"])
    torch.testing.assert_close(prototypes, v["out_C_p"], **close)
    joined = torch.cat([prototypes, weight.expand_as(prototypes)], dim=-1)
    torch.testing.assert_close(classifier.context_projector(joined), v["out_A_p"], **close)


def test_its_parameters_are_those_of_the_method():
    shapes = {name: tuple(value.shape) for name, value in cacseg.ContextAwareClassifier(512, 150).named_parameters()}
    assert shapes == {
        "weight": (150, 512, 1, 1),
        "bias": (150,),
        "context_projector.0.weight": (256, 1024),
        "context_projector.2.weight": (512, 256),
        "context_projector.2.bias": (512,),
        "oracle_projector.0.weight": (256, 1024),
        "oracle_projector.2.weight": (512, 256),
        "oracle_projector.2.bias": (512,),
    }
    added = sum(
        value.numel() for name, value in cacseg.ContextAwareClassifier(512, 150).named_parameters() if "." in name
    )
    assert round(added / 1e6, 3) == 0.787


def test_inference_equals_training_and_needs_no_labels():
    classifier, (features, labels) = make(), draw()
    assert torch.equal(classifier(features), classifier(features, labels).context)
    assert torch.equal(classifier.plain_logits(features), classifier(features, labels).plain)


def test_inference_computes_nothing_of_the_oracle():
    classifier, (features, _) = make(), draw()
    classifier(features).sum().backward()
    assert all(parameter.grad is None for parameter in classifier.oracle_projector.parameters())
    assert all(parameter.grad is not None for parameter in classifier.context_projector.parameters())


@pytest.mark.parametrize(
    ("spatial", "full"), [((9,), (20,)), ((4, 6), (16, 23)), ((2, 3, 4), (4, 6, 8)), ((4, 6), (2, 3))]
)
def test_labels_of_any_resolution_and_features_of_any_dimension(spatial, full):
    classifier, (features, labels) = make(), draw(spatial, full)
    outputs = classifier(features, labels)
    assert outputs.context.shape == outputs.plain.shape == outputs.oracle.shape == (B, N, *spatial)
    resized = functional.resize_labels(labels, spatial)
    assert torch.equal(outputs.oracle, classifier(features, resized).oracle)


def test_it_does_not_depend_on_how_space_is_arranged():
    classifier, (features, labels) = make(), draw()
    flat = classifier(features.flatten(2), labels.flatten(1))
    outputs = classifier(features, labels)
    for name in ("context", "plain", "oracle"):
        torch.testing.assert_close(getattr(flat, name), getattr(outputs, name).flatten(2))


@pytest.mark.parametrize("scope", ["image", "batch"])
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_packed_features_give_the_dense_result(scope, similarity):
    classifier, (features, labels) = make(oracle_scope=scope, context_similarity=similarity), draw()
    outputs = classifier(features, labels)
    packed = classifier(
        features.flatten(2).transpose(1, 2).flatten(0, 1), labels.flatten(), offsets=torch.tensor([0, 24, 48])
    )
    for name in ("context", "plain", "oracle"):
        dense = getattr(outputs, name).flatten(2).transpose(1, 2).flatten(0, 1)
        torch.testing.assert_close(getattr(packed, name), dense)


@pytest.mark.parametrize("scope", ["image", "batch"])
def test_permuting_classes_permutes_outputs(scope):
    classifier, (features, labels) = make(oracle_scope=scope), draw()
    order = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    renamed = torch.where(labels == 255, 255, order.argsort()[labels.clamp_max(N - 1)])
    other = copy.deepcopy(classifier)
    with torch.no_grad():
        other.weight.copy_(classifier.weight[order])
        other.bias.copy_(classifier.bias[order])
    outputs, permuted = classifier(features, labels), other(features, renamed)
    for name in ("context", "plain", "oracle"):
        torch.testing.assert_close(getattr(permuted, name), getattr(outputs, name)[:, order])


def test_the_oracle_for_evaluation_sees_each_image_alone():
    classifier, (features, labels) = make(preset="released"), draw()
    together = classifier.oracle_logits(features, labels)
    alone = torch.cat([classifier(features[i : i + 1], labels[i : i + 1]).oracle for i in range(B)])
    torch.testing.assert_close(together, alone)
    assert not torch.allclose(together, classifier(features, labels).oracle)
    torch.testing.assert_close(
        classifier.oracle_logits(features, labels, scope="batch"), classifier(features, labels).oracle
    )


def test_dropout_touches_the_plain_logits_alone():
    """With prototypes that ignore the plain logits (constant weight), the context logits do not change."""
    classifier, (features, labels) = make(dropout=0.5), draw()
    still = classifier.eval()(features, labels)
    torch.manual_seed(1)
    dropped = classifier.train()(features, labels)
    assert not torch.allclose(dropped.plain, still.plain)
    torch.testing.assert_close(dropped.oracle, still.oracle)
    with torch.no_grad():
        classifier.weight.zero_()  # the plain logits are the bias everywhere, with dropout or without
    torch.testing.assert_close(classifier(features), classifier.eval()(features))


def test_the_confidence_threshold_and_detaching():
    classifier, (features, labels) = make(detach_plain=True), draw()
    context = classifier(features, labels).context
    context.square().sum().backward()
    assert classifier.bias.grad is None  # the bias acts through the plain logits alone
    plain = make()
    plain(features).square().sum().backward()
    assert plain.bias.grad.abs().sum() > 0
    strict = make(confidence_threshold=0.5)
    truth = functional.context_prototypes(features, strict.plain_logits(features), confidence_threshold=0.5)
    joined = torch.cat([truth, strict.weight.flatten(1).expand_as(truth)], dim=-1)
    expected = functional.cosine_logits(features, strict.context_projector(joined))
    torch.testing.assert_close(strict(features), expected)
    assert not torch.allclose(expected, make()(features))


@pytest.mark.parametrize(
    "arguments", [{"rounds": 2}, {"reads": ("share", "scene")}, {"gradient_ratio": 0.5}, {"distillation_gradient": 0.5}]
)
def test_prototypes_are_constants_beside_other_options(arguments):
    """The plain bias reaches context logits through the prototypes alone."""
    features, labels = draw()
    classifier = make(**arguments, detach_prototypes=True)
    classifier(features, labels).context.square().sum().backward()
    assert classifier.bias.grad is None
    open_one = make(**arguments)
    open_one(features, labels).context.square().sum().backward()
    assert open_one.bias.grad.abs().sum() > 0


def test_detached_prototypes_teach_the_projector_alone():
    classifier, (features, labels) = make(detach_prototypes=True), draw()
    features.requires_grad_()
    context = classifier(features, labels).context
    torch.testing.assert_close(context, make()(features, labels).context)
    (found,) = torch.autograd.grad(context.square().sum(), features, retain_graph=True)
    prototypes = functional.context_prototypes(features, classifier.plain_logits(features)).detach()
    rows = classifier.context_projector(torch.cat([prototypes, classifier.weight.flatten(1).expand_as(prototypes)], -1))
    (expected,) = torch.autograd.grad(functional.cosine_logits(features, rows.detach()).square().sum(), features)
    torch.testing.assert_close(found, expected)  # as if the classifier were fixed
    context.square().sum().backward()
    assert classifier.bias.grad is None
    assert classifier.context_projector[0].weight.grad.abs().sum() > 0


RESIDUAL = dict(context_design="project_concat_residual", oracle_design="project_concat_residual")


def test_dropped_context_leaves_the_fixed_classifier_to_some_images():
    features, labels = (values.repeat(16, *[1] * (values.ndim - 1)) for values in draw())
    classifier = make(**RESIDUAL, context_drop=0.5).train()
    adapted, fixed = make(**RESIDUAL)(features, labels), make(context_design="weight")(features, labels)
    torch.manual_seed(0)
    found = classifier(features, labels)
    left = [torch.allclose(*pair) for pair in zip(found.context, fixed.context, strict=True)]
    assert 0.2 < sum(left) / len(left) < 0.8
    expected = torch.where(torch.tensor(left)[:, None, None, None], fixed.context, adapted.context)
    torch.testing.assert_close(found.context, expected)
    torch.testing.assert_close(found.oracle, adapted.oracle)
    assert not torch.equal(found.context, classifier(features, labels).context)  # drawn anew
    torch.testing.assert_close(classifier.eval()(features, labels).context, adapted.context)


def test_packed_images_are_dropped_one_by_one():
    features, _ = (values.repeat(16, *[1] * (values.ndim - 1)) for values in draw())
    images, pixels = features.shape[0], features[0, 0].numel()
    rows, offsets = features.flatten(2).movedim(1, 2).flatten(0, 1), torch.arange(images + 1) * pixels
    classifier = make(**RESIDUAL, context_drop=0.5).train()
    torch.manual_seed(0)
    dense = classifier(features)
    torch.manual_seed(0)
    packed = classifier(rows, offsets=offsets)
    torch.testing.assert_close(packed, dense.flatten(2).movedim(1, 2).flatten(0, 1))
    assert not torch.allclose(dense, classifier.eval()(features))


def test_a_dropped_context_teaches_the_weight_and_not_the_projector():
    features, labels = draw()
    classifier = make(**RESIDUAL, context_drop=1.0 - 1e-9, detach_weight=True).train()
    classifier(features, labels).context.square().sum().backward()
    assert classifier.weight.grad is None or not classifier.weight.grad.any()
    classifier = make(**RESIDUAL, context_drop=1.0 - 1e-9).train()
    classifier(features, labels).context.square().sum().backward()
    assert classifier.weight.grad.abs().sum() > 0
    assert not classifier.context_projector[0].weight.grad.any()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(context_drop=1.0), ValueError, r"context_drop must be in \[0, 1\); got 1.0"),
        (dict(context_drop=-0.1), ValueError, r"context_drop must be in \[0, 1\); got -0.1"),
        (dict(context_drop="half"), TypeError, r"context_drop must be a number in \[0, 1\); got 'half'"),
        (dict(context_drop=True), TypeError, "got True"),
        (
            dict(context_drop=0.5),
            ValueError,
            "needs context_design='project_concat_residual'.*; got 'project_concat', 1",
        ),
        (dict(context_drop=0.5, context_design="weight"), ValueError, "got 'weight', 1, 1.0 and"),
        (dict(context_drop=0.5, **RESIDUAL, rounds=2), ValueError, "got 'project_concat_residual', 2, 1.0 and"),
        (dict(context_drop=0.5, **RESIDUAL, reads=("share",)), ValueError, r"1, 1.0 and \('share',\)"),
        (dict(context_drop=0.5, **RESIDUAL, distillation_gradient=0.5), ValueError, "1, 0.5 and"),
    ],
)
def test_a_context_that_cannot_be_dropped(arguments, error, message):
    with pytest.raises(error, match=message):
        make(**arguments)


def with_presence(presence=True, **arguments):
    """Like `make`, and a presence head whose values are not the zeros that it starts with."""
    classifier = make(**arguments, presence=presence)
    torch.manual_seed(3)
    torch.nn.init.normal_(classifier.presence_head.weight, std=0.1)
    return classifier


@pytest.mark.parametrize(("presence", "longer"), [(True, 1.0), ("relative", 3.0)])
def test_presence_is_a_bias_of_each_image(presence, longer):
    features, labels = draw()
    with_it, without = with_presence(presence).eval(), make().eval()
    rare = torch.logit(torch.full((N,), 1.5 / 8.0, dtype=torch.float64))
    if presence == "relative":
        with_it.presence_head.images_with.copy_(torch.tensor([1] * N + [7]))
    codes = torch.cat([F.normalize(features.mean((2, 3))), F.normalize(features.amax((2, 3)))], dim=1)
    scores = F.linear(longer * with_it.scale * codes, with_it.presence_head.weight, with_it.presence_head.bias)
    bias = (scores.sigmoid() + 1e-4).log()
    if presence == "relative":
        bias = (((scores + rare).sigmoid() + 1e-4) / (1.5 / 8.0 + 1e-4)).log().clamp(max=0.0)
        assert (bias == 0.0).any()
    expected = without(features) + bias[..., None, None]
    torch.testing.assert_close(with_it(features), expected)
    torch.testing.assert_close(with_it.plain_logits(features), without.plain_logits(features))
    plain, context = with_it.both_logits(features)
    torch.testing.assert_close(context, expected)
    torch.testing.assert_close(plain, without.plain_logits(features))
    torch.testing.assert_close(with_it.both_without_presence(features)[1], without(features))
    found, before = with_it(features, labels), without(features, labels)
    torch.testing.assert_close(found.context, before.context)  # what learns does not lean on it
    torch.testing.assert_close(found.oracle, before.oracle)
    torch.testing.assert_close(found.presence, scores)
    assert before.presence is None


@pytest.mark.parametrize("presence", [True, "relative"])
def test_presence_starts_without_a_word_and_draws_no_random_number(presence):
    torch.manual_seed(0)
    with_it, drawn = make(presence=presence), torch.rand(())
    torch.manual_seed(0)
    make()
    torch.testing.assert_close(drawn, torch.rand(()))
    features, _ = draw()
    shift = with_it(features) - make()(features)
    said = 0.0 if presence == "relative" else math.log(0.5 + 1e-4)
    torch.testing.assert_close(shift, torch.full_like(shift, said))


@pytest.mark.parametrize("presence", [True, "relative"])
def test_presence_learns_from_the_labels_and_teaches_the_features_nothing(presence):
    features, labels = draw()
    gradients = []
    for classifier in (with_presence(presence), make()):
        given = features.clone().requires_grad_()
        losses = cacseg.ContextLoss()(classifier(given, labels), labels)
        losses["total"].backward()
        gradients.append(given.grad)
        if classifier.presence_head is not None:
            assert list(losses) == ["plain", "context", "oracle", "distillation", "overlap", "presence", "total"]
            assert classifier.presence_head.weight.grad.abs().sum() > 0
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0, 5.0])
@pytest.mark.parametrize("presence", [True, "relative"])
def test_features_learn_for_presence_as_much_as_they_are_asked_to(presence, share):
    features, labels = draw()
    given = features.clone().requires_grad_()
    classifier = with_presence(presence, presence_gradient=share)
    losses = cacseg.ContextLoss()(classifier(given, labels), labels)
    weight = 1.0 if presence is True else 0.02 * N
    of_layer = torch.autograd.grad(losses["presence"], classifier.presence_head.parameters(), retain_graph=True)
    losses["total"].backward()
    for parameter, its_own in zip(classifier.presence_head.parameters(), of_layer, strict=True):
        torch.testing.assert_close(parameter.grad, weight * its_own)  # whatever the features get

    bare = features.clone().requires_grad_()
    cacseg.ContextLoss()(make()(bare, labels), labels)["total"].backward()
    told = features.clone().requires_grad_()
    codes = torch.cat([F.normalize(told.mean((2, 3))), F.normalize(told.amax((2, 3)))], dim=1)
    length = classifier.scale * (1.0 if presence is True else 3.0)
    scores = F.linear(length * codes, classifier.presence_head.weight, classifier.presence_head.bias)
    small = functional.resize_labels(labels, features.shape[2:], "centred")
    usual = classifier.presence_head.usual_odds()
    functional.presence_loss(scores, small, usual_odds=usual).backward()
    assert told.grad.abs().sum() > 0
    torch.testing.assert_close(given.grad, bare.grad + share * weight * told.grad)


@pytest.mark.parametrize("presence", [True, "relative"])
def test_presence_of_packed_images_is_that_of_dense_ones(presence):
    features, labels = draw()
    classifier = with_presence(presence)
    pixels = features[0, 0].numel()
    rows = features.flatten(2).movedim(1, 2).flatten(0, 1)
    offsets = torch.arange(features.shape[0] + 1) * pixels
    torch.testing.assert_close(
        classifier(rows, offsets=offsets), classifier(features).flatten(2).movedim(1, 2).flatten(0, 1)
    )
    small = classifier(features, labels)
    packed = classifier(rows, small.labels.flatten().where(small.labels.flatten() >= 0, 255), offsets=offsets)
    torch.testing.assert_close(packed.presence, small.presence)
    classifier.presence_head.gradient = 1.0
    dense, packed_rows = features.clone().requires_grad_(), rows.clone().requires_grad_()
    direction = torch.randn(features.shape[0], N, dtype=features.dtype)
    (classifier.presence_logits(dense) * direction).sum().backward()
    (classifier.presence_logits(packed_rows, offsets) * direction).sum().backward()
    torch.testing.assert_close(packed_rows.grad, dense.grad.flatten(2).movedim(1, 2).flatten(0, 1))
    if presence == "relative":
        once, twice = small.usual_odds, packed.usual_odds  # the same images, counted a second time
        with_it, every = (classifier.presence_head.images_with / 2).double().split([N, 1])
        assert every == len(features)
        torch.testing.assert_close(once, ((with_it + 0.5) / (every - with_it + 0.5)).log())
        torch.testing.assert_close(twice, ((2 * with_it + 0.5) / (2 * (every - with_it) + 0.5)).log())
    both = [
        functional.presence_loss(small.presence, small.labels, ignore_index=-1),
        functional.presence_loss(small.presence, small.labels.flatten(), ignore_index=-1, offsets=offsets),
    ]
    torch.testing.assert_close(*both)


def test_a_relative_presence_counts_the_images_that_have_a_class():
    features, labels = draw()
    features, labels = features[:2], labels[:2]
    labels[0], labels[1], labels[1, :2] = 0, 1, 2
    unlabelled = torch.full_like(labels[:1], 255)
    classifier = with_presence("relative").train()
    found = classifier(torch.cat([features, features[:1]]), torch.cat([labels, unlabelled]))
    counts = torch.zeros(N + 1, dtype=torch.int64)
    counts[[0, 1, 2, N]] = torch.tensor([1, 1, 1, 2])
    assert torch.equal(classifier.presence_head.images_with, counts)  # the third image has no label
    torch.testing.assert_close(found.usual_odds, torch.logit((counts[:-1].double() + 0.5) / 3.0))
    truth = torch.zeros(2, N, dtype=torch.float64)
    truth[0, 0] = truth[1, 1] = truth[1, 2] = 1.0
    losses = cacseg.ContextLoss()(found, torch.cat([labels, unlabelled]))
    expected = F.binary_cross_entropy_with_logits(found.presence[:2] + found.usual_odds, truth)
    torch.testing.assert_close(losses["presence"], expected)
    classifier.eval()(features, labels)  # a look is no step
    assert torch.equal(classifier.presence_head.images_with, counts)
    assert classifier.half().presence_head.images_with.dtype == torch.int64
    assert "presence='relative', presence_gradient=0.0" in repr(classifier)


@pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
@pytest.mark.parametrize("classes", [2, 6])
def test_a_relative_presence_that_cannot_tell_images_apart_says_nothing(classes, optimiser):
    """However rare a class is, where the layer of `presence=True` learns that it is rare."""
    torch.manual_seed(0)
    labels = torch.zeros(8, 6, 6, dtype=torch.int64)
    labels[0] = 1  # in one of eight images, all of which look alike but for noise
    shifts = {}
    for presence in (True, "relative"):
        classifier = cacseg.ContextAwareClassifier(D, classes, presence=presence)
        head = classifier.presence_head.parameters()
        moving = torch.optim.AdamW(head, 1e-3) if optimiser == "adamw" else torch.optim.SGD(head, 0.01, 0.9)
        for _ in range(100):
            moving.zero_grad()
            features = torch.rand(8, D, 6, 6)
            cacseg.ContextLoss()(classifier(features, labels), labels)["total"].backward()
            moving.step()
        bias = classifier.eval().add_presence(torch.zeros(8, classes, 6, 6), torch.rand(8, D, 6, 6))[:, :, 0, 0]
        shifts[presence] = (bias[:, 0] - bias[:, 1]).mean()
    assert shifts[True] > 1.0
    assert abs(shifts["relative"]) < 0.05


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(presence="yes"), ValueError, "presence must be True, False or 'relative'; got 'yes'"),
        (dict(presence=True, context_design="none"), ValueError, "presence is a bias of the context classifier"),
        (dict(presence_gradient=1.0), ValueError, "presence_gradient is that of the layer .*; got 1.0 without"),
        (dict(presence=True, presence_gradient=-1.0), ValueError, "must be finite and not negative; got -1"),
        (dict(presence=True, presence_gradient=float("nan")), ValueError, "must be finite and not negative; got nan"),
        (dict(presence=True, presence_gradient="much"), TypeError, "presence_gradient must be a number; got 'much'"),
        (dict(presence=True, presence_gradient=True), TypeError, "presence_gradient must be a number; got True"),
    ],
)
def test_a_presence_that_cannot_be(arguments, error, message):
    with pytest.raises(error, match=message):
        make(**arguments)


@pytest.mark.parametrize("design", [name for name in DESIGNS if name != "none"])
def test_each_design_is_its_formula(design):
    classifier, (features, _) = make(context_design=design), draw()
    weight = classifier.weight.flatten(1)
    prototypes = functional.context_prototypes(features, classifier.plain_logits(features))
    theta = classifier.context_projector
    shared = weight.expand_as(prototypes)
    rows = {
        "project_concat": lambda: theta(torch.cat([prototypes, shared], -1)),
        "prototype": lambda: prototypes,
        "sum": lambda: prototypes + weight,
        "project": lambda: theta(prototypes),
        "project_sum": lambda: theta(prototypes + weight),
        "project_concat_residual": lambda: theta(torch.cat([prototypes, shared], -1)) + weight,
        "weight": lambda: weight[None],
    }[design]()
    torch.testing.assert_close(classifier(features), functional.cosine_logits(features, rows, 15.0))


def test_without_branches_it_is_a_convolution():
    classifier, (features, labels) = make(context_design="none", oracle_design="none"), draw()
    convolution = nn.Conv2d(D, N, 1).double()
    convolution.load_state_dict(classifier.state_dict())
    torch.testing.assert_close(classifier(features), convolution(features))
    assert classifier(features, labels).oracle is None


def test_cosine_plain_classifier():
    classifier, (features, _) = make(plain_similarity="cosine", bias=False, context_design="none"), draw()
    truth = functional.cosine_logits(features, classifier.weight.flatten(1)[None], 15.0)
    torch.testing.assert_close(classifier(features), truth)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear])
def test_from_conv_keeps_what_was_trained(kind, bias):
    conv = kind(D, N, **({} if kind is nn.Linear else {"kernel_size": 1}), bias=bias).double().eval()
    classifier = cacseg.ContextAwareClassifier.from_conv(conv, preset="paper", scale=9.0)
    assert classifier.scale == 9.0
    assert classifier.oracle_scope == "image"
    assert not classifier.training
    features = torch.randn(
        B, D, *{nn.Conv1d: (5,), nn.Conv2d: (4, 5), nn.Conv3d: (2, 3, 4), nn.Linear: ()}[kind]
    ).double()
    torch.testing.assert_close(classifier.plain_logits(features), conv(features))
    loaded = cacseg.ContextAwareClassifier(D, N, bias=bias, preset="released").double()
    projector = loaded.context_projector[0].weight.clone()
    loaded.load_state_dict(conv.state_dict())  # strict: the projectors are not missing, they keep their values
    assert torch.equal(loaded.context_projector[0].weight, projector)
    torch.testing.assert_close(loaded.plain_logits(features), conv(features))
    with torch.no_grad():
        conv.weight.zero_()
    assert classifier.weight.abs().sum() > 0  # a copy


def test_state_dict_round_trip_and_deepcopy():
    classifier, (features, _) = make(), draw()
    other = cacseg.ContextAwareClassifier(D, N, preset="released").double()
    other.load_state_dict(classifier.state_dict())
    assert torch.equal(other(features), classifier(features))
    assert torch.equal(copy.deepcopy(classifier)(features), classifier(features))


def test_dropping_the_oracle_drops_the_training_part():
    classifier, (features, labels) = make(), draw()
    before = classifier(features)
    slim = classifier.drop_oracle()
    assert slim is classifier
    assert not any("oracle" in key for key in slim.state_dict())
    assert torch.equal(slim(features), before)
    with pytest.raises(ValueError, match=r"has no oracle: oracle_design='none', or drop_oracle\(\) was called"):
        slim.oracle_logits(features, labels)
    with pytest.raises(ValueError, match=r"oracle term has weight 1.0, but the classifier has no oracle"):
        cacseg.ContextLoss()(slim(features, labels), labels)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("preset", ["tuned", "released", "paper"])
@pytest.mark.parametrize("kind", ["large", "zero", "zero_pixels", "aligned"])
def test_no_nan_in_half_precision(dtype, preset, kind):
    features, labels = draw(dtype=torch.float32, full=(16, 24))
    features = (
        {
            "large": features * 1e3,
            "zero": features * 0,
            "zero_pixels": features * (torch.rand(B, 1, 4, 6) > 0.5),
            "aligned": torch.full_like(features, 1e3),
        }[kind]
        .to(dtype)
        .requires_grad_()
    )
    classifier = make(torch.float32, preset=preset)
    loss = cacseg.ContextLoss(preset)
    with torch.autocast("cpu", dtype=dtype):
        outputs = classifier(features, labels)
        losses = loss(outputs, labels)
    assert outputs.context.dtype == outputs.plain.dtype == dtype
    losses["total"].backward()
    assert all(value.isfinite() for value in losses.values())
    assert all(parameter.grad.isfinite().all() for parameter in classifier.parameters())
    assert features.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_in_half_precision(dtype):
    classifier, (features, labels) = make(torch.float32).to(dtype), draw(dtype=torch.float32)
    outputs = classifier(features.to(dtype), labels)
    assert outputs.context.dtype == dtype
    truth = make(torch.float32).double().to(dtype).double()(features.to(dtype).double(), labels)
    torch.testing.assert_close(outputs.context.double(), truth.context, rtol=0, atol=0.5)
    cacseg.ContextLoss()(outputs, labels)["total"].backward()


def test_half_precision_stays_near_the_truth():
    features, labels = draw((32, 32), dtype=torch.float32)
    classifier = make(torch.float32)
    truth = copy.deepcopy(classifier).double()(features.double(), labels)
    for dtype in (torch.float16, torch.bfloat16):
        with torch.autocast("cpu", dtype=dtype):
            outputs = classifier(features, labels)
        for name in ("context", "oracle"):
            error = (getattr(outputs, name).double() - getattr(truth, name)).abs().max().item()
            assert error <= 4 * 15 * torch.finfo(dtype).eps


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(num_classes=1), "num_classes must be at least 2; got 1.*background and foreground"),
        (dict(in_channels=1), "in_channels must be at least 2"),
        (dict(dropout=1.0), r"dropout must be in \[0, 1\); got 1.0"),
        (dict(scale=0.0), "scale must be positive and finite; got 0.0"),
        (dict(scale=float("inf")), "scale must be positive and finite; got inf"),
        (dict(preset="papers"), "preset must be one of 'paper', 'released', 'centred', 'tuned'; got 'papers'"),
        (dict(oracle_scope="pixel"), "oracle_scope must be one of 'image', 'batch'; got 'pixel'"),
        (dict(context_design="concat"), "context_design must be one of .*; got 'concat'"),
        (dict(plain_similarity="cosine"), "plain_similarity='cosine' has no bias; got bias=True. Pass bias=False"),
        (dict(confidence_threshold=1.5), r"confidence_threshold must be in \[0, 1\); got 1.5"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        cacseg.ContextAwareClassifier(**{"in_channels": D, "num_classes": N, **arguments})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *(
            (name, value, f"{name} must be True or False; got {value!r}")
            for name in ("bias", "context_bias", "learnable_scale", "frozen_oracle", "zero_start", "detach_plain")
            for value in ("maybe", 1)
        ),
        *(("scale", value, f"scale must be a number; got {value!r}") for value in ("abc", True, None)),
        *(
            (name, value, rf"{name} must be a number in \[0, 1\); got {value!r}")
            for name in ("dropout", "confidence_threshold", "context_drop")
            for value in ("abc", False)
        ),
        ("scale", torch.ones(2), "scale must be a number; got tensor"),
        ("feature_gradient", True, r"feature_gradient must be a number in \[0, 1\]; got True"),
        ("gradient_ratio", True, "gradient_ratio must be a positive number or None; got True"),
        ("num_classes", 5.0, "num_classes must be an integer; got 5.0"),
        ("in_channels", True, "in_channels must be an integer; got True"),
        ("ignore_index", "255", "ignore_index must be an integer; got '255'"),
        *(("reads", value, "reads must be a list of 'share', 'scene', 'place'; got .* Pass") for value in ("abc", 3)),
    ],
)
def test_arguments_of_a_wrong_type_are_refused(name, value, message):
    with pytest.raises(TypeError, match=message):
        cacseg.ContextAwareClassifier(**{"in_channels": D, "num_classes": N, name: value})


@pytest.mark.parametrize("name", ["dropout", "scale", "confidence_threshold"])
@pytest.mark.parametrize("value", [np.float32(0.5), torch.tensor(0.5)])
def test_scalars_of_numpy_and_torch_are_numbers(name, value):
    features, labels = draw()
    found, expected = (make(**{name: one})(features, labels).context for one in (value, 0.5))
    torch.testing.assert_close(found, expected)
    with pytest.raises(ValueError, match=f"{name} must be .*; got"):
        make(**{name: -value})


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda f, y: (f[:, :6], None), ValueError, r"8 channels in dimension 1; got shape \(2, 6, 4, 6\) with 6"),
        (lambda f, y: (f[0, :, 0], None), ValueError, r"one to three spatial dimensions; got shape \(8, 6\)"),
        (lambda f, y: (f[:0], None), ValueError, r"must not be empty; got shape \(0, 8, 4, 6\)"),
        (lambda f, y: (f[..., :0], None), ValueError, r"must not be empty; got shape \(2, 8, 4, 0\)"),
        (lambda f, y: (f.long(), None), TypeError, "features must be floating point; got torch.int64"),
        (lambda f, y: (f.numpy(), None), TypeError, "features must be a torch.Tensor; got ndarray"),
        (lambda f, y: (f, y.double()), TypeError, "labels must be integers.*got torch.float64. Convert with .long"),
        (lambda f, y: (f, y == 1), TypeError, "labels must be integers.*got torch.bool"),
        (lambda f, y: (f, y[:1]), ValueError, "same batch size; got 1 label maps .* for a batch of 2"),
        (lambda f, y: (f, y[:, None]), ValueError, r"got shape \(2, 1, 4, 6\). Squeeze the channel dimension"),
        (lambda f, y: (f, y[:, 0]), ValueError, r"labels must be \[b, \*spatial\] with 3 dimensions"),
        (lambda f, y: (f, y[..., :0]), ValueError, r"labels must not be empty; got shape \(2, 4, 0\)"),
        (lambda f, y: (f, y + 3), ValueError, r"in \[0, 5\) or the ignore index 255; got the values 5, 6, 258 in"),
        (lambda f, y: (f, y.tolist()), TypeError, "labels must be a torch.Tensor of integers; got list"),
    ],
)
def test_wrong_input_is_refused(change, error, message):
    with pytest.raises(error, match=message):
        make()(*change(*draw()))


def test_wrong_convolutions_are_refused():
    convert = cacseg.ContextAwareClassifier.from_conv
    with pytest.raises(ValueError, match=r"1x1 convolution with stride 1.*got kernel_size=\(3, 3\)"):
        convert(nn.Conv2d(D, N, 3, padding=1))
    with pytest.raises(ValueError, match="groups=2"):
        convert(nn.Conv2d(D, 4, 1, groups=2))
    with pytest.raises(TypeError, match="Conv1d, Conv2d, Conv3d or Linear; got BatchNorm2d"):
        convert(nn.BatchNorm2d(D))
    with pytest.raises(ValueError, match=r"which has no bias; got bias=True. Leave the argument out"):
        convert(nn.Conv2d(D, N, 1, bias=False), bias=True)


def test_what_the_convolution_fixes_is_not_an_argument():
    with pytest.raises(ValueError, match=r"the convolution fixes num_classes. Leave them out"):
        cacseg.ContextAwareClassifier.from_conv(nn.Conv2d(D, N, 1), num_classes=7)
    with pytest.raises(TypeError, match=r"num_classes must be an integer; got '5'"):
        cacseg.ContextAwareClassifier(D, "5")


def test_a_frozen_convolution_stays_frozen():
    conv = nn.Conv2d(D, N, 1)
    conv.weight.requires_grad_(False)
    classifier = cacseg.ContextAwareClassifier.from_conv(conv)
    assert not classifier.weight.requires_grad
    assert classifier.bias.requires_grad


@pytest.mark.parametrize("strict", [True, False])
def test_a_model_with_the_old_convolution_loads_whole(strict):
    """The state dict of a model that had the convolution loads into one that has the classifier in its place."""
    old = nn.Sequential(nn.Conv2d(3, D, 1), nn.Conv2d(D, N, 1))
    new = nn.Sequential(nn.Conv2d(3, D, 1), cacseg.ContextAwareClassifier(D, N))
    new.load_state_dict(old.state_dict(), strict=strict)
    assert torch.equal(new[1].weight, old[1].weight)
    half = {key: value for key, value in new.state_dict().items() if "oracle" not in key}
    with pytest.raises(RuntimeError, match=r"Missing key.*oracle_projector"):
        new.load_state_dict(half)


def test_a_bias_where_none_exists_is_refused_not_dropped():
    without = cacseg.ContextAwareClassifier(D, N, bias=False)
    with pytest.raises(ValueError, match=r"has no bias, but the state dict holds bias of shape \(5,\)"):
        without.load_state_dict(nn.Conv2d(D, N, 1).state_dict(), strict=False)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.uint16])
def test_labels_of_any_integer_type_are_welcome(dtype):
    classifier, (features, labels) = make(), draw()
    assert torch.equal(classifier(features, labels.to(dtype)).oracle, classifier(features, labels).oracle)


@pytest.mark.parametrize(("num_classes", "dtype"), [(128, torch.int8), (256, torch.uint8), (300, torch.uint8)])
def test_narrow_labels_do_not_wrap_around(num_classes, dtype):
    """The number of classes itself does not fit into the labels' type."""
    torch.manual_seed(0)
    classifier = cacseg.ContextAwareClassifier(D, num_classes, preset="released", ignore_index=0).double()
    features, labels = draw()[0], torch.randint(0, 128, (B, 8, 12))
    loss = cacseg.ContextLoss(ignore_index=0)
    wide = loss(classifier(features, labels), labels)
    narrow = loss(classifier(features, labels.to(dtype)), labels.to(dtype))
    for name, value in wide.items():
        torch.testing.assert_close(narrow[name], value)
    masks = functional.class_masks(labels.to(dtype), num_classes, ignore_index=0)
    assert masks.sum() == (labels != 0).sum()


@pytest.mark.parametrize("ignore_index", [2**31 - 1, 2**24 + 1, -(2**40)])
def test_a_large_ignore_index(ignore_index):
    classifier, (features, labels) = make(ignore_index=ignore_index), draw(full=(16, 23))
    large = torch.where(labels == 255, ignore_index, labels)
    truth = make()(features, labels)
    outputs = classifier(features, large)
    assert torch.equal(outputs.oracle, truth.oracle)
    losses = cacseg.ContextLoss(ignore_index=ignore_index)(outputs, large)
    torch.testing.assert_close(losses["total"], cacseg.ContextLoss()(truth, labels)["total"])


@pytest.mark.parametrize("scale", [1e-4, 1e-3, 1.0, 1e3])
def test_float16_gradients_survive_loss_scaling(scale):
    """With the initial scale of a GradScaler, whatever the size of the features."""
    features, labels = draw((16, 16), dtype=torch.float32)
    features = (features * scale).requires_grad_()
    classifier = make(torch.float32)
    loss = cacseg.ContextLoss(plain_weight=0.0)  # the plain product is a convolution's, with its limits
    with torch.autocast("cpu", dtype=torch.float16):
        total = loss(classifier(features, labels), labels)["total"]
    (total * 2.0**12).backward()
    assert features.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in classifier.parameters())


def test_pickling():
    import pickle

    classifier, (features, _) = make(), draw()
    assert torch.equal(pickle.loads(pickle.dumps(classifier))(features), classifier(features))


RESIDUAL = dict(context_design="project_concat_residual", oracle_design="project_concat_residual")


def gradients(classifier, which, features, labels):
    """Of features, weight and bias, for the sum of squares of some of the logits."""
    features = features.clone().requires_grad_()
    outputs = classifier(features, labels)
    parameters = [features, classifier.weight, classifier.bias]
    found = torch.autograd.grad(getattr(outputs, which).square().sum(), parameters, allow_unused=True)
    return [torch.zeros_like(one) if grad is None else grad for grad, one in zip(found, parameters, strict=True)]


@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize("which", ["context", "oracle"])
def test_a_share_of_the_gradient_reaches_the_features(which, share):
    features, labels = draw()
    detached = dict(detach_plain=True, detach_weight=True)
    whole = gradients(make(**detached), which, features, labels)
    part = gradients(make(**detached, feature_gradient=share), which, features, labels)
    torch.testing.assert_close(part[0], share * whole[0])
    assert whole[0].abs().sum() > 0
    assert whole[1].abs().sum() == whole[2].abs().sum() == 0  # the plain classifier learns from the plain loss alone
    soft, hard = (gradients(make(**given), "plain", features, labels) for given in (detached, {}))
    assert all(map(torch.equal, soft, hard))


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_without_labels_the_same_share_reaches_the_features(share):
    features, labels = draw()
    classifier = make(**RESIDUAL, feature_gradient=share)
    seen = features.clone().requires_grad_()
    (found,) = torch.autograd.grad(classifier(seen).square().sum(), seen)
    torch.testing.assert_close(found, gradients(classifier, "context", features, labels)[0])


@pytest.mark.parametrize("shape", [(7,), (2, 3, 4)])
def test_the_place_of_a_class_needs_maps(shape):
    with pytest.raises(ValueError, match=r"reads 'place' needs maps, features \[b, d, h, w\]; got shape"):
        make(reads=("place",))(torch.randn(1, make().in_channels, *shape, dtype=make().weight.dtype))


def test_the_oracle_may_have_a_share_of_its_own():
    features, labels = draw()
    context, oracle = (
        gradients(make(detach_plain=True, feature_gradient=0.5, oracle_gradient=0.0), which, features, labels)[0]
        for which in ("context", "oracle")
    )
    assert context.abs().sum() > 0
    assert oracle.abs().sum() == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_branches_send_no_longer_a_gradient_than_a_ratio_allows(dtype):
    features, labels = draw()
    features = features.to(dtype)
    slopes = {}
    for ratio in (None, 0.5, 1e9):
        classifier = make(detach_plain=True, gradient_ratio=ratio).to(dtype)
        seen = features.clone().requires_grad_()
        outputs = classifier(seen, labels)
        terms = {name: getattr(outputs, name).float().square().sum() for name in ("plain", "context", "oracle")}
        (slopes[ratio],) = torch.autograd.grad(sum(terms.values()), seen, retain_graph=True)
        (plain,) = torch.autograd.grad(terms["plain"], seen)
    branches = slopes[None].double() - plain.double()
    assert branches.norm() > plain.norm()
    close = (
        {"rtol": 1e-6, "atol": 1e-9}
        if dtype == torch.float64
        else {"rtol": 0.05, "atol": float(plain.abs().max()) / 50}
    )
    torch.testing.assert_close(slopes[1e9].double(), slopes[None].double(), **close)
    expected = plain.double() + 0.5 * plain.double().norm() / branches.norm() * branches
    torch.testing.assert_close(slopes[0.5].double(), expected, **close)
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"gradient_ratio must be a positive number or None; got {wrong}"):
            make(gradient_ratio=wrong)
    with pytest.raises(TypeError, match="gradient_ratio must be a positive number or None; got '1'"):
        make(gradient_ratio="1")
    with pytest.raises(ValueError, match="label_sampling must be one of 'nearest', 'centred', 'aligned'; got 'middle'"):
        make(label_sampling="middle")


def test_from_zero_the_context_classifier_starts_as_the_plain_one():
    features, labels = draw()
    classifier = make(
        **RESIDUAL, zero_start=True, context_similarity="dot", context_bias=True, reads=("share", "scene", "place")
    )
    with torch.no_grad():
        classifier.bias.copy_(torch.randn(N))
    outputs = classifier(features, labels)
    torch.testing.assert_close(outputs.context, outputs.plain)
    torch.testing.assert_close(outputs.oracle, outputs.plain)
    torch.testing.assert_close(classifier(features), outputs.plain)
    outputs.context.square().sum().backward()
    assert classifier.context_projector[2].weight.grad.abs().sum() > 0
    with pytest.raises(ValueError, match="zero_start needs designs that add the weight"):
        make(zero_start=True)


def test_reading_shares_gives_each_class_a_bias_of_the_image():
    features, labels = draw()
    classifier = make(reads=["share"])
    assert [classifier.context_projector[i].weight.shape for i in (0, 2)] == [(D // 2, 2 * D + 1), (D + 1, D // 2)]
    before = classifier(features, labels)
    with torch.no_grad():
        classifier.context_projector[2].bias[-1] = 3.0
        classifier.oracle_projector[2].bias[-1] = -2.0
    after = classifier(features, labels)
    torch.testing.assert_close(after.context, before.context + 3.0)
    torch.testing.assert_close(after.oracle, before.oracle - 2.0)
    with pytest.raises(ValueError, match="dense batches"):
        classifier(features.flatten(2).movedim(1, 2).flatten(0, 1), offsets=torch.tensor([0, 24, 48]))
    with pytest.raises(ValueError, match="designs with a projector"):
        make(reads=["share"], oracle_design="prototype")


def test_shares_of_classes():
    """0 for a class that is not there, 1 for the whole image, between them by the logarithm."""
    labels = torch.tensor([[0, 0, 0, 1], [2, 2, 2, 2], [-1, -1, -1, -1]])
    found = functional.oracle_shares(labels, 4, ignore_index=-1)
    expected = [1 - torch.log(torch.tensor(part)) / torch.log(torch.tensor(1e-4)) for part in (0.75, 0.25)]
    torch.testing.assert_close(found[0], torch.stack([*expected, torch.zeros(()), torch.zeros(())]))
    assert found[1:].tolist() == [[0, 0, 1, 0], [0, 0, 0, 0]]
    logits = torch.where(functional.class_masks(labels[:2], 4, -1) > 0, 50.0, 0.0)
    torch.testing.assert_close(functional.context_shares(logits), found[:2])


@pytest.mark.parametrize("threshold", [0.0, 0.5])
def test_a_second_round_pools_by_the_answer_of_the_first(threshold):
    features, labels = draw()
    classifier, first = make(rounds=2, confidence_threshold=threshold), make(confidence_threshold=threshold)
    outputs, before = classifier(features, labels), first(features, labels)
    prototypes = functional.context_prototypes(features, before.context, confidence_threshold=threshold)
    joined = torch.cat([prototypes, first.weight.flatten(1).expand_as(prototypes)], dim=-1)
    expected = functional.cosine_logits(features, first.context_projector(joined), first.scale)
    torch.testing.assert_close(outputs.context, expected)
    torch.testing.assert_close(classifier(features), expected)
    torch.testing.assert_close(outputs.oracle, before.oracle)
    assert not torch.allclose(expected, before.context)
    rows, offsets = features.flatten(2).movedim(1, 2).flatten(0, 1), torch.tensor([0, 24, 48])
    packed = classifier(rows, offsets=offsets).unflatten(0, (2, 24)).movedim(1, 2).unflatten(2, features.shape[2:])
    torch.testing.assert_close(packed, expected)


def test_a_second_round_has_gradients_through_both():
    features, labels = draw()
    classifier = make(rounds=2)
    classifier(features, labels).context.square().sum().backward()
    assert classifier.context_projector[0].weight.grad.abs().sum() > 0
    assert classifier.bias.grad.abs().sum() > 0  # through the plain logits, which pool the first prototypes
    apart = make(rounds=2, detach_plain=True)
    apart(features, labels).context.square().sum().backward()
    assert apart.bias.grad is None


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(rounds=0), ValueError, "rounds must be at least 1; got 0"),
        (dict(detach_prototypes="no"), TypeError, "detach_prototypes must be True or False; got 'no'"),
        (dict(detach_prototypes=True, context_design="weight"), ValueError, "context_design='weight' has none"),
        (dict(rounds=1.5), TypeError, "rounds must be an integer; got 1.5"),
        (dict(rounds=True), TypeError, "rounds must be an integer; got True"),
        (dict(rounds=2, context_design="weight"), ValueError, "context_design='weight' has none"),
    ],
)
def test_rounds_that_cannot_be(arguments, error, message):
    with pytest.raises(error, match=message):
        make(**arguments)


def gradients_of(term, **arguments):
    """Of one term of the loss: into the features, and into all that the classifier learns."""
    features, labels = draw()
    features.requires_grad_()
    classifier = make(**arguments)
    losses = cacseg.ContextLoss("released")(classifier(features, labels), labels)
    learnt = dict(classifier.named_parameters())
    found = torch.autograd.grad(losses[term], [features, *learnt.values()], allow_unused=True)
    return losses[term], found[0], dict(zip(learnt, found[1:], strict=True))


def test_the_distillation_has_a_gradient_of_its_own():
    loss, features, learnt = gradients_of("distillation")
    other, nothing, theirs = gradients_of("distillation", distillation_gradient=0.0)
    torch.testing.assert_close(other, loss)
    assert features.abs().sum() > 0
    assert nothing is None or nothing.abs().sum() == 0
    for name in ("context_projector.0.weight", "context_projector.2.bias"):
        torch.testing.assert_close(theirs[name], learnt[name])
    assert theirs["bias"] is None or theirs["bias"].abs().sum() == 0  # comes through the plain logits alone
    _, half, _ = gradients_of("distillation", distillation_gradient=0.5)
    assert 0 < half.abs().sum() < features.abs().sum()


def test_the_gradient_of_the_distillation_leaves_the_others_alone():
    for term in ("plain", "context", "oracle"):
        for ours, theirs in zip(gradients_of(term), gradients_of(term, distillation_gradient=0.0), strict=True):
            if isinstance(ours, dict):
                for name, value in ours.items():
                    assert (value is None) == (theirs[name] is None)
                    if value is not None:
                        torch.testing.assert_close(theirs[name], value)
            else:
                torch.testing.assert_close(theirs, ours)


def test_a_learnable_scale_starts_at_the_scale():
    features, labels = draw()
    classifier = make(learnable_scale=True)
    torch.testing.assert_close(classifier(features, labels).context, make()(features, labels).context)
    classifier(features, labels).oracle.sum().backward()
    assert classifier.scale_factor.grad is not None


@pytest.mark.parametrize("packed", [False, True])
def test_the_answer(packed):
    features, _ = draw()
    offsets = None
    if packed:
        features, offsets = features.flatten(2).movedim(1, 2).flatten(0, 1), torch.tensor([0, 24, 48])
    plain, context = make().both_logits(features, offsets)
    assert torch.equal(make()(features, offsets=offsets), context)
    assert torch.equal(make(answer="plain")(features, offsets=offsets), plain)
    mean = make(answer="mean")(features, offsets=offsets)
    torch.testing.assert_close(mean.softmax(1), (plain.softmax(1) + context.softmax(1)) / 2)
    with pytest.raises(ValueError, match="answer must be one of"):
        make(answer="both")


@pytest.mark.parametrize("scope", ["image", "batch"])
def test_what_projectors_read_has_gradients_and_is_of_each_image(scope):
    features, labels = draw()
    classifier = make(reads=("place", "scene"), oracle_scope=scope)
    assert classifier.reads == ("scene", "place")
    assert classifier.context_projector[0].weight.shape[1] == 2 * D + D + 8
    with torch.no_grad():
        for projector in (classifier.context_projector, classifier.oracle_projector):
            projector[2].weight[D:].normal_()
    outputs = classifier(features, labels)
    torch.testing.assert_close(classifier(features[1:]), outputs.context[1:])
    outputs.context.sum().backward(retain_graph=True)
    outputs.oracle.sum().backward()
    for name, parameter in classifier.named_parameters():
        if "projector" in name:
            assert parameter.grad.abs().sum() > 0, name
    with pytest.raises(ValueError, match="reads must be one of"):
        make(reads=["weather"])


def test_place_codes_know_where_a_pixel_is():
    codes = functional.place_codes(torch.zeros(1, 1, 6, 8))
    assert codes.shape == (8, 6, 8)
    assert len({tuple(code.tolist()) for code in codes.flatten(1).T}) == 48
    torch.testing.assert_close(codes[0, :, 0], ((torch.arange(6) + 0.5) / 6 * torch.pi).sin())
