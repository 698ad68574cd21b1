"""Models with one channel and a sigmoid: converted, trained and restored as they were."""

import copy
import logging

import pytest
import torch
from torch import nn
from torch.export import export
from torch.nn import functional as F

import cacseg
from architectures import SEGFORMER, TERMS, build_torchvision, build_transformers, smp

NARROW = (64, 32, 16, 16, 16)
MODELS = {
    "Unet": dict(encoder_name="resnet18", decoder_channels=NARROW),  # a 3x3 head
    "FPN": dict(encoder_name="mobilenet_v2", decoder_pyramid_channels=32, decoder_segmentation_channels=32),
    "Linknet": dict(encoder_name="mobilenet_v2"),
    "DeepLabV3Plus": dict(encoder_name="mobilenet_v2", decoder_channels=32),
    "Segformer": dict(encoder_name="mit_b0", decoder_segmentation_channels=32),
    "UPerNet": dict(encoder_name="mobilenet_v2", decoder_channels=32),
}


def build(name):
    torch.manual_seed(0)
    return getattr(smp, name)(encoder_weights=None, classes=1, **MODELS[name])


def draw(b=4, size=64, seed=0):
    """Noise with a disc that is brighter, and the mask of the disc."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.arange(size) + 0.5
    rows, columns = ((torch.rand(b, 1, 1, generator=generator) * 0.5 + 0.25) * size for _ in range(2))
    mask = (places[None, :, None] - rows) ** 2 + (places[None, None] - columns) ** 2 < (0.25 * size) ** 2
    return torch.randn(b, 3, size, size, generator=generator) + 2.0 * mask[:, None], mask.long()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ("Linknet", "UPerNet"))) for name in MODELS]
)
def test_a_binary_model_of_smp(name):
    torch.set_num_threads(1)
    original, (images, masks) = build(name), draw()
    parameters = dict(original.named_parameters())
    with torch.no_grad():
        before = original.eval()(images)
    model = cacseg.convert(original)
    with torch.no_grad():
        assert torch.equal(model.plain(images), before)
        assert model(images).shape == before.shape == (4, 1, 64, 64)
        expected = model.loss(images, masks)
        for given in (masks[:, None], masks.bool(), masks[:, None].bool(), masks.float(), masks[:, None].float()):
            torch.testing.assert_close(model.loss(images, given), expected)
    assert list(expected) == [*TERMS, "total"]

    model.train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    totals = []
    for step in range(8):
        losses = model.loss(*draw(seed=step))
        optimiser.zero_grad()
        losses["total"].backward()
        optimiser.step()
        totals.append(losses["total"].item())
    assert sum(totals[-2:]) < 0.9 * sum(totals[:2])
    assert all(parameter.grad is not None for parameter in model.parameters())

    model.eval()
    with torch.no_grad():
        trained = model.plain(images)
        assert not torch.equal(model(images), trained)
        restored = cacseg.restore(model)
        assert torch.equal(restored(images), trained)
    assert type(restored) is getattr(smp, name)
    assert all(one is parameters[key] for key, one in restored.named_parameters())


class Tokens(nn.Module):
    """A linear layer with one output over the patches of an image."""

    def __init__(self):
        super().__init__()
        self.embed, self.classify = nn.Conv2d(3, 16, 8, stride=8), nn.Linear(16, 1)

    def forward(self, images):
        return self.classify(self.embed(images).flatten(2).mT)


class Tiny(nn.Module):
    def __init__(self, kernel=1):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU())
        self.head = nn.Conv2d(16, 1, kernel, padding=kernel // 2)
        self.early = nn.Conv2d(16, 1, 3, padding=1)

    def forward(self, images):
        features = self.stem(images)
        return F.interpolate(self.head(features), size=images.shape[2:], mode="bilinear"), self.early(features)


def make(kernel=1, **arguments):
    torch.manual_seed(0)
    return cacseg.convert(Tiny(kernel), seam="head", auxiliaries=["early"], **arguments)


def test_tokens():
    torch.manual_seed(0)
    original, (images, masks) = Tokens(), draw(size=32)
    before = original(images)
    model = cacseg.convert(original, seam="classify")
    assert torch.equal(model.plain(images), before)
    assert model(images).shape == before.shape == (4, 16, 1)
    expected = model.loss(images, masks)
    torch.testing.assert_close(model.loss(images, masks[:, None].float()), expected)
    classifier = cacseg.ContextAwareClassifier(16, 1)
    classifier.load_state_dict({key: value.detach() for key, value in model.classify.state_dict().items()})
    truth = cacseg.ContextLoss()(classifier(original.embed(images), masks), masks)
    torch.testing.assert_close(expected, truth)
    torch.testing.assert_close(cacseg.restore(model)(images), before)


def test_an_auxiliary_classifier_has_a_binary_cross_entropy():
    model, (images, masks) = make(), draw()
    masks[:, :9] = 255
    losses = model.loss(images, masks.float())  # masks for the auxiliary classifier too
    scores = F.interpolate(model.plain(images)[1], size=(64, 64), mode="bilinear")[:, 0]
    valid = masks != 255
    truth = F.binary_cross_entropy_with_logits(scores[valid], masks[valid].float())
    torch.testing.assert_close(losses["auxiliary"], truth)
    losses["total"].backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert model(images)[1].shape == (4, 1, 32, 32)  # as it was


def test_the_auxiliary_classifier_of_torchvision():
    torch.manual_seed(0)
    original = build_torchvision("deeplabv3_mobilenet_v3_large")
    original.classifier[4], original.aux_classifier[4] = nn.Conv2d(256, 1, 1), nn.Conv2d(10, 1, 1)
    model, (images, masks) = cacseg.convert(original), draw()
    losses = model.loss(images, masks[:, None].float())
    assert list(losses) == [*TERMS, "auxiliary", "total"]
    assert model.eval()(images)["aux"].shape == (4, 1, 64, 64)


def test_transformers_with_labels():
    model, (images, masks) = cacseg.convert(build_transformers("Segformer", **SEGFORMER, num_labels=1)).eval(), draw()
    given = model(pixel_values=images, labels=masks)
    assert given.logits.shape == (4, 1, 16, 16)
    torch.testing.assert_close(given.loss, model.loss(images, masks)["total"])
    torch.testing.assert_close(given.logits, model(images).logits)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [1, 3])
def test_a_compiled_model(kernel):
    model, (images, masks) = make(kernel), draw(b=2, size=32)
    compiled = torch.compile(copy.deepcopy(model), fullgraph=True, backend="aot_eager")
    for given in (masks, masks[:, None].float()):
        torch.testing.assert_close(compiled(images, given), model(images, given), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(compiled(images), model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", [1, 3])
def test_an_exported_model(kernel):
    model, (images, _) = make(kernel).eval().drop_oracle(), draw(b=2, size=32)
    program = export(model, (images,))
    torch.testing.assert_close(program.module()(images), model(images), rtol=1e-4, atol=1e-5)


def test_class_weights_are_two():
    model, (images, masks) = make(loss_arguments={"class_weights": [1.0, 4.0]}), draw()
    scores = model.plain(images)[0][:, 0]
    costs = F.binary_cross_entropy_with_logits(scores, masks.float(), reduction="none")
    weights = 1.0 + 3.0 * masks
    torch.testing.assert_close(model.loss(images, masks)["plain"], (weights * costs).sum() / weights.sum())
    with pytest.raises(ValueError, match="one number for each of the 2 classes"):
        make(loss_arguments={"class_weights": [4.0]})


def test_a_head_that_is_found_is_said_to_be_binary(caplog):
    with caplog.at_level(logging.WARNING, "cacseg"):
        cacseg.convert(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 1, 1)))
    (message,) = caplog.messages
    assert all(fact in message for fact in ("Sequential", "'1'", "binary"))


def test_masks_of_0_and_255_are_noticed(caplog):
    """255 is ignored: nothing would be foreground."""
    model, (images, masks) = make(), draw()
    with caplog.at_level(logging.WARNING, "cacseg"):
        model.loss(images, 255 * masks)
        model.loss(images, 255 * masks)
    assert ["pass labels > 0" in message for message in caplog.messages] == [True]  # once
    caplog.clear()
    for labels in (masks, masks.where(masks == 1, 255), torch.zeros_like(masks)):
        make().loss(images, labels)
    assert caplog.messages == []
