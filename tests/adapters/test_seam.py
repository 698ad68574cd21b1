"""The classifier in the place of a layer: what it reads, and when it is the wrong layer."""

import pytest
import torch
from torch import nn

import cacseg
from architectures import TERMS, N, Tiny, build, draw, tiny


def test_a_classifier_that_runs_twice_has_no_one_loss():
    class Twice(Tiny):
        def forward(self, images):
            return super().forward(images) + super().forward(images.flip(-1)).flip(-1)

    model, (images, labels) = cacseg.convert(Twice(), seam="head.1"), draw()
    assert model(images).shape == (2, N, 64, 64)
    with pytest.raises(RuntimeError, match="it ran a second time"):
        model.loss(images, labels)


def test_a_classifier_that_does_not_run_has_no_loss():
    class Skips(Tiny):
        def forward(self, images):
            return self.stem(images)

    model, (images, labels) = cacseg.convert(Skips(), seam="head.1"), draw()
    with pytest.raises(RuntimeError, match="it did not run"):
        model.loss(images, labels)


def test_dropout_touches_the_plain_logits_alone():
    torch.manual_seed(0)
    model = cacseg.convert(Tiny(dropout=0.5), seam="head.1")
    assert model.conversion.dropout == "head.0"
    seen = []
    hook = model.head[1].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    images, labels = draw()
    torch.manual_seed(1)
    plain = model.plain(images)
    assert not (seen[0].amax(dim=(2, 3)) == 0).any()  # no channel was dropped on the way
    hook.remove()
    original = cacseg.restore(model)
    torch.manual_seed(1)
    assert torch.equal(original(images), plain)
    assert isinstance(original.head[0], nn.Dropout2d)
    replaced = cacseg.convert(original, seam="head.1", dropout=0.25)
    assert replaced.head[1].dropout == 0.25
    assert replaced.loss(images, labels)["total"].isfinite()


@pytest.mark.parametrize(("dropout", "drops"), [(nn.Dropout2d(0.5), 0.5), (nn.Dropout(0.5), None)])
def test_kernels_run_with_the_dropout_of_channels(dropout, drops, monkeypatch):
    """What drops single values is not for them."""
    model, given = cacseg.convert(nn.Sequential(dropout, nn.Conv2d(4, 3, 1)), seam="1"), []
    monkeypatch.setattr(cacseg.ops, "context_aware_logits", lambda *_, dropout, **named: given.append(dropout))
    features, labels = torch.randn(2, 4, 5, 6), torch.randint(0, 3, (2, 5, 6))
    model.loss(features, labels)
    assert given == ([] if drops is None else [drops])
    model.eval()(features)
    assert given[-1] == 0.0


@pytest.mark.parametrize(("conv", "shape"), [(nn.Conv1d(4, 3, 1), (9,)), (nn.Conv3d(4, 3, 1), (3, 4, 5))])
def test_lines_and_volumes(conv, shape):
    model = cacseg.convert(nn.Sequential(conv), seam="0")
    features, labels = torch.randn(2, 4, *shape), torch.randint(0, 3, (2, *shape))
    assert torch.equal(model.plain(features), conv(features))
    assert model.loss(features, labels)["total"].isfinite()


def test_settings_reach_classifier_and_loss():
    seam = tiny(preset="paper", ignore_index=7, scale=10.0, loss_arguments={"kl_weight": 0.5}).head[1]
    assert (seam.oracle_scope, seam.scale, seam.ignore_index) == ("image", 10.0, 7)
    assert seam.criterion.ignore_index == 7
    assert seam.criterion.weights == {"plain": 1.0, "context": 1.0, "oracle": 1.0, "distillation": 0.5}
    images, labels = draw()
    assert "overlap" not in tiny(preset="paper").loss(images, labels)
    assert "overlap" in tiny().loss(images, labels)


def test_transformers_settings_come_from_the_config():
    original = build("transformers UperNet with ConvNeXt")
    original.config.loss_ignore_index, original.config.auxiliary_loss_weight = 9, 0.7
    model, (images, labels) = cacseg.convert(original), draw()
    labels = labels.where(labels != 255, 9)
    losses = model.loss(images, labels)
    assert model.conversion.auxiliaries == {"auxiliary_head.classifier": 0.7}
    rest = sum(weight * losses[term] for term, weight in TERMS.items())
    torch.testing.assert_close(losses["total"], rest + 0.7 * losses["auxiliary"])
    positional = model(images, None, None, labels, True)
    torch.testing.assert_close(positional.loss, losses["total"])
    assert list(positional) == ["loss", "logits"]
    as_tuple = model(images, labels=labels, return_dict=False)
    torch.testing.assert_close(as_tuple[0], losses["total"])
    assert len(as_tuple) == 2


@torch.no_grad()
def test_logits_beside_a_loss_are_those_without_labels():
    model = cacseg.convert(build("transformers UperNet with ConvNeXt")).eval()
    images, labels = draw()
    torch.testing.assert_close(model(images, labels=labels).logits, model(images).logits)


