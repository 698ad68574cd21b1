import pytest
import torch

from cacseg import functional, ops
from cacseg.ops import overlap


def draw(spatial, n=5, b=3, dtype=torch.float64, seed=0):
    """Class n - 1 is in no image; a fifth of the pixels is ignored, the last image wholly."""
    generator = torch.Generator().manual_seed(seed)
    logits = (3 * torch.randn(b, n, *spatial, generator=generator)).to(dtype).requires_grad_()
    labels = torch.randint(0, n - 1, (b, *spatial), generator=generator)
    labels[torch.rand(labels.shape, generator=generator) < 0.2] = 255
    labels[-1] = 255
    return logits, labels


def both(logits, labels):
    """The loss and the gradient of a multiple of it: ours, and those of the plain expression."""
    for one in (ops, functional):
        loss = one.overlap_loss(logits, labels)
        yield loss, torch.autograd.grad(3.0 * loss, logits)[0]


@pytest.mark.parametrize("spatial", [(12,), (3, 4), (2, 3, 2)])
@pytest.mark.parametrize("images", [1, 2, 3])
def test_value_and_gradient_equal_the_plain_expression(spatial, images, monkeypatch):
    logits, labels = draw(spatial)
    monkeypatch.setattr(overlap, "CHUNK_ELEMENTS", images * 5 * 12)
    ours, truth = both(logits, labels)
    assert truth[1].abs().max() > 0
    torch.testing.assert_close(ours, truth, rtol=1e-12, atol=1e-14)


def test_packed_rows_and_labels_of_another_size():
    logits, labels = draw((3, 4))
    rows = logits.detach().flatten(2).transpose(1, 2).flatten(0, 1).requires_grad_()
    ours, truth = both(rows, labels.flatten())
    torch.testing.assert_close(ours, truth, rtol=1e-12, atol=1e-14)
    ours, truth = both(logits, labels.repeat_interleave(2, dim=1).repeat_interleave(3, dim=2))
    torch.testing.assert_close(ours, truth, rtol=1e-12, atol=1e-14)


def test_ignored_pixels_do_not_matter_and_nothing_is_zero():
    logits, labels = draw((3, 4))
    (truth, _), _ = both(logits, labels)
    seen = torch.where((labels == 255)[:, None], float("nan"), logits.detach()).requires_grad_()
    loss = ops.overlap_loss(seen, labels)
    torch.testing.assert_close(loss, truth)
    (gradient,) = torch.autograd.grad(loss, seen)
    assert (gradient.movedim(1, -1)[labels == 255] == 0).all()
    nothing = ops.overlap_loss(logits, torch.full_like(labels, 255))
    assert nothing.item() == 0.0
    assert (torch.autograd.grad(nothing, logits)[0] == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype):
    logits, labels = draw((24, 32), dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, _ = both(logits, labels)
    assert (ours[0].dtype, ours[1].dtype) == (torch.float32, dtype)
    wide = logits.detach().double().requires_grad_()
    _, truth = both(wide, labels)
    torch.testing.assert_close(ours[0], truth[0], rtol=1e-5, atol=1e-6, check_dtype=False)
    torch.testing.assert_close(ours[1].double(), truth[1], rtol=1e-2, atol=1e-6)


def test_it_compiles():
    logits, labels = draw((3, 4), dtype=torch.float32)
    step = torch.compile(lambda one: ops.overlap_loss(one, labels), backend="aot_eager", fullgraph=True)
    runs = step, lambda one: functional.overlap_loss(one, labels)
    found, truth = (torch.autograd.grad(run(logits), logits)[0] for run in runs)
    torch.testing.assert_close(found, truth)


def test_the_operator_passes_torchs_own_checks():
    logits, labels = draw((3, 4))
    fitted = torch.where(labels == 255, -1, labels).flatten(1)
    for with_gradient in (True, False):
        sample = (logits if with_gradient else logits.detach()).flatten(2)
        # Not test_aot_dispatch_dynamic: it differentiates the second output too, which is refused.
        checks = ("test_schema", "test_autograd_registration", "test_faketensor")
        torch.library.opcheck(overlap.chunked_overlap, (sample, fitted, with_gradient), test_utils=checks)


def test_no_gradient_is_formed_where_none_is_wanted_and_none_of_second_order():
    logits, labels = draw((3, 4))
    with torch.no_grad():
        assert not ops.overlap_loss(logits, labels).requires_grad
    _, formed = overlap.chunked_overlap(logits.detach().flatten(2), labels.clamp_max(3).flatten(1), False)
    assert formed.numel() == 0
    (gradient,) = torch.autograd.grad(ops.overlap_loss(logits, labels), logits, create_graph=True)
    with pytest.raises(NotImplementedError, match="differentiable once"):
        gradient.square().sum().backward()
