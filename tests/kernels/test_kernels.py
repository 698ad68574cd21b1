"""Every kernel against the readable form in float64. On the CPU with TRITON_INTERPRET=1, else on a CUDA device.

An error may not exceed that of the same readable form at the same precision, but for a small allowance.
"""

import copy
import os

import pytest
import torch

import cacseg
from cacseg import functional, ops
from cacseg.functional.distillation import DISTILLATION_FORMS

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
pytestmark = (
    []
    if INTERPRETED
    else [
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    ]
)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# The interpreter cuts bits off where a device rounds to bfloat16; what many such steps add up to says nothing.
SLOW_DTYPES = [torch.float32, *(pytest.param(one, marks=pytest.mark.slow) for one in DTYPES[1:])]
WHOLE_DTYPES = [SLOW_DTYPES[0], SLOW_DTYPES[2]] if INTERPRETED else SLOW_DTYPES
# What rounding once more may add, relative to the truth.
ALLOWANCE = {torch.float32: 1e-6, torch.bfloat16: 8e-3 if INTERPRETED else 2e-3, torch.float16: 3e-4}


def draw(*shape, dtype=torch.float32, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(shape, generator=generator)).to(DEVICE, dtype)


def draw_labels(n, *shape, seed=1, ignored=0.2):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, n, shape, generator=generator)
    labels[torch.rand(shape, generator=generator) < ignored] = 255
    return labels.to(DEVICE)


def distance(ours, truth):
    return ((ours.double() - truth.double()).norm() / truth.double().norm().clamp_min(1e-30)).item()


def results(function, inputs, dtype, seed=5):
    """Output and gradients of inputs, for a random gradient of the output."""
    leaves = [one.detach().to(dtype).requires_grad_() for one in inputs]
    output = function(*leaves)
    outputs = output if isinstance(output, tuple | list) else (output,)
    # Few bits, so that every precision has the same.
    weights = [draw(*one.shape, seed=seed + index).bfloat16().to(one.dtype) for index, one in enumerate(outputs)]
    total = sum((one * weight).double().sum() for one, weight in zip(outputs, weights, strict=True))
    return [*outputs, *torch.autograd.grad(total, leaves)]


def check(function, readable, inputs, dtype):
    """Ours is no further from the truth than the readable form at the same precision."""
    inputs = [one.to(dtype) for one in inputs]
    truth = results(readable, [one.double() for one in inputs], torch.float64)
    ours, plain = results(function, inputs, dtype), results(readable, inputs, dtype)
    for mine, theirs, true in zip(ours, plain, truth, strict=True):
        assert mine.isfinite().all()
        assert distance(mine, true) <= distance(theirs, true) + ALLOWANCE[dtype]


SIZES = [
    ((3, 4), (12, 16)),
    ((5, 7), (13, 9)),  # odd ratios
    ((8, 6), (3, 2)),  # downsampling
    ((4, 1), (1, 9)),
    ((5, 6), (5, 6)),
    ((2, 131), (4, 200)),  # more columns than a block: with a halo
]