class Tokens(nn.Module):
    """A linear layer over the patches of a small vision transformer."""

    def __init__(self, extra=0):
        super().__init__()
        self.embed = nn.Conv2d(3, 16, 8, stride=8)
        self.extra = nn.Parameter(torch.randn(1, extra, 16))
        self.classify = nn.Linear(16, N)

    def forward(self, images):
        tokens = self.embed(images).flatten(2).mT
        return self.classify(torch.cat([self.extra.expand(len(tokens), -1, -1), tokens], dim=1))


def test_tokens_lie_on_the_grid_of_the_labels():
    torch.manual_seed(0)
    original, images, labels = Tokens(), torch.randn(2, 3, 64, 32), torch.randint(0, N, (2, 64, 32))
    before = original(images)
    model = cacseg.convert(original, seam="classify")
    assert torch.equal(model.plain(images), before)
    assert model(images).shape == before.shape == (2, 32, N)
    losses = model.loss(images, labels)
    features = original.embed(images)
    classifier = cacseg.ContextAwareClassifier(16, N)
    classifier.load_state_dict({key: value.detach() for key, value in model.classify.state_dict().items()})
    truth = cacseg.ContextLoss()(classifier(features, labels), labels)
    torch.testing.assert_close(losses, truth)
    torch.testing.assert_close(model(images).mT.unflatten(2, (8, 4)), classifier(features))
    assert model.loss(images, labels[:, ::8, ::8].flatten(1))["total"].isfinite()  # one label for each token


def test_tokens_that_are_no_grid():
    model, images, labels = cacseg.convert(Tokens(extra=1), seam="classify"), torch.randn(2, 3, 64, 64), None
    assert model(images).shape == (2, 65, N)
    labels = torch.randint(0, N, (2, 64, 64))
    words = r"the layer read 65 tokens for an image, and the labels are 64x64\. Remove class tokens.*labels \[b, 65\]"
    with pytest.raises(ValueError, match=words):
        model.loss(images, labels)


def test_channels_last_maps():
    model = cacseg.convert(nn.Sequential(nn.Linear(4, 3)), seam="0")
    features, labels = torch.randn(2, 6, 7, 4), torch.randint(0, 3, (2, 12, 14))
    assert model(features).shape == (2, 6, 7, 3)
    assert model.loss(features, labels)["total"].isfinite()


def test_a_layer_that_is_not_the_classifier():
    with pytest.raises(
        ValueError, match=r"'encoder.conv1' has 64 outputs, and Unet makes its 5 scores at 'segmentation"
    ):
        cacseg.convert(build("smp Unet"), seam="encoder.conv1")
    model, (images, labels) = cacseg.convert(Tiny(), seam="stem.0"), draw()
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"'stem\.0' makes 16 channels, and Tiny returns \(2, {N}, 64, 64\)"):
            model.loss(images, labels)


class SharedDropout(nn.Module):
    """One dropout that stands in two places."""

    def __init__(self):
        super().__init__()
        dropout = nn.Dropout2d(0.5)
        self.head = nn.Sequential(nn.Conv2d(8, 8, 1), dropout, nn.Conv2d(8, N, 1))
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), dropout)

    def forward(self, images):
        return self.head(self.stem(images))


def test_a_dropout_that_stands_elsewhere_too_stays():
    original, (images, _) = SharedDropout(), draw()
    torch.manual_seed(1)
    before = original(images)
    model = cacseg.convert(original, seam="head.2")
    assert model.conversion.dropout == ""
    assert type(model.stem[2]) is type(model.head[1]) is nn.Dropout2d
    torch.manual_seed(1)
    assert torch.equal(model.plain(images), before)


def test_what_stands_before_the_classifier_is_not_always_what_it_reads():
    class Beside(nn.Sequential):
        def forward(self, features):
            return self[1](features)

    assert (
        cacseg.convert(nn.Sequential(Beside(nn.Dropout2d(), nn.Conv2d(4, 3, 1))), seam="0.1").conversion.dropout == ""
    )


@pytest.mark.parametrize(
    ("dropout", "layer", "moves"),
    [
        (nn.Dropout1d(), nn.Conv1d(4, 3, 1), True),
        (nn.Dropout3d(), nn.Conv3d(4, 3, 1), True),
        (nn.Dropout(), nn.Linear(4, 3), True),
        (nn.Dropout2d(), nn.Linear(4, 3), False),  # which drops rows, not channels
    ],
)
def test_dropouts_of_other_dimensions(dropout, layer, moves):
    original = nn.Sequential(dropout, layer)
    model = cacseg.convert(original, seam="1")
    assert model.conversion.dropout == ("0" if moves else "")
    is_elementwise = type(dropout) is nn.Dropout
    assert model[1].dropout == (dropout.p if moves and not is_elementwise else 0.0)
    assert type(model[1].plain_dropout) is (nn.Dropout if is_elementwise else type(None))
    size = (2, 6, 7, 4) if isinstance(layer, nn.Linear) else (2, 4, *[5] * len(layer.kernel_size))
    features = torch.randn(size)
    torch.manual_seed(1)
    plain = model.plain(features)
    assert model(features).shape == plain.shape
    torch.manual_seed(1)
    assert torch.equal(cacseg.restore(model)(features), plain)


def test_a_linear_layer_says_how_large_it_is():
    model = cacseg.convert(nn.Sequential(nn.Linear(4, 3)), seam="0")
    assert (model[0].in_features, model[0].out_features) == (4, 3)
