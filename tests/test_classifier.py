import copy

import numpy as np
import pytest
import torch
from torch import nn

import cacseg
from cacseg import functional
from cacseg.designs import DESIGNS
from recorded import striped_labels, wave
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
        (dict(num_classes=0), "num_classes must be at least 1.*; got 0"),
        (dict(in_channels=1), "in_channels must be at least 2"),
        (dict(dropout=1.0), r"dropout must be in \[0, 1\); got 1.0"),
        (dict(scale=0.0), "scale must be positive and finite; got 0.0"),
        (dict(scale=float("inf")), "scale must be positive and finite; got inf"),
        (dict(preset="papers"), "preset must be one of 'tuned', 'released', 'paper'; got 'papers'"),
        (dict(oracle_scope="pixel"), "oracle_scope must be one of 'image', 'batch'; got 'pixel'"),
        (dict(context_design="concat"), "context_design must be one of .*; got 'concat'"),
        (dict(plain_similarity="cosine"), "plain_similarity='cosine' has no bias; got bias=True. Pass bias=False"),
        (dict(prototype_epsilon=-1.0), r"prototype_epsilon must be finite and not negative; got -1.0"),
        (
            dict(zero_start=True, preset="paper"),
            "zero_start needs .* 'project_concat_residual' .*; got 'project_concat'",
        ),
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
            for name in ("bias", "frozen_oracle", "zero_start")
            for value in ("maybe", 1)
        ),
        *(("scale", value, f"scale must be a number; got {value!r}") for value in ("abc", True, None)),
        *(
            (name, value, rf"{name} must be a number in \[0, 1\); got {value!r}")
            for name in ("dropout",)
            for value in ("abc", False)
        ),
        ("scale", torch.ones(2), "scale must be a number; got tensor"),
        ("prototype_epsilon", True, "prototype_epsilon must be a number; got True"),
        ("num_classes", 5.0, "num_classes must be an integer; got 5.0"),
        ("in_channels", True, "in_channels must be an integer; got True"),
        ("ignore_index", "255", "ignore_index must be an integer; got '255'"),
    ],
)
def test_arguments_of_a_wrong_type_are_refused(name, value, message):
    with pytest.raises(TypeError, match=message):
        cacseg.ContextAwareClassifier(**{"in_channels": D, "num_classes": N, name: value})


@pytest.mark.parametrize("name", ["dropout", "scale", "prototype_epsilon"])
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
        (lambda f, y: (f, y[:, None]), ValueError, r"got shape \(2, 1, 4, 6\).*labels\[:, 0\]"),
        (
            lambda f, y: (f, y[:, None].expand(-1, N, -1, -1)),
            ValueError,
            r"got shape \(2, 5, 4, 6\).*labels\.argmax\(1\)",
        ),
        (lambda f, y: (f, y.repeat(1, 16, 16).mT), ValueError, "labels 96x64 and features 4x6.*labels.mT"),
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
    with pytest.raises(ValueError, match=r"which has bias=False; got the other\. Leave it out"):
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


def test_from_zero_the_context_classifier_starts_as_the_plain_one():
    features, labels = draw()
    classifier = make(**RESIDUAL, zero_start=True, context_similarity="dot", bias=False)
    outputs = classifier(features, labels)
    torch.testing.assert_close(outputs.context, outputs.plain)
    torch.testing.assert_close(outputs.oracle, outputs.plain)
    torch.testing.assert_close(classifier(features), outputs.plain)
    outputs.context.square().sum().backward()
    assert classifier.context_projector[2].weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("size", "full"),
    [
        ((128, 128), (512, 500)),  # padded to a multiple of 32, decoded at a stride of 4
        ((56, 56), (120, 126)),  # patches of 16, decoded at a stride of 2
        ((12, 16), (90, 121)),  # rounded to a stride of 8
        ((1, 2), (17, 40)),
        ((6, 8), (6, 8)),
    ],
)
def test_labels_that_a_stride_and_padding_explain(size, full):
    features, labels = torch.randn(1, D, *size, dtype=torch.float64), torch.randint(0, N, (1, *full))
    assert make()(features, labels).labels.shape == (1, *size)


@pytest.mark.parametrize(("size", "full"), [((64, 128), (1024, 512)), ((12, 16), (128, 96)), ((32, 32), (128, 512))])
def test_labels_of_another_aspect_ratio_are_refused(size, full):
    features, labels = torch.randn(1, D, *size, dtype=torch.float64), torch.randint(0, N, (1, *full))
    with pytest.raises(ValueError, match=f"labels {full[0]}x{full[1]} and features {size[0]}x{size[1]}"):
        make()(features, labels)


