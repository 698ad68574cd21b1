import pytest
import torch

from cacseg import functional, ops
from cacseg.ops import overlap
from cacseg.ops.tiled_overlap import tiled_overlap_operator


def draw(size=(5, 6), full=(17, 23), n=4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(3, n, *size, generator=generator) * 3).to(dtype).requires_grad_()
    labels = torch.randint(0, n - 1, (3, *full), generator=generator)  # the last class is in no image
    labels[0, :2] = 255
    labels[2] = labels[2].clamp(max=1)
    return logits, labels


def both(logits, labels, **options):
    """Value and gradient of the readable form and of what runs."""
    for loss in (functional.upsampled_overlap_loss, ops.upsampled_overlap_loss):
        value = loss(logits, labels, **options)
        yield value, *torch.autograd.grad(value, logits)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(
    ("size", "full"), [((5, 6), (17, 23)), ((8, 6), (3, 2)), ((1, 1), (6, 5)), ((6, 4), (6, 11)), ((7,), (29,))]
)
@pytest.mark.usefixtures("small_tiles")
def test_tile_by_tile_it_is_the_readable_form(size, full, align_corners):
    logits, labels = draw(size, full)
    expected, found = both(logits, labels, align_corners=align_corners)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert found[1].abs().sum() > 0


def test_three_dimensions_take_the_readable_form():
    (value, *_), (found, gradient) = both(*draw((2, 3, 2), (5, 7, 6)))
    assert (value.item(), bool(gradient.abs().sum() > 0)) == (found.item(), True)


def test_logits_of_the_size_of_the_labels_are_not_upsampled(monkeypatch):
    monkeypatch.delattr(overlap, "tiled_overlap")
    expected, found = both(*draw((5, 6), (5, 6)))
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-12)
    logits, labels = draw((5, 6), (5, 6))
    rows = logits.detach().movedim(1, -1).flatten(0, -2)
    torch.testing.assert_close(ops.upsampled_overlap_loss(rows, labels.flatten()), expected[0], rtol=0.0, atol=1e-12)


@pytest.mark.usefixtures("small_tiles")
def test_other_layouts_and_labels_of_a_byte():
    logits, labels = draw()
    (truth, of_truth), _ = both(logits, labels)
    for other in (logits.detach().contiguous(memory_format=torch.channels_last), logits.detach().mT.contiguous().mT):
        other.requires_grad_()
        assert not other.is_contiguous()
        (_, (value, gradient)) = both(other, labels.to(torch.uint8))
        torch.testing.assert_close((value, gradient), (truth, of_truth), rtol=1e-10, atol=1e-12)


def test_what_is_not_finite_is_not_hidden():
    logits, labels = draw()
    broken = logits.detach().clone()
    broken[0, 1, 2, 3] = float("nan")
    assert ops.upsampled_overlap_loss(broken, labels).isnan()


@pytest.mark.usefixtures("small_tiles")
def test_gradients_are_right():
    logits, labels = draw((2, 3), (5, 7), n=3)
    torch.autograd.gradcheck(lambda one: ops.upsampled_overlap_loss(one, labels), logits)
    (gradient,) = torch.autograd.grad(ops.upsampled_overlap_loss(logits, labels), logits, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"differentiable once; .* use cacseg.functional"):
        torch.autograd.grad(gradient.sum(), logits)


@pytest.mark.usefixtures("small_tiles")
def test_the_operator_passes_torchs_own_checks():
    logits, labels = draw((2, 3), (5, 7), n=3)
    torch.library.opcheck(tiled_overlap_operator, (logits, labels, 255, False))
    torch.library.opcheck(tiled_overlap_operator, (logits.detach().bfloat16(), labels, 255, True))


def test_what_is_answered_on_ignored_pixels_does_not_matter():
    logits, labels = draw((4, 4), (16, 16))
    labels[:, :10] = 255
    other = logits.detach().clone()
    other[:, :, :1] = 1e4  # reaches the first six rows
    (value, gradient), (truth, _) = list(both(other.requires_grad_(), labels))[1], list(both(logits, labels))[1]
    torch.testing.assert_close(value, truth)
    assert (gradient[:, :, 0] == 0).all()
    assert gradient.abs().sum() > 0


def test_nothing_of_the_size_of_the_labels_is_kept_but_labels():
    logits, labels = draw((8, 8), (64, 64))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one.shape) or one, lambda one: one):
        ops.upsampled_overlap_loss(logits, labels)
    assert kept
    assert not [shape for shape in kept if len(shape) == 4 and shape[2:] == (64, 64)]
    large = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: large.append(one.shape) or one, lambda one: one):
        functional.upsampled_overlap_loss(logits, labels)
    assert [shape for shape in large if len(shape) == 4 and shape[2:] == (64, 64)]  # the readable form keeps it


def test_without_labels_it_is_zero_with_zero_gradients():
    logits, labels = draw()
    for value, gradient in both(logits, torch.full_like(labels, 255)):
        assert value.item() == 0.0
        assert (gradient == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype):
    logits, labels = draw((8, 8), (64, 64), dtype=torch.float32)
    narrow = logits.detach().to(dtype).requires_grad_()
    wide = narrow.detach().double().requires_grad_()
    truth = functional.upsampled_overlap_loss(wide, labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = ops.upsampled_overlap_loss(narrow, labels)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-6, check_dtype=False)
    (gradient,), (true_gradient,) = (torch.autograd.grad(loss, of) for loss, of in ((found, narrow), (truth, wide)))
    assert gradient.dtype == dtype
    rounding = torch.finfo(dtype)  # of what is written, the sums being float32
    torch.testing.assert_close(gradient.double(), true_gradient, rtol=rounding.eps, atol=float(rounding.tiny))


def test_another_ignored_label_and_bad_ones():
    logits, labels = draw()
    truth = ops.upsampled_overlap_loss(logits, labels)
    torch.testing.assert_close(
        ops.upsampled_overlap_loss(logits, labels.where(labels != 255, 7), ignore_index=7), truth
    )
    wrong = torch.where(labels == 255, 1000, labels)  # on a GPU it takes no part; here it is named
    with pytest.raises(ValueError, match="1000"):
        ops.upsampled_overlap_loss(logits, wrong)
    with pytest.raises(ValueError, match="same batch size"):
        ops.upsampled_overlap_loss(logits, labels[:1])
