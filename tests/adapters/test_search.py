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


class Tasks(nn.Module):
    """Several tasks on the same features; `order` is that of the outputs."""

    def __init__(self, order, classes=N, holds=dict):
        super().__init__()
        self.order, self.holds = order, holds
        self.stem = nn.Conv2d(3, 8, 1)
        self.depth_head, self.class_head = nn.Conv2d(8, 1, 1), nn.Conv2d(8, classes, 1)

    def forward(self, images):
        features = self.stem(images)
        tasks = {"features": features, "depth": self.depth_head(features), "classes": self.class_head(features)}
        made = {name: tasks[name] for name in self.order}
        return made if self.holds is dict else tuple(made.values())


@pytest.mark.parametrize("holds", [dict, tuple])
def test_which_output_holds_the_class_scores(holds):
    original = Tasks(("depth", "classes"), holds=holds)
    names = "'depth'|'0'", "'classes'|'1'"
    words = rf"Tasks returns ({names[0]}) \(channels: 1, from 'depth_head'\), ({names[1]}) \(channels: 5, from 'class_h"
    with pytest.raises(ValueError, match=words + r".*seam='class_head' for .*, seam='depth_head' for"):
        cacseg.convert(original)
    assert type(original) is Tasks
    assert cacseg.convert(original, seam="class_head").seam == "class_head"
    with pytest.raises(ValueError, match="seam='class_head' for"):  # it may be normals and a mask as well
        cacseg.convert(Tasks(("classes", "depth"), holds=holds))


def test_one_channel_beside_another_may_be_anything():
    with pytest.raises(ValueError, match="seam='depth_head' for 'depth', seam='class_head' for 'classes'"):
        cacseg.convert(Tasks(("depth", "classes"), classes=1))
    with pytest.raises(ValueError, match="seam='class_head' for 'classes', seam='depth_head' for 'depth'"):
        cacseg.convert(Tasks(("classes", "depth"), classes=1))
    model = cacseg.convert(Tasks(("classes", "depth"), classes=1), auxiliaries=["depth_head"])
    assert model.seam == "class_head"


def test_features_beside_the_scores_are_no_task():
    assert cacseg.convert(Tasks(("classes", "features"))).seam == "class_head"
    assert cacseg.convert(Tasks(("classes", "features"), classes=1)).seam == "class_head"


def test_a_known_architecture_that_only_makes_features():
    class Features(Outer):
        def __init__(self, net):
            super().__init__(net)
            self.classify = nn.Conv2d(N, N, 1)

        def forward(self, images):
            return self.classify(self.net(images))

    model = cacseg.convert(Features(build("smp FPN")))
    assert (model.seam, model.conversion.dropout) == ("classify", "")
