import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cacseg import functional, ops
from cacseg.ops.dense_overlap import overlap_sums_operator


def draw(spatial=(5, 6), n=4, dtype=torch.float64):
    """The last class is in no image, and some pixels of the first one are ignored."""
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(3, n, *spatial, generator=generator) * 3).to(dtype).requires_grad_()
    labels = torch.randint(0, n - 1, (3, *spatial), generator=generator)
    labels.view(3, -1)[0, 3:7] = 255
    return logits, labels


def both(logits, labels, **options):
    """Value and gradient of the readable form and of what runs, of a multiple of the loss."""
    for loss in (functional.overlap_loss, ops.overlap_loss):
        value = loss(logits, labels, **options)
        yield value, *torch.autograd.grad(3.0 * value, logits)


def rows_of(logits, labels):
    """The pixels of a dense batch as a packed one."""
    return logits.detach().movedim(1, -1).flatten(0, -2).contiguous().requires_grad_(), labels.flatten()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("spatial", [(12,), (5, 6), (2, 3, 4)])
@pytest.mark.usefixtures("small_tiles")
def test_tile_by_tile_it_is_the_readable_form(spatial, packed):
    logits, labels = draw(spatial)
    expected, found = both(*rows_of(logits, labels)) if packed else both(logits, labels)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-12)
    assert 0.0 < found[0] < 1.0
    assert found[1].abs().sum() > 0.1


@pytest.mark.parametrize("packed", [False, True])
def test_float32_is_as_close_to_float64_as_the_readable_form(packed):
    logits, labels = draw((48, 52), n=20, dtype=torch.float32)
    logits, labels = rows_of(logits, labels) if packed else (logits, labels)
    plain, found = both(logits, labels)
    truth, _ = both(logits.detach().double().requires_grad_(), labels)
    assert found[0].dtype == found[1].dtype == torch.float32
    for true, one, ours in zip(truth, plain, found, strict=True):
        assert (ours - true).norm() <= 1.5 * (one - true).norm() + 1e-7 * true.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype):
    narrow, labels = draw((48, 52), n=20, dtype=dtype)
    (truth, of_truth), _ = both(narrow.detach().double().requires_grad_(), labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, (found, gradient) = both(narrow, labels)
    assert (found.dtype, gradient.dtype) == (torch.float32, dtype)
    torch.testing.assert_close(found, truth, rtol=1e-6, atol=1e-6, check_dtype=False)
    rounding = torch.finfo(dtype)  # of what is written; where the terms of a gradient cancel, that of float32
    atol = max(float(rounding.tiny), 1e-6 * of_truth.abs().max().item())
    torch.testing.assert_close(gradient.double(), of_truth, rtol=rounding.eps, atol=atol)


@pytest.mark.usefixtures("small_tiles")
def test_other_layouts_and_labels_of_a_byte():
    logits, labels = draw()
    expected, _ = both(logits, labels)
    for other in (logits.detach().contiguous(memory_format=torch.channels_last), logits.detach().mT.contiguous().mT):
        assert not other.is_contiguous()
        for integers in (torch.uint8, torch.int16, torch.int64):
            _, found = both(other.requires_grad_(), labels.to(integers))
            torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-12)


def test_labels_of_another_size_and_another_ignored_label():
    logits, _ = draw((5, 6))
    _, labels = draw((17, 23))
    expected, found = both(logits, labels)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-12)
    _, renamed = both(logits, labels.where(labels != 255, -1), ignore_index=-1)
    torch.testing.assert_close(renamed, expected, rtol=0.0, atol=1e-12)
    without, found = both(logits, labels.where(labels != 255, 1), ignore_index=1)
    torch.testing.assert_close(found, without, rtol=0.0, atol=1e-12)
    assert abs(found[0] - expected[0]) > 1e-3


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("value", [100.0, float("nan"), float("inf"), -float("inf")])
@pytest.mark.usefixtures("small_tiles")
def test_what_is_under_ignored_pixels_does_not_matter(value, packed):
    logits, labels = draw()
    (truth, of_truth), _ = both(logits, labels)
    ignored = (labels == 255)[:, None].expand_as(logits)
    seen, seen_labels = logits.detach().where(~ignored, value).requires_grad_(), labels
    if packed:
        seen, seen_labels = rows_of(seen, labels)
        of_truth, ignored = (rows_of(one, labels)[0] for one in (of_truth, ignored.double()))
    _, (found, gradient) = both(seen, seen_labels)
    torch.testing.assert_close((found, gradient), (truth, of_truth), rtol=0.0, atol=1e-12)
    assert (gradient[ignored.bool()] == 0).all()