# Recorded before losing options were deleted: what the default computes must never change by accident.
TUNED = {
    "plain": 1.7465384126064771,
    "context": 2.8566901188687757,
    "oracle": 3.4717258038327863,
    "distillation": 2.9576253307549982,
    "overlap": 0.9067006281105442,
    "total": 13.75268155039467,
}
TUNED_GRADIENTS = {  # their lengths
    "features": 0.9539712672640525,
    "weight": 6.568212976283701,
    "bias": 0.1357609338238173,
    "context_projector.0.weight": 2.178853039025195,
    "context_projector.2.weight": 1.695896221449234,
    "context_projector.2.bias": 5.21210033961769,
    "oracle_projector.0.weight": 0.5389845980520505,
    "oracle_projector.2.weight": 0.5828219896463199,
    "oracle_projector.2.bias": 1.3288116891456279,
}


def test_the_default_computes_what_it_always_did():
    classifier = cacseg.ContextAwareClassifier(8, 5).double()
    with torch.no_grad():
        for index, parameter in enumerate(classifier.parameters()):
            parameter.copy_(wave(parameter.shape, index, 0.5))
    features, labels = wave((2, 8, 6, 7), 11).requires_grad_(), striped_labels((2, 24, 28), 5, 17)
    losses = cacseg.ContextLoss()(classifier(features, labels), labels)
    losses["total"].backward()
    assert {name: loss.item() for name, loss in losses.items()} == pytest.approx(TUNED, rel=1e-12)
    lengths = {name: one.grad.norm().item() for name, one in classifier.named_parameters()}
    assert {"features": features.grad.norm().item(), **lengths} == pytest.approx(TUNED_GRADIENTS, rel=1e-11)
    assert classifier.eval()(features).norm().item() == pytest.approx(111.16549190769375, rel=1e-12)


def prototypes_by_the_authors_formula(features, weight, bias, epsilon=1e-12):
    """(p @ x) / (p.sum + 1e-12), as it stands in their code."""
    probability = (torch.einsum("nd,bdl->bnl", weight, features) + bias[:, None]).softmax(dim=1)
    return probability @ features.transpose(1, 2) / (probability.sum(dim=-1, keepdim=True) + epsilon)


@pytest.mark.parametrize("packed", [False, True])
def test_a_vanishing_class_has_the_prototype_of_the_authors_code(packed):
    """Probability masses from 1 down to 1e-30; with another preset such a class has a mean all the same."""
    features, _ = draw(spatial=(24,))
    weight, bias = torch.zeros(N, D, dtype=torch.float64), torch.tensor([0.0, -23.0, -25.0, -27.0, -70.0]).double()
    expected = prototypes_by_the_authors_formula(features, weight, bias)
    scale = expected.norm(dim=-1) / features.mean(dim=-1).norm(dim=-1, keepdim=True)
    assert ((scale[:, 1:4] < 1.0) & (scale[:, 1:4] > 0.0)).all()
    assert (scale[:, 4] < 1e-15).all()
    offsets = None
    if packed:
        offsets, features = torch.tensor([0, 24, 48]), features.transpose(1, 2).flatten(0, 1)
    plain = functional.plain_logits(features, weight, bias)
    found = functional.context_prototypes(features, plain, epsilon=1e-12, offsets=offsets)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    means = functional.context_prototypes(features, plain, offsets=offsets)
    torch.testing.assert_close(means, means[:, :1].expand_as(means))


def test_only_released_has_the_authors_epsilon():
    found = {
        name: cacseg.ContextAwareClassifier(D, N, preset=name).prototype_epsilon for name in cacseg.presets.PRESETS
    }
    assert found == {"tuned": 0.0, "released": 1e-12, "paper": 0.0}


def test_the_epsilon_reaches_the_logits():
    features, _ = draw()
    classifier = make()
    with torch.no_grad():
        classifier.bias[0] = -80.0
    other = make(prototype_epsilon=0.0)
    other.load_state_dict(classifier.state_dict())
    assert (classifier(features)[:, 0] - other(features)[:, 0]).abs().max() > 0.1
    torch.testing.assert_close(classifier(features)[:, 1:], other(features)[:, 1:])
