"""What runs for distillation and overlap: the readable forms here, kernels on a GPU (tests/kernels)."""

import torch

from cacseg import functional, ops


def draw(size=(5, 6), full=(20, 24), n=4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(3, n, *size, generator=generator) * 3).to(dtype).requires_grad_()
    labels = torch.randint(0, n - 1, (3, *full), generator=generator)  # the last class is in no image
    labels[0, :2] = 255
    return logits, labels


def test_it_is_the_readable_form():
    logits, labels = draw()
    for sampling in ("centred", "nearest", "aligned"):
        expected, found = (
            loss(logits, labels, label_sampling=sampling) for loss in (functional.overlap_loss, ops.overlap_loss)
        )
        assert torch.equal(found, expected)
        assert torch.equal(*(torch.autograd.grad(one, logits)[0] for one in (found, expected)))


def test_gradients_are_right():
    logits, labels = draw((2, 3), (8, 12), n=3)
    torch.autograd.gradcheck(lambda p: ops.overlap_loss(p, labels), logits)


def test_points_and_labels_of_a_byte():
    logits, labels = draw((5, 6), (5, 6))
    points = logits.detach().movedim(1, -1).flatten(0, -2)
    expected = ops.overlap_loss(logits, labels)
    torch.testing.assert_close(ops.overlap_loss(points, labels.flatten().to(torch.uint8)), expected)


def test_both_losses_are_the_readable_ones():
    context, labels = draw((5, 6), (5, 6))
    oracle = context.detach() + 1.0
    found = ops.pixel_losses(context, oracle, labels, scope="batch")
    assert torch.equal(found["distillation"], functional.distillation(context, oracle, labels, scope="batch"))
    assert torch.equal(found["overlap"], functional.overlap_loss(context, labels))
    assert list(ops.pixel_losses(context, None, labels)) == ["overlap"]
    assert list(ops.pixel_losses(context, oracle, labels, overlap=False)) == ["distillation"]


def test_both_losses_of_points():
    """The distillation of a packed batch needs its offsets, the overlap knows nothing of images."""
    context, labels = draw((5, 6), (5, 6))
    points = context.detach().movedim(1, -1).flatten(0, -2)
    offsets, expected = torch.tensor([0, 30, 60, 90]), ops.pixel_losses(context, context.detach(), labels)
    found = ops.pixel_losses(points, points, labels.flatten(), offsets=offsets)
    torch.testing.assert_close(found, expected)
