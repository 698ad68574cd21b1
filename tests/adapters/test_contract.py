"""What holds for every architecture: one test, over small models of the three libraries with random weights."""

import copy

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import cacseg
from architectures import ARCHITECTURES, TERMS, N, build, build_torchvision, draw, scores_of
from cacseg.adapters.calls import current_call

# Nearest relatives of another one here: the same seam in the same library.
RELATIVES = {
    "smp UnetPlusPlus",
    "smp MAnet",
    "smp PAN",
    "smp DeepLabV3",
    "torchvision fcn, no aux",
    "torchvision deeplabv3",
    "torchvision deeplabv3, no aux",
    "transformers Beit, no auxiliary",
    "transformers Data2VecVision",
    "transformers DPT, no auxiliary",
    "transformers MobileViTV2",
}
# Models that answer with something else than scores upsampled once.
OTHERWISE = {"smp Unet, softmax after it", "transformers DPT", "transformers DPT, no auxiliary"}


def tensors_of(output):
    """Names and shapes of what a model returns."""
    if isinstance(output, Tensor):
        return {"": tuple(output.shape)}
    return {key: tuple(value.shape) for key, value in output.items() if isinstance(value, Tensor)}


def without_gradient(model):
    return {name for name, one in model.named_parameters() if one.requires_grad and one.grad is None}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in RELATIVES)) for name in ARCHITECTURES]
)
def test_the_contract(name):
    torch.set_num_threads(1)
    model, (images, labels) = build(name), draw(name)
    kind, keys = type(model), {key: value.clone() for key, value in model.state_dict().items()}
    parameters, modules = dict(model.named_parameters()), [key for key, _ in model.named_modules()]
    model.train()
    sum(value.sum() for value in loose(model(images)) if value.requires_grad).backward()
    unused = without_gradient(model)  # by the original too: mask tokens, last layers whose output nobody reads
    model.zero_grad()
    model.load_state_dict(keys)  # the batch statistics from before
    with torch.no_grad():
        before = model.eval()(images)

    converted = cacseg.convert(model)
    assert converted is model
    assert isinstance(model, kind)
    assert all(one is parameters[key] for key, one in model.named_parameters() if key in parameters)

    with torch.no_grad():
        after, plain = model(images), model.plain(images)
    assert type(after) is type(before)
    assert type(plain) is type(before)
    assert tensors_of(after) == tensors_of(plain) == tensors_of(before)
    assert torch.equal(scores_of(plain), scores_of(before))
    assert not torch.allclose(scores_of(after), scores_of(before))
    assert scores_of(after).isfinite().all()

    model.train()
    assert tensors_of(model(images)) == tensors_of(before)  # no labels, no losses
    losses = model.loss(images, labels)
    auxiliary = ["auxiliary"] if model.conversion.auxiliaries else []
    assert list(losses) == [*TERMS, *auxiliary, "total"]
    assert all(value.isfinite() for value in losses.values())
    weights = {**TERMS, "auxiliary": 0.4}
    total = sum(weights[term] * losses[term] for term in [*TERMS, *auxiliary])
    torch.testing.assert_close(losses["total"], total)
    model.zero_grad()
    losses["total"].backward()
    assert without_gradient(model) <= unused
    assert all(one.grad.isfinite().all() for one in model.parameters() if one.grad is not None)

    model.eval()
    if name not in OTHERWISE:
        learn_what_is_answered(model, images, labels)
    leak_nothing(model, images, labels)
    survive_copies(model, images)
    with torch.no_grad():
        tuned = model.plain(images)
    restored = cacseg.restore(model)
    assert restored is model
    assert type(model) is kind
    assert list(model.state_dict()) == list(keys)
    assert [key for key, _ in model.named_modules()] == modules
    with torch.no_grad():
        assert torch.equal(scores_of(model(images)), scores_of(tuned))


@pytest.mark.parametrize(
    ("name", "aux"),
    [("fcn_resnet50", True), ("fcn_resnet101", None), ("deeplabv3_resnet50", True), ("deeplabv3_resnet101", None)],
)
def test_the_large_models_of_torchvision(name, aux):
    """As the library puts them together, from shapes alone; those above have one block in each stage instead."""
    with torch.device("meta"):
        model = cacseg.convert(build_torchvision(name, aux))
        assert model.seam == "classifier.4"
        assert list(model.conversion.auxiliaries) == (["aux_classifier.4"] if aux else [])
        assert model(torch.empty(2, 3, 32, 32))["out"].shape == (2, N, 32, 32)
        model.loss(torch.empty(2, 3, 32, 32), torch.empty(2, 32, 32, dtype=torch.long))["total"].backward()
    assert without_gradient(model) == set()


def loose(output):
    return [output] if isinstance(output, Tensor) else [value for value in output.values() if isinstance(value, Tensor)]


def learn_what_is_answered(model, images, labels):
    """The cross-entropies are those of the model's own outputs: a feature is at the same place in both."""
    ignored = model.get_submodule(model.seam).criterion.ignore_index
    with torch.no_grad():
        losses = model.loss(images, labels)
        answers = {"context": scores_of(model(images)), "plain": scores_of(model.plain(images))}
    for term, scores in answers.items():
        large = scores
        if scores.shape[2:] != labels.shape[1:]:  # left to the caller
            large = F.interpolate(scores, size=labels.shape[1:], mode="bilinear")
        counted = labels.numel() if term == "context" else (labels != ignored).sum()
        truth = F.cross_entropy(large, labels, ignore_index=ignored, reduction="sum") / counted
        torch.testing.assert_close(losses[term], truth, msg=lambda text, term=term: f"{term}: {text}")


def leak_nothing(model, images, labels):
    """Neither a call with labels nor one that fails leaves a trace in the next."""
    seam = model.get_submodule(model.seam)
    with torch.no_grad():
        clean = scores_of(model(images))
        model.loss(images, labels)
        assert current_call() is None
        hook = seam.register_forward_hook(lambda *_: 1 / 0)
        for attempt in (lambda: model.loss(images, labels), lambda: model.plain(images), lambda: model(images)):
            with pytest.raises(ZeroDivisionError):
                attempt()
            assert current_call() is None
        hook.remove()
        with pytest.raises(ValueError, match=rf"labels must be in \[0, {N}\)"):
            model.loss(images, labels.clamp(max=N - 1) + 1)
        assert torch.equal(scores_of(model(images)), clean)


def survive_copies(model, images):
    """deepcopy and a state dict give the same answers, and share nothing."""
    with torch.no_grad():
        expected = scores_of(model(images))
        copied = copy.deepcopy(model)
        assert type(copied) is type(model)
        other = cacseg.convert(copy.deepcopy(cacseg.restore(copy.deepcopy(model))))
        assert not torch.equal(scores_of(other(images)), expected)  # new projectors
        other.load_state_dict(model.state_dict())
        for one in (copied, other):
            assert torch.equal(scores_of(one(images)), expected)
            one.get_submodule(one.seam).weight.zero_()
        assert torch.equal(scores_of(model(images)), expected)


def test_the_contract_covers_the_libraries():
    libraries = [name.split()[0] for name in ARCHITECTURES]
    assert len(libraries) >= 25
    assert set(libraries) == {"smp", "torchvision", "transformers"}
    assert set(ARCHITECTURES) > RELATIVES
