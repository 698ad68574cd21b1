"""The auxiliary loss: averaged over labelled pixels, or over all of them as the authors' code does."""

import pytest
import torch
from torch.nn import functional as F

from cacseg.models import create_model
from cacseg.models.model import SegmentationModel
from cacseg.recipes.build import make_model
from cacseg.recipes.config import change
from cacseg.recipes.named import PAPER_DATA, RECIPES, find_recipe


def draw(n):
    """Images, and labels of which some 13% are ignored."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, 3, 64, 96, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, n, (2, 64, 96), generator=generator)
    labels[torch.rand(labels.shape, generator=generator) < 0.13] = 255
    assert 0.12 < float((labels == 255).double().mean()) < 0.14
    return images, labels


def authors_loss(logits, labels):
    """A mean over all pixels: 0 of an ignored one counts."""
    upsampled = F.interpolate(logits, labels.shape[1:], mode="bilinear", align_corners=False)
    return F.cross_entropy(upsampled, labels, ignore_index=255, reduction="none").mean()


@pytest.mark.parametrize("name", ["fcn_mobilenetv2", "ocrnet_hrnet_w18"])
@pytest.mark.parametrize("classifier", ["context", "plain"])
@torch.no_grad()
def test_released_averages_as_the_authors_do(name, classifier):
    torch.manual_seed(0)
    model = create_model(name, 6, classifier, preset="released").double().eval()
    images, labels = draw(6)
    losses = model.loss(images, labels)
    truth = authors_loss(model.auxiliary(model.backbone(images)), labels)
    torch.testing.assert_close(losses["auxiliary"], truth, rtol=0.0, atol=1e-9)
    main = sum(loss for term, loss in losses.items() if term not in ("auxiliary", "total"))
    torch.testing.assert_close(losses["total"], main + 0.4 * truth, rtol=0.0, atol=1e-9)


@torch.no_grad()
def test_labelled_pixels_alone_by_default():
    model = create_model("fcn_mobilenetv2", 6).double().eval()
    images, labels = draw(6)
    logits = F.interpolate(model.auxiliary(model.backbone(images)), (64, 96), mode="bilinear")
    truth = F.cross_entropy(logits, labels, ignore_index=255)
    torch.testing.assert_close(model.loss(images, labels)["auxiliary"], truth)


@pytest.mark.parametrize("classifier", ["context", "plain"])
@pytest.mark.parametrize(("preset", "average"), [("tuned", "labelled"), ("released", "all"), ("paper", "labelled")])
def test_the_preset_decides_unless_told_otherwise(classifier, preset, average):
    with torch.device("meta"):
        arguments = {"backbone": "test_resnet", "head_channels": 16, "preset": preset}
        model = create_model("fcn", 6, classifier, **arguments)
        other = {"all": "labelled", "labelled": "all"}[average]
        told = create_model("fcn", 6, classifier, auxiliary_average=other, **arguments)
        again = create_model(**told.arguments)
    assert model.auxiliary_average == model.arguments["auxiliary_average"] == average
    assert told.auxiliary_average == again.auxiliary_average == other
    if classifier == "context":  # put together by hand
        parts = (model.backbone, model.head, model.classifier, model.auxiliary, model.criterion)
        assert SegmentationModel(*parts, mean=model.mean, std=model.std).auxiliary_average == average


class Data:
    """What building a model asks of a data set."""

    class_names, ignore_index = ("a", "b", "c"), 255


@pytest.mark.parametrize("classifier", ["context", "plain"])
def test_the_papers_recipes_average_over_all_pixels(classifier):
    """The plain baselines were trained with the authors' code too."""
    names = [name for name in RECIPES if name.partition("/")[0] in PAPER_DATA]
    assert len(names) == 5 * 11
    assert {find_recipe(name).model.preset for name in names} == {"released"}
    settings = {"model.classifier": classifier, "model.pretrained": False}
    for recipe, given, average in (
        ("ade20k/fcn_mobilenetv2", {}, "all"),
        ("cityscapes/ocrnet_hrnet_w18", {}, "all"),
        ("cityscapes/ocrnet_hrnet_w18", {"model.auxiliary_average": "labelled"}, "labelled"),
        ("camvid", {}, "labelled"),
    ):
        with torch.device("meta"):
            model = make_model(change(find_recipe(recipe), {**settings, **given}).model, Data(), print)
        assert model.auxiliary_average == average
