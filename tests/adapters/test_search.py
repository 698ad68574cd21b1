"""The classifier of a model of one's own is found by running it, whatever the model keeps beside its layers."""

import dataclasses

import pytest
import torch
from torch import nn

import cacseg
from architectures import N, Tiny, build, draw, scores_of


class Positioned(nn.Module):
    """Parameters beside layers in one module, as vision transformers have them."""

    def __init__(self, scaled=False):
        super().__init__()
        self.position = nn.Parameter(torch.randn(1, 8, 1, 1))
        self.embed = nn.Conv2d(3, 8, 1)
        self.classify = nn.Conv2d(8, N, 1)
        self.scale = nn.Parameter(torch.ones(())) if scaled else None

    def forward(self, images):
        scores = self.classify(self.embed(images) + self.position)
        return scores if self.scale is None else scores * self.scale


class Outer(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, images):
        return self.net(images)


@pytest.mark.parametrize("is_frozen", [False, True])
def test_parameters_before_the_classifier_are_no_matter(is_frozen):
    original = Outer(Positioned())
    original.net.position.requires_grad_(not is_frozen)
    model = cacseg.convert(original)
    assert model.seam == "net.classify"
    assert model.net.position.requires_grad is not is_frozen
    assert not [parameter for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("is_frozen", [False, True])
@pytest.mark.parametrize(("wrap", "name"), [(Outer, "net.scale"), (nn.Module.eval, "scale")])
def test_parameters_after_the_classifier_are_named(wrap, name, is_frozen):
    inner = Positioned(scaled=True)
    inner.scale.requires_grad_(not is_frozen)
    with pytest.raises(ValueError, match=rf"from 2 modules: '(net\.)?classify' \(Conv2d\), '{name}' \(Parameter\)"):
        cacseg.convert(wrap(inner))
    assert inner.scale.requires_grad is not is_frozen


@dataclasses.dataclass
class Answer:
    size: tuple[int, int]
    logits: torch.Tensor


class Answers(Tiny):
    def forward(self, images):
        return Answer(tuple(images.shape[2:]), super().forward(images))


def test_an_answer_that_is_a_dataclass():
    model, (images, labels) = cacseg.convert(Answers()), draw()
    assert model.seam == "head.1"
    assert type(model(images)) is Answer
    assert model.loss(images, labels)["total"].isfinite()


def test_a_layer_alone_is_no_model():
    with pytest.raises(TypeError, match=r"got Conv2d, a layer\. For the layer alone: .*from_conv\(layer\)"):
        cacseg.convert(nn.Conv2d(3, N, 1))


def test_a_model_converted_in_inference_mode_trains():
    original, (images, labels) = Tiny(), draw()
    with torch.inference_mode():
        model = cacseg.convert(original)
    model.loss(images, labels)["total"].backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "dropout", "auxiliaries"),
    [
        ("smp Unet", "", []),  # 3x3
        ("smp FPN", "net.decoder.dropout", []),
        ("torchvision deeplabv3_mobilenet_v3_large", "", ["net.aux_classifier.4"]),
        ("transformers UperNet with ConvNeXt", "", ["net.auxiliary_head.classifier"]),
    ],
)
def test_a_known_architecture_inside_a_module_of_ones_own(name, dropout, auxiliaries):
    original, (images, labels) = Outer(build(name)).eval(), draw(name)
    with torch.no_grad():
        before, alone = scores_of(original(images)), cacseg.convert(build(name))
    if name.startswith("transformers"):
        original.net.config.loss_ignore_index = alone.config.loss_ignore_index = 0
        alone = cacseg.convert(cacseg.restore(alone))
        labels = labels.where(labels != 255, 0)
    model = cacseg.convert(original)
    assert (model.seam, model.conversion.dropout) == (f"net.{alone.seam}", dropout)
    assert list(model.conversion.auxiliaries) == auxiliaries
    model.net.load_state_dict(alone.state_dict())
    torch.testing.assert_close(model.loss(images, labels), alone.loss(images, labels))
    assert torch.equal(scores_of(model.plain(images)), before)
    assert type(cacseg.restore(model).net) is type(build(name))


def test_a_known_architecture_that_only_makes_features():
    class Features(Outer):
        def __init__(self, net):
            super().__init__(net)
            self.classify = nn.Conv2d(N, N, 1)

        def forward(self, images):
            return self.classify(self.net(images))

    model = cacseg.convert(Features(build("smp FPN")))
    assert (model.seam, model.conversion.dropout) == ("classify", "")