def test_what_is_not_finite_under_a_label_is_not_hidden():
    logits, labels = draw()
    broken = logits.detach().clone()
    broken[1, 0, 2, 3] = float("nan")
    for loss, gradient in both(broken.requires_grad_(), labels):
        assert loss.isnan()
        assert gradient[1, 0, 2, 3].isnan()
        assert (gradient[(labels == 255)[:, None].expand_as(gradient)] == 0).all()


def test_without_labels_it_is_zero_with_zero_gradients():
    logits, labels = draw()
    for value, gradient in both(logits, torch.full_like(labels, 255)):
        assert value.item() == 0.0
        assert (gradient == 0).all()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.usefixtures("small_tiles")
def test_gradients_are_right_once(packed):
    logits, labels = rows_of(*draw((3, 4))) if packed else draw((3, 4))
    torch.autograd.gradcheck(lambda one: ops.overlap_loss(one, labels), logits)
    (gradient,) = torch.autograd.grad(ops.overlap_loss(logits, labels), logits, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"overlap_sums\S* is differentiable once; .* use cacseg.functional"):
        torch.autograd.grad(gradient.sum(), logits)


@pytest.mark.usefixtures("small_tiles")
def test_the_operator_passes_torchs_own_checks():
    logits, labels = draw((4, 3))
    fitted = functional.fit_labels(labels, (4, 3), 4)
    torch.library.opcheck(overlap_sums_operator, (logits, fitted))
    torch.library.opcheck(overlap_sums_operator, (logits.detach().mT.contiguous().mT.requires_grad_(), fitted))
    torch.library.opcheck(overlap_sums_operator, (rows_of(logits, labels)[0].detach().bfloat16(), fitted.flatten()))


@pytest.mark.parametrize("packed", [False, True])
def test_it_compiles_whole(packed):
    logits, labels = rows_of(*draw()) if packed else draw()
    compiled = torch.compile(ops.overlap_loss, fullgraph=True, backend="aot_eager")
    value = compiled(logits, labels)
    found = value, *torch.autograd.grad(3.0 * value, logits)
    torch.testing.assert_close(found, next(both(logits, labels)), rtol=0.0, atol=1e-12)


def test_shapes_alone_are_enough():
    with torch.device("meta"):
        logits = torch.empty(2, 5, 6, 7, dtype=torch.bfloat16, requires_grad=True)
        loss = ops.overlap_loss(logits, torch.empty(2, 6, 7, dtype=torch.int64))
        (gradient,) = torch.autograd.grad(loss, logits)
    assert (loss.shape, loss.dtype) == ((), torch.float32)
    assert (gradient.shape, gradient.dtype) == (logits.shape, torch.bfloat16)


def test_of_what_has_classes_only_logits_are_kept():
    logits, labels = draw((16, 16), n=9, dtype=torch.bfloat16)
    large = {}
    for loss in (functional.overlap_loss, ops.overlap_loss):
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda one, kept=kept: kept.append(one) or one, lambda one: one):
            loss(logits, labels)
        large[loss] = [one for one in kept if one.numel() >= logits.numel()]
    assert [one.data_ptr() for one in large[ops.overlap_loss]] == [logits.data_ptr()]
    assert any(one.dtype == torch.float32 for one in large[functional.overlap_loss])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.usefixtures("small_tiles")
def test_probabilities_are_of_one_tile(packed):
    class Results(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if func is torch.ops.aten._softmax.default:
                sizes.append(result.numel())
            return result

    sizes, (logits, labels) = [], draw((20, 3))
    logits, labels = rows_of(logits, labels) if packed else (logits, labels)
    with Results():
        value = ops.overlap_loss(logits, labels)
        value.backward()
    assert max(sizes) <= 120 < logits.numel()
    assert sum(sizes) == 2 * logits.numel()


@pytest.mark.usefixtures("small_tiles")
def test_deterministic_algorithms_can_be_asked_for():
    expected, found = both(*draw())
    torch.use_deterministic_algorithms(True)
    try:
        _, asked = both(*draw())
    finally:
        torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(asked, found, rtol=0.0, atol=0.0)
    torch.testing.assert_close(asked, expected, rtol=0.0, atol=1e-12)


def test_wrong_labels_are_refused():
    logits, labels = draw()
    with pytest.raises(ValueError, match="1000"):
        ops.overlap_loss(logits, torch.where(labels == 255, 1000, labels))
    with pytest.raises(ValueError, match="same batch size"):
        ops.overlap_loss(logits, labels[:1])
    with pytest.raises(ValueError, match=r"packed labels must be \[N\] with N = 12"):
        ops.overlap_loss(torch.randn(12, 5), labels)
    with pytest.raises(TypeError, match="logits must be floating point"):
        ops.overlap_loss(labels[:, None], labels)
