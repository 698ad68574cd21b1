"""Further classifiers of a model of one's own: named, plain, with a loss of their own."""

import pytest
import torch
from torch import nn

import cacseg
from architectures import TERMS, N, draw


class Supervised(nn.Module):
    """Deep supervision: a second classifier on earlier features."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.early = nn.Conv2d(8, N, 3, padding=1)
        self.late = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, N, 1))

    def forward(self, images):
        features = self.stem(images)
        return self.late(features), self.early(features)


def test_auxiliary_classifiers_can_be_named():
    original, (images, labels) = Supervised().eval(), draw()
    before = original(images)
    model = cacseg.convert(original, auxiliaries=["early"], loss_arguments={"label_smoothing": 0.1})
    assert model.conversion.auxiliaries == {"early": 0.4}
    losses = model.loss(images, labels)
    truth = cacseg.upsampled_cross_entropy(before[1], labels, label_smoothing=0.1)
    torch.testing.assert_close(losses["auxiliary"], truth)
    rest = sum(weight * losses[term] for term, weight in TERMS.items())
    torch.testing.assert_close(losses["total"], rest + 0.4 * truth)
    losses["total"].backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(model.plain(images), before, strict=True))
    assert type(cacseg.restore(model).early) is nn.Conv2d
    model = cacseg.convert(original, auxiliaries=["early"], auxiliary_weight=1.0)
    assert model.conversion.auxiliaries == {"early": 1.0}


@pytest.mark.parametrize(
    ("names", "error", "words"),
    [
        (
            ["stem.0"],
            ValueError,
            r"an nn\.Conv2d with the 5 classes of 'late\.2'.*'stem\.0' is Conv2d\(3, 8",
        ),
        (["stem.1"], ValueError, r"'stem\.1' is BatchNorm2d"),
        (["late.2"], ValueError, "beside it; 'late.2' is"),
        (["earlier"], ValueError, "got 'earlier'. Some it has: 'early'"),
        ("early", TypeError, "must be a list of names; got the text 'early'"),
    ],
)
def test_auxiliaries_that_cannot_be(names, error, words):
    model = Supervised()
    with pytest.raises(error, match=words):
        cacseg.convert(model, auxiliaries=names)
    assert type(model) is Supervised


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_the_weight_of_auxiliaries_is_a_weight(weight):
    with pytest.raises(ValueError, match="auxiliary_weight must be finite and not negative; got"):
        cacseg.convert(Supervised(), auxiliary_weight=weight)
