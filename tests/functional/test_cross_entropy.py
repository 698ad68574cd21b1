import pytest
import torch
from torch.nn import functional as F

from cacseg import functional

MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}


@pytest.mark.parametrize(
    ("spatial", "full"), [((5,), (12,)), ((3, 4), (7, 9)), ((2, 3, 2), (4, 5, 3)), ((3, 4), (3, 4))]
)
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"label_smoothing": 0.1}, {"weight": True}, {"weight": True, "label_smoothing": 0.2}]
)
def test_it_is_interpolate_and_cross_entropy(spatial, full, align_corners, options):
    logits, labels = torch.randn(2, 5, *spatial).double(), torch.randint(0, 5, (2, *full))
    labels.view(2, -1)[:, :3] = 255
    options = {**options, "weight": torch.rand(5).double() + 0.1} if "weight" in options else options
    ours = functional.upsampled_cross_entropy(logits, labels, align_corners=align_corners, **options)
    scores = logits
    if spatial != full:
        scores = F.interpolate(logits, size=full, mode=MODES[len(full)], align_corners=align_corners)
    torch.testing.assert_close(ours, F.cross_entropy(scores, labels, ignore_index=255, **options))
    over_all = functional.upsampled_cross_entropy(logits, labels, align_corners=align_corners, average="all", **options)
    truth = F.cross_entropy(scores, labels, ignore_index=255, reduction="none", **options).mean()
    torch.testing.assert_close(over_all, truth)


def test_all_ignored_gives_zero_and_zero_gradient():
    logits = torch.randn(2, 5, 3, 4, requires_grad=True)
    loss = functional.upsampled_cross_entropy(logits, torch.full((2, 6, 8), 255))
    loss.backward()
    assert loss.item() == 0.0
    assert (logits.grad == 0).all()