@pytest.mark.parametrize(("size", "full"), SIZES)
def test_cross_entropy(size, full):
    logits, labels = draw(2, 6, *size, scale=3), draw_labels(6, 2, *full)
    for align_corners in (False, True):
        options = dict(align_corners=align_corners)
        check(
            lambda p, o=options: ops.upsampled_cross_entropy(p, labels, impl="triton", **o),
            lambda p, o=options: functional.upsampled_cross_entropy(p, labels, **o),
            [logits],
            torch.float32,
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_options_of_the_cross_entropy(dtype):
    logits, labels = draw(1, 9, 2, 5, scale=3), draw_labels(9, 1, 4, 15)
    weight = torch.linspace(0.2, 2.0, 9, device=DEVICE)
    for options, average in (
        ({"weight": weight}, "labelled"),
        ({"label_smoothing": 0.1}, "all"),
        ({"weight": weight, "label_smoothing": 0.3}, "labelled"),
    ):
        check(
            lambda p, o=options, a=average: ops.upsampled_cross_entropy(p, labels, impl="triton", average=a, **o),
            lambda p, o=options, a=average: functional.upsampled_cross_entropy(p, labels, average=a, **o),
            [logits],
            dtype,
        )


def test_cross_entropy_of_extreme_scores():
    """Differences beyond what float32 can hold as a power; a score is known to its own rounding, 2**-24 of 2000."""
    logits, labels = draw(1, 5, 3, 4, scale=500), draw_labels(5, 1, 9, 12)
    ours = results(lambda p: ops.upsampled_cross_entropy(p, labels, impl="triton"), [logits], torch.float32)
    truth = results(lambda p: functional.upsampled_cross_entropy(p, labels), [logits.double()], torch.float64)
    for mine, true in zip(ours, truth, strict=True):
        assert distance(mine, true) < 2000 * 2.0**-24


def test_one_class_and_nothing_labelled():
    logits = draw(1, 1, 3, 4).requires_grad_()
    loss = ops.upsampled_cross_entropy(logits, torch.zeros(1, 6, 8, dtype=torch.long, device=DEVICE), impl="triton")
    assert abs(loss.item()) < 1e-6  # log 1, but for rounding
    logits = draw(2, 5, 3, 4).requires_grad_()
    nothing = torch.full((2, 6, 8), 255, device=DEVICE)
    loss = ops.upsampled_cross_entropy(logits, nothing, impl="triton")
    loss.backward()
    assert loss.item() == 0.0
    assert (logits.grad == 0).all()


def test_channels_last_strided_and_uint8():
    logits, labels = draw(2, 6, 4, 8), draw_labels(6, 2, 8, 16)
    truth = results(lambda p: functional.upsampled_cross_entropy(p, labels), [logits.double()], torch.float64)
    last = logits.contiguous(memory_format=torch.channels_last)
    strided = logits.repeat(1, 1, 1, 2)[..., :8]
    for other in (last, strided):
        leaf = other.detach().requires_grad_()
        narrow = labels.to(torch.uint8).transpose(1, 2).contiguous().transpose(1, 2)
        loss = ops.upsampled_cross_entropy(leaf, narrow, impl="triton")
        (gradient,) = torch.autograd.grad(loss, leaf)
        assert loss.item() == pytest.approx(truth[0].item(), rel=1e-6)
        weight = draw(seed=5).bfloat16().double()
        assert distance(gradient * weight, truth[1]) < 1e-6


def test_three_losses_from_one_launch_are_three_losses():
    logits, labels = [draw(2, 6, 4, 5, seed=seed, scale=2) for seed in range(3)], draw_labels(6, 2, 12, 15)
    corners, averages = (True, False, True), ("labelled", "all", "labelled")
    together = results(
        lambda *p: ops.upsampled_cross_entropies(p, labels, align_corners=corners, averages=averages, impl="triton"),
        logits,
        torch.float32,
    )
    alone = results(
        lambda *p: [
            functional.upsampled_cross_entropy(one, labels, align_corners=corner, average=average)
            for one, corner, average in zip(p, corners, averages, strict=True)
        ],
        [one.double() for one in logits],
        torch.float64,
    )
    for ours, truth in zip(together, alone, strict=True):
        assert distance(ours, truth) < 1e-6


@pytest.mark.parametrize("dtype", SLOW_DTYPES)
@pytest.mark.parametrize("scope", ["image", "batch"])
@pytest.mark.parametrize("soft", [1.0, 0.5])
def test_distillation(dtype, scope, soft):
    context, oracle = draw(2, 7, 5, 9, scale=2), draw(2, 7, 5, 9, seed=2, scale=2).to(dtype)
    labels = draw_labels(5, 2, 10, 18)
    labels[1] = 255 if scope == "image" else labels[1]  # an image without any label
    common = dict(scope=scope, soft_target_weight=soft)

    def distilled(p, form):
        found = ops.pixel_losses(p, oracle.to(p.dtype), labels, form, overlap=False, impl="triton", **common)
        return found["distillation"]

    for form in DISTILLATION_FORMS:
        check(
            lambda p, f=form: distilled(p, f),
            lambda p, f=form: functional.distillation(p, oracle.to(p.dtype), labels, f, **common),
            [context],
            dtype,
        )


@pytest.mark.parametrize("dtype", SLOW_DTYPES)
@pytest.mark.parametrize(("n", "spatial"), [(7, (5, 9)), (2, (3,)), (19, (2, 3, 70))])
def test_overlap(dtype, n, spatial):
    """More pixels and classes than are read at once, and a class that no image has."""
    logits, labels = draw(2, n, *spatial, scale=2), draw_labels(n - 1, 2, *spatial)
    labels[0, 0] = 255
    last = logits.movedim(1, -1).contiguous().movedim(-1, 1)
    for one in (logits, last):
        check(
            lambda p: ops.overlap_loss(p, labels, impl="triton"),
            lambda p: functional.overlap_loss(p, labels),
            [one],
            dtype,
        )
    points = logits.movedim(1, -1).flatten(0, -2)
    check(
        lambda p: ops.overlap_loss(p, labels.flatten(), impl="triton"),
        lambda p: functional.overlap_loss(p, labels.flatten()),
        [points],
        dtype,
    )


@pytest.mark.parametrize("block", [16, 128])
@pytest.mark.parametrize("scope", ["image", "batch"])
def test_distillation_and_overlap_together(monkeypatch, block, scope):
    """From the same passes, however the pixels are shared out; and each of them where it is alone."""
    from cacseg.kernels import pixel_losses

    monkeypatch.setattr(pixel_losses, "BLOCK", block)
    context, oracle = draw(2, 11, 9, 7, scale=2), draw(2, 11, 9, 7, seed=2, scale=2)
    labels, options = draw_labels(10, 2, 9, 7), dict(scope=scope, soft_target_weight=0.5)
    check(
        lambda p: tuple(ops.pixel_losses(p, oracle, labels, impl="triton", **options).values()),
        lambda p: (
            functional.distillation(p, oracle.to(p.dtype), labels, **options),
            functional.overlap_loss(p, labels),
        ),
        [context],
        torch.float32,
    )
    leaf = context.clone().requires_grad_()
    both = ops.pixel_losses(leaf, oracle, labels, impl="triton", **options)
    alone = {
        **ops.pixel_losses(leaf, oracle, labels, overlap=False, impl="triton", **options),
        "overlap": ops.overlap_loss(leaf, labels, impl="triton"),
    }
    assert list(both) == list(alone)
    for name, loss in alone.items():
        assert torch.equal(both[name], loss)
        gradients = (torch.autograd.grad(one, leaf, retain_graph=True)[0] for one in (both[name], loss))
        assert torch.equal(*gradients)


@pytest.mark.parametrize("value", [100.0, float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("distilled", [False, True])
def test_losses_of_what_is_ignored(value, distilled):
    logits, labels = draw(2, 6, 4, 7, scale=3), draw_labels(6, 2, 4, 7)
    ignored = (labels == 255)[:, None].expand_as(logits)
    oracle = draw(2, 6, 4, 7, seed=2).where(~ignored, value) if distilled else None

    def total(leaf):
        return sum(ops.pixel_losses(leaf, oracle, labels, impl="triton").values())

    found = []
    for one in (logits, logits.where(~ignored, value)):
        leaf = one.clone().requires_grad_()
        loss = total(leaf)
        found.append((loss, *torch.autograd.grad(loss, leaf)))
    torch.testing.assert_close(found[1], found[0], rtol=0.0, atol=0.0)
    assert ignored.any()
    assert (found[1][1][ignored] == 0).all()
    broken = logits.clone()
    broken[1, 0][labels[1] != 255] = float("nan")
    broken.requires_grad_()
    loss = total(broken)
    assert loss.isnan()
    assert (torch.autograd.grad(loss, broken)[0][ignored] == 0).all()


def test_overlap_of_sure_and_of_no_pixels():
    """Scores whose differences no power can hold, some of them -inf, and a batch without any label."""
    logits, labels = draw(1, 9, 3, 4, scale=1000), draw_labels(5, 1, 3, 4) + 4
    labels[labels > 8] = 255
    logits[:, :4] = -float("inf")  # more of them than a thread reads at once
    for one in (logits, logits / 1000):
        leaf = one.clone().requires_grad_()
        truth, found = functional.overlap_loss(leaf.double(), labels), ops.overlap_loss(leaf, labels, impl="triton")
        assert found.item() == pytest.approx(truth.item(), abs=1e-6)
        of_truth, of_found = (torch.autograd.grad(loss, leaf)[0] for loss in (truth, found))
        torch.testing.assert_close(of_found, of_truth, rtol=1e-4, atol=1e-7)
    leaf = logits.clone().requires_grad_()
    loss = ops.overlap_loss(leaf, torch.full_like(labels, 255), impl="triton")
    loss.backward()
    assert loss.item() == 0.0
    assert (leaf.grad == 0).all()


RESIDUAL = dict(context_design="project_concat_residual", oracle_design="project_concat_residual")


def whole_step(classifier, criterion, features, labels, dtype):
    features = features.detach().to(dtype).requires_grad_()
    classifier.zero_grad()
    torch.manual_seed(3)
    with torch.autocast(DEVICE, dtype=dtype, enabled=dtype in (torch.bfloat16, torch.float16)):
        losses = criterion(classifier(features, labels), labels)
    losses["total"].backward()
    gradients = [features.grad, *(one.grad for one in classifier.parameters())]
    return [
        *(value.detach() for value in losses.values()),
        *(None if one is None else one.clone() for one in gradients),
    ]


@pytest.fixture
def kernels_by_default(monkeypatch):
    """impl="auto" takes the kernels, in the interpreter too."""
    from cacseg.ops import _choice

    monkeypatch.setattr(_choice, "kernels_run_on", lambda device: True)


@pytest.mark.parametrize("dtype", WHOLE_DTYPES)
@pytest.mark.parametrize(
    ("preset", "options"),
    [
        ("released", {"dropout": 0.3}),
        ("paper", {}),
        pytest.param("released", RESIDUAL, marks=pytest.mark.slow),
        ("paper", {**RESIDUAL, "dropout": 0.3, "prototype_epsilon": 0.5}),
        ("tuned", {"zero_start": False, "bias": False}),
    ],
)
def test_a_whole_step(monkeypatch, dtype, preset, options):
    torch.manual_seed(0)
    classifier = cacseg.ContextAwareClassifier(20, 7, preset=preset, **options).to(DEVICE)
    compare_whole_steps(monkeypatch, classifier, draw(2, 20, 3, 4).to(dtype), dtype)


def test_a_whole_step_of_binary_segmentation(monkeypatch):
    torch.manual_seed(0)
    classifier = cacseg.ContextAwareClassifier(20, 1, zero_start=False).to(DEVICE)
    compare_whole_steps(monkeypatch, classifier, draw(2, 20, 3, 4), torch.float32)


@pytest.mark.slow
@pytest.mark.usefixtures("kernels_by_default")
def test_features_of_any_layout():
    """Channels last, and a part of a larger tensor: the gradient comes in a layout of its own."""
    classifier = cacseg.ContextAwareClassifier(20, 7, zero_start=False).to(DEVICE)
    features, labels = draw(2, 20, 3, 4), draw_labels(7, 2, 9, 12)
    last = features.contiguous(memory_format=torch.channels_last)
    part = torch.cat([features, features], dim=1)[:, :20]
    found = []
    for one in (features, last, part):
        leaf = one.detach().requires_grad_()
        loss = cacseg.ContextLoss()(classifier(leaf, labels), labels)["total"]
        found.append((loss, *torch.autograd.grad(loss, [leaf, classifier.weight])))
    torch.testing.assert_close(found[1:], [found[0]] * 2)


def compare_whole_steps(monkeypatch, classifier, features, dtype, allowance=0.0):
    """Ours is as near to the truth as plain torch at the same precision, and gives the same bits again."""
    from cacseg.ops import _choice

    criterion, labels = cacseg.ContextLoss(), draw_labels(max(2, classifier.num_classes), 2, 9, 12)
    truth = whole_step(copy.deepcopy(classifier).double(), criterion, features, labels, torch.float64)
    monkeypatch.setattr(_choice, "kernels_run_on", lambda device: False)
    plain = whole_step(classifier, criterion, features, labels, dtype)
    monkeypatch.setattr(_choice, "kernels_run_on", lambda device: True)
    ours = whole_step(classifier, criterion, features, labels, dtype)
    for mine, theirs, true in zip(ours, plain, truth, strict=True):
        assert distance(mine, true) <= 1.3 * distance(theirs, true) + 2 * ALLOWANCE[dtype] + allowance
    if not INTERPRETED:  # there nothing runs beside anything else
        again = whole_step(classifier, criterion, features, labels, dtype)
        assert all(torch.equal(one, other) for one, other in zip(ours, again, strict=True))


@pytest.mark.usefixtures("kernels_by_default")
def test_a_term_of_weight_zero_leaves_the_oracle_alone():
    classifier = cacseg.ContextAwareClassifier(20, 7, preset="released").to(DEVICE)
    criterion = cacseg.ContextLoss(oracle_weight=0.0, kl_weight=0.0)
    whole_step(classifier, criterion, draw(2, 20, 3, 5), draw_labels(7, 2, 6, 10), torch.float32)
    assert all(one.grad is None for one in classifier.oracle_projector.parameters())
    assert classifier.context_projector[0].weight.grad.abs().sum() > 0


@pytest.mark.usefixtures("kernels_by_default")
def test_inference_equals_that_of_plain_torch(monkeypatch):
    from cacseg.ops import _choice

    classifier, features = cacseg.ContextAwareClassifier(20, 7, preset="released").to(DEVICE).eval(), draw(2, 20, 3, 5)
    with torch.inference_mode():
        ours = classifier(features)
        monkeypatch.setattr(_choice, "kernels_run_on", lambda device: False)
        assert distance(ours, classifier(features)) < 2e-6


def test_labels_at_another_size():
    from cacseg.ops.labels import fitted_labels

    for full, size in (((12, 16), (3, 4)), ((7, 9), (5, 4)), ((3, 5), (8, 6))):
        labels = draw_labels(6, 2, *full)
        labels[0, 0, 0] = 77  # no class: counts as ignored
        for sampling in ("nearest", "centred", "aligned"):
            expected = functional.fit_labels(labels, size, 6, 255, sampling)
            assert torch.equal(fitted_labels(labels, *size, 6, 255, sampling), expected)


def vanishing(classifier):
    """A class without probability (-300), and some whose mass is near the authors' epsilon."""
    with torch.no_grad():
        classifier.bias[1:5] = torch.tensor([-300.0, -28.0, -31.0, -26.0])
    return classifier


@pytest.mark.parametrize("epsilon", [0.0, pytest.param(1e-12, marks=pytest.mark.slow)])
def test_prototypes_of_vanishing_classes(monkeypatch, epsilon):
    """Logits and gradients with classes whose prototypes the epsilon shrinks, or leaves as they are."""
    torch.manual_seed(0)
    classifier = cacseg.ContextAwareClassifier(20, 7, preset="paper", prototype_epsilon=epsilon).to(DEVICE)
    rounding = 300 * 2.0**-24  # of a score of -300, and so of the logarithm of a share
    compare_whole_steps(monkeypatch, vanishing(classifier), draw(2, 20, 3, 4), torch.float32, allowance=2 * rounding)


def test_operators_pass_torchs_own_checks():
    operators = torch.ops.cacseg
    checks = ("test_schema", "test_faketensor")
    logits, labels = draw(2, 6, 3, 4).requires_grad_(), draw_labels(6, 2, 6, 8)
    torch.library.opcheck(
        operators.fused_cross_entropy.default,
        (logits, None, None, labels, None, 255, 0.1, [False], [False]),
        test_utils=checks,
    )
    small = functional.fit_labels(labels, (3, 4), 6)
    torch.library.opcheck(
        operators.fused_pixel_losses.default,
        (logits, draw(2, 6, 3, 4), small, 0.5, True, True, True, True),
        test_utils=checks,
    )
    for one, of_one in ((logits, small), (logits.mT.contiguous().mT, small), (draw(12, 6), small[0].flatten())):
        leaf = one.detach().requires_grad_()
        options = (0.0, False, False, False, True)
        torch.library.opcheck(operators.fused_pixel_losses.default, (leaf, None, of_one, *options), test_utils=checks)
        _, of_loss, *kept = operators.fused_pixel_losses(leaf.detach(), None, of_one, *options)
        arguments = (None, of_loss, leaf.detach(), None, of_one, *kept, 0.0)
        torch.library.opcheck(operators.fused_pixel_losses_backward.default, arguments, test_utils=checks)
    features, weight, bias = draw(2, 8, 3, 4).requires_grad_(), draw(6, 8), draw(6)
    projector = (draw(4, 16), draw(8, 4), draw(8))
    torch.library.opcheck(
        operators.fused_classifier.default,
        (features, weight, bias, None, *projector, *projector, small, 15.0, True, True, 1e-12),
        test_utils=checks,
    )


@pytest.mark.slow
@pytest.mark.usefixtures("kernels_by_default")
def test_compiled_code_takes_the_operators():
    """Traced whole, with gradients, and equal to what runs without tracing."""
    classifier, criterion = cacseg.ContextAwareClassifier(20, 7, preset="released").to(DEVICE), cacseg.ContextLoss()
    features, labels = draw(2, 20, 3, 5), draw_labels(7, 2, 6, 10)
    compiled = torch.compile(lambda f, y: criterion(classifier(f, y), y)["total"], fullgraph=True, backend="aot_eager")
    gradients = []
    for function in (compiled, lambda f, y: criterion(classifier(f, y), y)["total"]):
        leaf = features.clone().requires_grad_()
        classifier.zero_grad()
        function(leaf, labels).backward()
        gradients.append([leaf.grad, *(one.grad.clone() for one in classifier.parameters())])
    torch.testing.assert_close(gradients[0], gradients[1])


@pytest.mark.parametrize(
    ("loss", "name"), [("upsampled_cross_entropy", "fused_cross_entropy"), ("overlap_loss", "fused_pixel_losses")]
)
def test_second_derivatives_are_refused(loss, name):
    logits, labels = draw(1, 4, 3, 3).requires_grad_(), draw_labels(4, 1, 6, 6)
    value = getattr(ops, loss)(logits, labels, impl="triton")
    (gradient,) = torch.autograd.grad(value, logits, create_graph=True)
    with pytest.raises(NotImplementedError, match=f"{name}\\S* is differentiable once"):
        gradient.square().sum().backward()
