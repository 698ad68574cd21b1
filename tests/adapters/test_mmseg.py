"""Segmentors of mmsegmentation: auxiliary heads, cascades, its samples. On a stand-in; tools/ has the real one."""

import copy

import pytest
import torch
from torch import nn

import cacseg
from architectures import TERMS, draw
from cacseg.adapters.supported import HEADS
from mmseg_standin import (
    CascadeEncoderDecoder,
    DepthEstimator,
    DiceLoss,
    EncoderDecoder,
    FCNHead,
    OCRHead,
    SegDataSample,
    STDCHead,
    build,
)

AUXILIARIES = {
    "one auxiliary": {"auxiliary_head.conv_seg": 0.3},
    "two auxiliaries": {"auxiliary_head.0.conv_seg": 0.3, "auxiliary_head.1.conv_seg": 0.2},
    "none": {},
    "cascade": {"decode_head.0.conv_seg": 0.4},
    "second classifiers": {"decode_head.pam_conv_seg": 1.0, "decode_head.cam_conv_seg": 1.0},
}


def first(output):
    return output[0] if isinstance(output, tuple) else output


@pytest.mark.parametrize("name", AUXILIARIES)
def test_every_head_learns(name):
    original, (images, labels) = build(name).eval(), draw()
    before, keys = first(original(images)), list(original.state_dict())
    model = cacseg.convert(original)
    assert model.conversion.auxiliaries == AUXILIARIES[name]
    assert model.seam == ("decode_head.1.conv_seg" if name == "cascade" else "decode_head.conv_seg")
    assert model.conversion.dropout == model.seam.replace("conv_seg", "dropout")
    labels = labels.where(labels != 255, model.get_submodule(model.seam).ignore_index)
    assert torch.equal(first(model.plain(images)), before)
    losses = model.train().loss(images, labels)
    weights = list(AUXILIARIES[name].values())
    terms = ["auxiliary"] if len(weights) == 1 else [f"auxiliary_{index}" for index in range(len(weights))]
    assert list(losses) == [*TERMS, *terms, "total"]
    weighted = {**TERMS, **dict(zip(terms, weights, strict=True))}
    total = sum(weight * losses[term] for term, weight in weighted.items())
    torch.testing.assert_close(losses["total"], torch.as_tensor(total))
    losses["total"].backward()
    assert all(one.grad is not None and one.grad.abs().sum() > 0 for one in model.parameters())
    copied = copy.deepcopy(model)
    assert torch.equal(first(copied.eval()(images)), first(model.eval()(images)))
    assert list(copied.loss(images, labels)) == list(losses)
    assert type(cacseg.restore(model)) in (EncoderDecoder, CascadeEncoderDecoder)
    assert list(model.state_dict()) == keys


def test_auxiliary_heads_run_only_where_there_are_labels():
    model, (images, labels) = cacseg.convert(build("one auxiliary")).eval(), draw()
    calls = []
    model.auxiliary_head.register_forward_hook(lambda *_: calls.append(1))
    model(images)
    model.plain(images)
    model(images, mode="predict")
    assert calls == []
    losses = model.loss(images, labels)
    assert calls == [1]
    expected = cacseg.upsampled_cross_entropy(model.auxiliary_head(model.extract_feat(images)), labels)
    torch.testing.assert_close(losses["auxiliary"], expected)


def test_the_weight_of_all_auxiliaries_can_be_set():
    model = cacseg.convert(build("two auxiliaries"), auxiliary_weight=0.1)
    assert set(model.conversion.auxiliaries.values()) == {0.1}


def test_the_ignored_label_is_that_of_the_head():
    assert cacseg.convert(build("none")).decode_head.conv_seg.ignore_index == 7


