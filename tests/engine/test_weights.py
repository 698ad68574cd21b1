"""Starting from a saved model: all of it, all but its classifiers, or nothing."""

import pytest
import torch

from cacseg.engine.weights import CLASSIFIERS, load_weights
from cacseg.models import create_model
from cacseg.runtime.inputs import fingerprint


def make(num_classes=3, classifier="context", seed=0, backbone="test_resnet", **arguments):
    torch.manual_seed(seed)
    return create_model("fcn", num_classes, classifier, backbone=backbone, **arguments)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "model.safetensors"
    model = make()
    model.save(path)
    return path, model.state_dict()


def test_the_same_classes_give_the_same_model(saved):
    path, before = saved
    model = make(seed=1)
    assert load_weights(model, path) == []
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_other_classes_are_refused_unless_the_classifiers_start_afresh(saved):
    path, before = saved
    model = make(5, seed=1)
    with pytest.raises(ValueError, match=r"of 3 classes, and the data have 5. Set model.reset_classifier=true"):
        load_weights(model, path)
    fresh = make(5, seed=1).state_dict()
    assert all(torch.equal(value, fresh[name]) for name, value in model.state_dict().items())
    left = load_weights(model, path, reset_classifier=True)
    assert sorted(left) == sorted(
        ["classifier.weight", "classifier.bias", "auxiliary.classifier.weight", "auxiliary.classifier.bias"]
    )
    for name, value in model.state_dict().items():
        assert torch.equal(value, fresh[name] if name in left else before[name])


def test_a_plain_model_can_become_context_aware(tmp_path):
    make(classifier="plain").save(tmp_path / "plain.safetensors")
    with pytest.raises(ValueError, match=r"holds a plain fcn and does not fit this context fcn.*Nothing was loaded"):
        load_weights(make(), tmp_path / "plain.safetensors")
    left = load_weights(make(), tmp_path / "plain.safetensors", reset_classifier=True)
    assert left
    assert all(name.startswith(CLASSIFIERS) and "projector" in name for name in left)


def test_projectors_that_are_read_in_another_way_are_refused_or_start_afresh(tmp_path):
    make(preset="released").save(tmp_path / "released.safetensors")
    with pytest.raises(ValueError, match=r"with A = theta\(\[P, C\]\), and this .* as they were \(released, {}\)"):
        load_weights(make(), tmp_path / "released.safetensors")
    model = make(seed=1)
    left = load_weights(model, tmp_path / "released.safetensors", reset_classifier=True)
    assert left
    assert all("_projector." in name for name in left)
    assert not model.classifier.context_projector[2].weight.any()
    assert load_weights(make(preset="released"), tmp_path / "released.safetensors") == []
    other = {"preset": "released", "classifier_arguments": {"oracle_design": "project_concat_residual"}}
    with pytest.raises(ValueError, match=r"and this model has A = theta\(\[P, C\]\) \+ C"):
        load_weights(make(**other), tmp_path / "released.safetensors")
    same = {"preset": "paper", "classifier_arguments": {"context_design": "project_concat"}}
    assert load_weights(make(**same), tmp_path / "released.safetensors") == []


def test_another_network_is_refused(saved):
    model = make(backbone="resnet18")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"does not fit this context fcn: \d+ of \d+ tensors are missing"):
        load_weights(model, saved[0], reset_classifier=True)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_weights_of_a_backbone_are_pointed_elsewhere(tmp_path):
    torch.save({"conv.weight": torch.zeros(3)}, tmp_path / "backbone.pth")
    with pytest.raises(ValueError, match=r"model\.backbone_weights"):
        load_weights(make(), tmp_path / "backbone.pth")


def test_fingerprints_differ(tmp_path):
    (tmp_path / "last.safetensors").write_bytes(b"last")
    (tmp_path / "best.safetensors").write_bytes(b"best")
    assert fingerprint(tmp_path / "last.safetensors") != fingerprint(tmp_path / "best.safetensors")
