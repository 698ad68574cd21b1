import pytest
import torch
from torch.nn import functional as F

import cacseg
from cacseg import functional, ops
from cacseg.ops import tiled_cross_entropy as tiles

SIZES = [
    ((3, 4), (12, 16)),
    ((5, 7), (13, 9)),  # odd ratios
    ((8, 6), (3, 2)),  # downsampling
    ((1, 1), (6, 5)),
    ((4, 1), (1, 9)),
    ((6, 4), (6, 11)),  # one axis keeps its size
    ((40, 30), (70, 300)),  # several tiles either way
]
OPTIONS = {
    "plain": {},
    "weighted": {"weight": True},
    "smoothed": {"label_smoothing": 0.1},
    "both": {"weight": True, "label_smoothing": 0.3},
    "over_all": {"average": "all", "weight": True},
}


def draw(size, full, n=6, b=2, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = (3 * torch.randn(b, n, *size, generator=generator)).to(dtype).requires_grad_()
    labels = torch.randint(0, n, (b, *full), generator=generator)
    labels[torch.rand(labels.shape, generator=generator) < 0.2] = 255
    return logits, labels


def given(options, n=6, dtype=torch.float64):
    weight = torch.linspace(0.2, 2.0, n, dtype=dtype)
    return {**options, "weight": weight} if "weight" in options else dict(options)


@pytest.mark.parametrize(("size", "full"), SIZES)
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.usefixtures("small_tiles")
def test_value_and_gradient_equal_the_plain_expression(size, full, align_corners, options):
    logits, labels = draw(size, full)
    options = given(OPTIONS[options])
    ours = ops.upsampled_cross_entropy(logits, labels, align_corners=align_corners, **options)
    truth = functional.upsampled_cross_entropy(logits, labels, align_corners=align_corners, **options)
    torch.testing.assert_close(ours, truth, rtol=1e-12, atol=1e-12)
    scale = torch.tensor(3.0).double()
    (gradient,) = torch.autograd.grad(ours, logits, scale)
    (true_gradient,) = torch.autograd.grad(truth, logits, scale)
    torch.testing.assert_close(gradient, true_gradient, rtol=1e-11, atol=1e-13)


@pytest.mark.usefixtures("small_tiles")
def test_gradcheck():
    logits, labels = draw((2, 3), (5, 7))
    for options in OPTIONS.values():
        torch.autograd.gradcheck(
            lambda p, options=options: ops.upsampled_cross_entropy(p, labels, **given(options)), logits
        )


@pytest.mark.usefixtures("small_tiles")
def test_the_operator_passes_torchs_own_checks():
    logits, labels = draw((2, 3), (5, 7))
    for with_gradient in (True, False):
        sample = logits if with_gradient else logits.detach()
        arguments = (sample, labels, None, 255, 0.1, False, False, with_gradient)
        # Not test_aot_dispatch_dynamic: it differentiates the second output too, which is refused.
        checks = ("test_schema", "test_autograd_registration", "test_faketensor")
        torch.library.opcheck(tiles.tiled_cross_entropy, arguments, test_utils=checks)


def test_one_dimension():
    logits, labels = draw((7,), (40,))
    ours = ops.upsampled_cross_entropy(logits, labels)
    truth = F.cross_entropy(F.interpolate(logits, size=40, mode="linear"), labels, ignore_index=255)
    torch.testing.assert_close(ours, truth)


def test_three_dimensions_and_equal_sizes_take_the_plain_expression():
    logits, labels = draw((2, 3, 2), (4, 6, 5))
    truth = F.cross_entropy(F.interpolate(logits, size=(4, 6, 5), mode="trilinear"), labels, ignore_index=255)
    torch.testing.assert_close(ops.upsampled_cross_entropy(logits, labels), truth)
    logits, labels = draw((5, 6), (5, 6))
    truth = F.cross_entropy(logits, labels, ignore_index=255)
    torch.testing.assert_close(ops.upsampled_cross_entropy(logits, labels), truth)


def test_packed_scores():
    logits, labels = torch.randn(9, 6).double(), torch.randint(0, 6, (9,))
    labels[2] = 255
    torch.testing.assert_close(
        ops.upsampled_cross_entropy(logits, labels), F.cross_entropy(logits, labels, ignore_index=255)
    )


@pytest.mark.usefixtures("small_tiles")
def test_all_ignored_gives_zero_and_zero_gradient():
    logits, labels = draw((3, 4), (12, 16))
    for options in OPTIONS.values():
        loss = ops.upsampled_cross_entropy(logits, torch.full_like(labels, 255), **given(options))
        (gradient,) = torch.autograd.grad(loss, logits)
        assert loss.item() == 0.0
        assert (gradient == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_error_is_not_above_that_of_the_plain_expression(dtype):
    """Against float64 truth on the same rounded logits; the plain expression is given float32 logits."""
    logits, labels = draw((16, 16), (61, 64), n=20, dtype=dtype)
    truth = functional.upsampled_cross_entropy(logits.double(), labels)
    (true_gradient,) = torch.autograd.grad(truth, logits)
    exact = logits.detach().double().requires_grad_()
    (exact_gradient,) = torch.autograd.grad(functional.upsampled_cross_entropy(exact, labels), exact)
    assert true_gradient.dtype == dtype

    def errors(function, source):
        loss = function(source, labels)
        (gradient,) = torch.autograd.grad(loss, source)
        distance = (gradient.double() - exact_gradient).norm() / exact_gradient.norm()
        return abs(loss.item() - truth.item()) / truth.item(), distance.item()

    ours, plain = errors(ops.upsampled_cross_entropy, logits), errors(functional.upsampled_cross_entropy, logits)
    assert ours[0] <= plain[0] + 1e-6
    assert ours[1] <= plain[1] + 1e-6


def test_the_gradient_survives_loss_scaling_in_float16():
    """A mean over many pixels is below the smallest float16; a scaled loss must still give a gradient."""
    logits, labels = draw((16, 16), (512, 512), dtype=torch.float16)
    loss = ops.upsampled_cross_entropy(logits, labels) * 2.0**14
    loss.backward()
    exact = logits.detach().double().requires_grad_()
    (functional.upsampled_cross_entropy(exact, labels) * 2.0**14).backward()
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=2e-3, atol=2e-3)


def test_channels_last_and_strided_inputs():
    logits, labels = draw((6, 8), (12, 16))
    truth = ops.upsampled_cross_entropy(logits, labels)
    last = logits.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    strided = logits.detach().repeat(1, 1, 1, 2)[..., :8].requires_grad_()
    for other in (last, strided):
        loss = ops.upsampled_cross_entropy(other, labels.transpose(1, 2).contiguous().transpose(1, 2))
        torch.testing.assert_close(loss, truth)
        (gradient,) = torch.autograd.grad(loss, other)
        torch.testing.assert_close(gradient, torch.autograd.grad(truth, logits, retain_graph=True)[0])


def test_autocast_does_not_narrow_it():
    logits, labels = draw((6, 8), (12, 16), dtype=torch.float32)
    truth = ops.upsampled_cross_entropy(logits, labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(ops.upsampled_cross_entropy(logits, labels), truth)


def test_no_gradient_is_formed_where_none_is_wanted():
    logits, labels = draw((6, 8), (12, 16))
    with torch.no_grad():
        loss = ops.upsampled_cross_entropy(logits, labels)
    assert not loss.requires_grad
    _, gradient = tiles.tiled_cross_entropy(logits.detach(), labels, None, 255, 0.0, False, False, False)
    assert gradient.numel() == 0


def test_second_derivatives_are_refused():
    logits, labels = draw((6, 8), (12, 16))
    (gradient,) = torch.autograd.grad(ops.upsampled_cross_entropy(logits, labels), logits, create_graph=True)
    with pytest.raises(NotImplementedError, match="differentiable once"):
        gradient.square().sum().backward()


def test_wrong_labels_are_refused():
    logits, labels = draw((6, 8), (12, 16))
    labels[0, 0, :3] = torch.tensor([6, 77, -1])
    with pytest.raises(ValueError, match=r"in \[0, 6\) or the ignore index 255; got the values -1, 6, 77 in 3 of 384"):
        cacseg.upsampled_cross_entropy(logits, labels)
    with pytest.raises(TypeError, match=r"labels must be integers \(class indices\); got torch.float32"):
        cacseg.upsampled_cross_entropy(logits, labels.float())
    with pytest.raises(ValueError, match=r"got shape \(2, 1, 12, 16\).*labels\[:, 0\]"):
        cacseg.upsampled_cross_entropy(logits, labels[:, None])
    good = labels.clamp(0, 5)
    with pytest.raises(ValueError, match=r"one number for each of the 6 classes; got shape \(7,\)"):
        cacseg.upsampled_cross_entropy(logits, good, weight=torch.ones(7))
    with pytest.raises(ValueError, match=r"label_smoothing must be in \[0, 1\]; got 3.0"):
        cacseg.upsampled_cross_entropy(logits, good, label_smoothing=3.0)
    with pytest.raises(TypeError, match=r"logits must be floating point; got torch.int64"):
        cacseg.upsampled_cross_entropy(logits.long(), good)
    with pytest.raises(TypeError, match=r"logits must be a torch.Tensor; got list"):
        cacseg.upsampled_cross_entropy([1.0], good)
    with pytest.raises(ValueError, match="average must be one of 'labelled', 'all'; got 'mean'"):
        cacseg.upsampled_cross_entropy(logits, labels, average="mean")


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(("source", "output"), [(4, 16), (16, 4), (1, 7), (7, 1), (5, 5), (3, 100)])
def test_spans_are_interpolation(align_corners, source, output):
    line = torch.randn(1, 1, source).double()
    spans = tiles.interpolation_spans(source, output, 3, align_corners, torch.float64, line.device)
    ours = torch.cat([line[0, 0, span.source] @ span.matrix.T for span in spans])
    truth = F.interpolate(line, size=output, mode="linear", align_corners=align_corners)[0, 0]
    torch.testing.assert_close(ours, truth)