@pytest.mark.parametrize("aligned", [False, True])
def test_a_feature_is_where_the_head_has_it(aligned):
    heads = FCNHead(16, 1, align_corners=aligned), FCNHead(8, 0, align_corners=not aligned)
    model, (images, labels) = cacseg.convert(EncoderDecoder(*heads)).eval(), draw()
    seam = model.decode_head.conv_seg
    options = seam.criterion.options[seam.preset]
    assert options.align_corners == options.context_align_corners == aligned
    assert seam.label_sampling == ("aligned" if aligned else "centred")
    scores = model.auxiliary_head(model.extract_feat(images))  # each head by itself
    expected = cacseg.upsampled_cross_entropy(scores, labels, align_corners=not aligned)
    torch.testing.assert_close(model.loss(images, labels)["auxiliary"], expected)


def test_samples_as_the_runner_gives_them():
    model, (images, labels) = cacseg.convert(build("one auxiliary")).eval(), draw()
    samples = [SegDataSample(one) for one in labels]
    hooks = []
    model.register_forward_hook(lambda *_: hooks.append(1))
    logged = model(inputs=images, data_samples=samples, mode="loss")
    assert hooks == [1]
    losses = model.loss(images, labels)
    # The Runner adds up whatever has "loss" in its name.
    assert [name for name in logged if "loss" in name] == ["loss"]
    torch.testing.assert_close(logged["loss"], losses["total"])
    for given in (
        model.loss(images, samples),
        model.loss(inputs=images, data_samples=samples),
        model(images, labels=labels),
        model(images, None, "tensor", labels),
    ):
        torch.testing.assert_close(given, losses)
    torch.testing.assert_close(model(images, samples, "loss"), logged)
    with pytest.raises(TypeError, match=r"samples with gt_sem_seg; got a list of int"):
        model.loss(images, [1, 2])
    with pytest.raises(TypeError, match=r"labels must be a torch.Tensor of integers \[b, H, W\]; got NoneType"):
        model(images, None, "loss")


def test_what_is_refused():
    for row in HEADS:
        if row.architecture == "EncHead":
            continue
        kind = type(row.architecture, (FCNHead,), {})
        with pytest.raises(ValueError, match=f"EncoderDecoder cannot be converted: decode_head is {kind.__name__}: "):
            cacseg.convert(EncoderDecoder(kind(16, 1)))
    with pytest.raises(ValueError, match=r"auxiliary_head.1 is STDCHead: it learns boundaries"):
        cacseg.convert(EncoderDecoder(FCNHead(16, 1), [FCNHead(8, 0), STDCHead(8, 0)]))
    with pytest.raises(ValueError, match=r"auxiliary_head must have a cross-entropy among its losses; it has DiceLoss"):
        cacseg.convert(EncoderDecoder(FCNHead(16, 1), FCNHead(8, 0, DiceLoss())))
    with pytest.raises(ValueError, match="DepthEstimator cannot be converted: it estimates depth"):
        cacseg.convert(DepthEstimator(FCNHead(16, 1)))
    point = type("PointHead", (OCRHead,), {})
    with pytest.raises(ValueError, match=r"decode_head.1 is PointHead: it scores single points"):
        cacseg.convert(CascadeEncoderDecoder([FCNHead(8, 0), point(8, 0)]))


@pytest.mark.parametrize("use_se_loss", [True, False])
def test_a_head_with_a_second_loss_is_refused_while_it_has_it(use_se_loss):
    head = type("EncHead", (FCNHead,), {"use_se_loss": use_se_loss})(16, 1)
    if use_se_loss:
        with pytest.raises(ValueError, match="Build it with use_se_loss=False"):
            cacseg.convert(EncoderDecoder(head))
    else:
        assert cacseg.convert(EncoderDecoder(head)).seam == "decode_head.conv_seg"


def test_another_instance_of_the_class_is_the_original():
    kind = type(cacseg.convert(build("none")))
    images = torch.randn(1, 3, 16, 16)
    other = kind(FCNHead(16, 1), nn.Identity()).eval()
    assert other(images).shape == (1, 5, 4, 4)
