"""Weights on their way in and out of converted models: files, state dicts, pickles, optimisers."""

import copy
import io
import pickle

import pytest
import torch
from safetensors.torch import load_model, save_model

import cacseg
from architectures import ARCHITECTURES, SMALL, Tiny, build, draw, scores_of, smp, tiny


def test_pickle():
    model, (images, _) = cacseg.convert(build("smp Unet")), draw()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for loaded in (pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)):
        assert type(loaded) is type(model)
        assert torch.equal(loaded(images), model(images))
        assert torch.equal(cacseg.restore(loaded)(images), model.plain(images))


def test_an_optimiser_built_before_keeps_its_parameters():
    original = Tiny()
    optimiser = torch.optim.SGD(original.parameters(), lr=0.1)
    model, (images, labels) = cacseg.convert(original, seam="head.1"), draw()
    before = model.head[1].weight.clone()
    model.loss(images, labels)["total"].backward()
    optimiser.step()
    assert not torch.equal(model.head[1].weight, before)
    assert torch.equal(cacseg.restore(model).head[1].weight, original.head[1].weight)


def test_restore_follows_parameters_that_were_exchanged():
    model, other = tiny(), tiny()
    with torch.no_grad():
        other.head[1].weight.fill_(3.0)
    model.load_state_dict(other.state_dict(), assign=True)
    assert cacseg.restore(model).head[1].weight.unique().tolist() == [3.0]


def test_a_saved_transformer_names_its_architecture(tmp_path):
    model, (images, _) = cacseg.convert(build("transformers Segformer")), draw()
    model.save_pretrained(tmp_path)
    assert model.config.architectures == ["SegformerForSemanticSegmentation"]
    plain = cacseg.restore(copy.deepcopy(model)).from_pretrained(tmp_path)
    assert torch.equal(plain.eval()(images).logits, model.plain(images).logits)


@pytest.mark.parametrize("name", SMALL)
def test_a_state_dict_of_the_original_loads_strictly(name):
    """A checkpoint from before the conversion: the projectors, which it knows nothing of, keep their values."""
    original, model = build(name), cacseg.convert(build(name))
    with torch.no_grad():
        for parameter in original.parameters():
            parameter.add_(0.01)
    model.load_state_dict(original.state_dict())
    images, _ = draw(name)
    with torch.no_grad():
        assert torch.equal(scores_of(model.eval().plain(images)), scores_of(original.eval()(images)))


@pytest.mark.parametrize("name", ["smp Unet", "torchvision deeplabv3_mobilenet_v3_large", "transformers Segformer"])
def test_the_two_lines_that_save_and_load(name, tmp_path):
    model, (images, _) = cacseg.convert(build(name)), draw(name)
    save_model(model, tmp_path / "model.safetensors")
    other = cacseg.convert(ARCHITECTURES[name]()).eval()
    load_model(other, tmp_path / "model.safetensors")
    assert torch.equal(scores_of(other(images)), scores_of(model(images)))


def test_a_folder_that_smp_saved(tmp_path):
    """smp's own way back builds the original: it refuses the projectors, or leaves them out where it is not strict."""
    model, (images, _) = cacseg.convert(build("smp Unet")), draw()
    model.save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*context_projector"):
        smp.from_pretrained(tmp_path)
    other = cacseg.convert(smp.from_pretrained(tmp_path, strict=False)).eval()
    assert torch.equal(other.plain(images), model.plain(images))
    load_model(other, tmp_path / "model.safetensors")
    assert torch.equal(other(images), model(images))


@pytest.mark.parametrize("name", ["transformers Segformer", "transformers UperNet with Swin", "transformers Sapiens2"])
def test_a_folder_that_transformers_saved(name, tmp_path):
    """It writes some architectures under the names of older versions, unless it is told not to."""
    model, (images, _) = cacseg.convert(build(name)), draw(name)
    model.save_pretrained(tmp_path, save_original_format=False)
    other = cacseg.convert(type(model).from_pretrained(tmp_path)).eval()
    assert torch.equal(scores_of(other.plain(images)), scores_of(model.plain(images)))
    load_model(other, tmp_path / "model.safetensors")
    assert torch.equal(scores_of(other(images)), scores_of(model(images)))


def test_a_folder_of_the_trainer(tmp_path):
    """Under the old names: `from_pretrained` reads them, and the file's projectors follow."""
    model, (images, _) = cacseg.convert(build("transformers Segformer")), draw()
    model.save_pretrained(tmp_path)
    other = cacseg.convert(type(model).from_pretrained(tmp_path)).eval()
    load_model(other, tmp_path / "model.safetensors", strict=False)
    assert torch.equal(scores_of(other(images)), scores_of(model(images)))
