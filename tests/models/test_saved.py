import importlib
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import cacseg
from cacseg.models import create_model
from cacseg.models.files import read_tensors
from cacseg.presets import PRESETS


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = create_model(
        "fcn", 4, backbone="test_resnet", head_channels=16, mean=[0.1, 0.2, 0.3], classifier_arguments={"scale": 9.0}
    )
    model.class_names = ["sky", "road", "tree", "car"]
    model.palette = [[0, 0, 255], [128, 128, 128], [0, 255, 0], [255, 0, 0]]
    return model.eval()


def test_a_file_needs_no_other_knowledge(model, tmp_path):
    path = tmp_path / "model.safetensors"
    model.save(path)
    again = cacseg.load(path)
    images = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        assert torch.equal(again(images), model(images))
    assert not again.training
    assert again.arguments == model.arguments
    assert (again.class_names, again.palette, again.mean) == (model.class_names, model.palette, (0.1, 0.2, 0.3))
    assert again.classifier.scale == 9.0
    metadata = read_tensors(path).metadata
    assert metadata["cacseg_version"] == cacseg.__version__
    assert metadata["model"] == "fcn"
    assert json.loads(metadata["mean"]) == [0.1, 0.2, 0.3]
    with pytest.raises(FileExistsError, match="exists already"):
        model.save(path)
    model.save(path, overwrite=True)


@pytest.mark.parametrize("padded", [True, False])
def test_padding_to_the_stride_round_trips(tmp_path, padded):
    arguments = {"backbone": "mobilenetv2_035", "padding": "same", "pad_to_stride": padded}
    create_model("fcn", 4, "plain", **arguments).save(tmp_path / "model.safetensors")
    assert cacseg.load(tmp_path / "model.safetensors").backbone.multiple == (32 if padded else 1)


def test_dilations_round_trip(tmp_path):
    model = create_model("deeplabv3plus", 4, "plain", backbone="test_resnet", head_channels=16, dilations=(2, 3))
    model.save(tmp_path / "near.safetensors")
    again = cacseg.load(tmp_path / "near.safetensors")
    assert again.arguments["dilations"] == [2, 3]
    assert again.head.branches[3].depthwise.conv.dilation == (3, 3)
    tensors, metadata = load_file(tmp_path / "near.safetensors"), read_tensors(tmp_path / "near.safetensors").metadata
    arguments = json.dumps({**model.arguments, "dilations": [1] * 9})
    save_file(tensors, tmp_path / "many.safetensors", metadata={**metadata, "arguments": arguments})
    with pytest.raises(ValueError, match="it claims 9 dilations and holds 4 branches"):
        cacseg.load(tmp_path / "many.safetensors")


def test_a_training_step_round_trip(tmp_path):
    """Class weights and loss arguments are part of the model: the loss is the same after loading."""
    torch.manual_seed(0)
    model = create_model(
        "fcn",
        3,
        backbone="test_resnet",
        head_channels=16,
        class_weights=[1.0, 2.0, 0.5],
        loss_arguments={"kl_weight": 0.3},
        dropout=0.0,
    ).eval()
    model.save(tmp_path / "m.safetensors")
    again = cacseg.load(tmp_path / "m.safetensors")
    images, labels = torch.randn(2, 3, 64, 64), torch.randint(0, 3, (2, 64, 64))
    for name, value in model.loss(images, labels).items():
        torch.testing.assert_close(again.loss(images, labels)[name], value)


def test_files_that_are_no_model_are_refused(model, tmp_path):
    path = tmp_path / "model.safetensors"
    model.save(path)
    tensors, metadata = load_file(path), read_tensors(path).metadata

    def write(name, tensors, metadata):
        save_file(tensors, tmp_path / name, metadata=metadata)
        return tmp_path / name

    with pytest.raises(ValueError, match=r"not a model saved by model.save.*no description.*import-weights"):
        cacseg.load(write("bare.safetensors", tensors, None))
    torch.save(tensors, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=r"not a model saved by model.save"):
        cacseg.load(tmp_path / "a.pth")
    with pytest.raises(ValueError, match="has the format 'cacseg model 9'"):
        cacseg.load(write("new.safetensors", tensors, {**metadata, "format": "cacseg model 9"}))
    with pytest.raises(ValueError, match="damaged description of its model"):
        cacseg.load(write("json.safetensors", tensors, {**metadata, "arguments": "{"}))
    for argument in ("backbone_weights", "pretrained", "no_such"):
        arguments = json.dumps({**model.arguments, argument: "/etc/passwd"})
        with pytest.raises(ValueError, match=rf"arguments that this version .* does not know: \['{argument}'\]"):
            cacseg.load(write("arguments.safetensors", tensors, {**metadata, "arguments": arguments}))
    arguments = json.dumps({**model.arguments, "num_classes": 1})
    with pytest.raises(ValueError, match="it claims 1 classes and holds a classifier of shape"):
        cacseg.load(write("one.safetensors", tensors, {**metadata, "arguments": arguments}))
    arguments = json.dumps({**model.arguments, "backbone": 5})
    with pytest.raises(ValueError, match="describes a model that cannot be built"):
        cacseg.load(write("backbone.safetensors", tensors, {**metadata, "arguments": arguments}))
    for key, value in (("class_names", '["a"]'), ("palette", '"junk"')):
        with pytest.raises(ValueError, match=f"{key} of .* must be 4"):
            cacseg.load(write("classes.safetensors", tensors, {**metadata, key: value}))
    with pytest.raises(ValueError, match=r"damaged description of its model .class_names"):
        cacseg.load(write("names.safetensors", tensors, {**metadata, "class_names": "{"}))
    arguments = json.dumps({**model.arguments, "num_classes": 5})
    with pytest.raises(ValueError, match="it claims 5 classes and holds a classifier of shape"):
        cacseg.load(write("five.safetensors", tensors, {**metadata, "arguments": arguments}))
    fewer = {name: value for name, value in tensors.items() if name != "classifier.weight"}
    with pytest.raises(ValueError, match="holds no classifier"):
        cacseg.load(write("fewer.safetensors", fewer, metadata))
    fewer = {name: value for name, value in tensors.items() if name != "classifier.bias"}
    with pytest.raises(ValueError, match=r"1 tensors are missing \['classifier.bias'\]"):
        cacseg.load(write("fewer.safetensors", fewer, metadata))


def test_what_load_does_not_take_says_what_does(tmp_path):
    for name, words in (
        ("m.onnx", r"m\.onnx is an exported file.*cacseg\.Predictor\("),
        ("M.ONNX", r"M\.ONNX is an exported file.*cacseg\.Predictor\("),
        ("m.pt2", r"m\.pt2 is an exported program.*torch\.export\.load\("),
    ):
        (tmp_path / name).write_bytes(b"0123456789")
        with pytest.raises(ValueError, match=words):
            cacseg.load(tmp_path / name)
        with pytest.raises(FileNotFoundError):
            cacseg.load(tmp_path / "nowhere" / name)
    for wrong in (None, torch.nn.Conv2d(1, 1, 1)):
        with pytest.raises(TypeError, match=f"path.*{type(wrong).__name__}"):
            cacseg.load(wrong)


def test_the_folder_of_another_library_is_named(tmp_path):
    smp = importlib.import_module("segmentation_models_pytorch")
    network = smp.Unet("resnet18", encoder_weights=None, classes=3, encoder_depth=3, decoder_channels=(8, 8, 8))
    network.save_pretrained(tmp_path / "mine")
    with pytest.raises(ValueError, match=r"mine.*another library.*smp\.from_pretrained.*cacseg\.convert"):
        cacseg.load(tmp_path / "mine")


def test_what_was_changed_since_comes_back(tmp_path):
    import numpy

    model = create_model(
        "fcn", numpy.int64(3), backbone="test_resnet", head_channels=16, label_smoothing=numpy.float32(0.5)
    ).half()
    model.mean, model.auxiliary_weight = (0.9, 0.8, 0.7), 0.25
    model.palette = numpy.zeros((3, 3), dtype=int)
    model.save(tmp_path / "m.safetensors")
    again = cacseg.load(tmp_path / "m.safetensors")
    assert again.mean == (0.9, 0.8, 0.7)
    assert again.auxiliary_weight == 0.25
    assert again.palette == [[0, 0, 0]] * 3
    assert again.classifier.weight.dtype == torch.float16
    assert again.arguments["label_smoothing"] == 0.5
    model.class_names = ["a", "b"]
    with pytest.raises(ValueError, match="class_names of the model must be 3 strings"):
        model.save(tmp_path / "n.safetensors")
    assert not (tmp_path / "n.safetensors").exists()


def test_a_preset_that_changes_later_leaves_files_as_they_were(tmp_path, monkeypatch):
    given = create_model(
        "fcn", 4, backbone="test_resnet", head_channels=16, loss_arguments={"soft_target_weight": 0.7}
    ).eval()
    given.save(tmp_path / "model.safetensors")
    file = read_tensors(tmp_path / "model.safetensors")
    monkeypatch.setitem(PRESETS, "tuned", PRESETS["released"]._replace(overlap_weight=1.0, soft_target_weight=0.1))
    again = cacseg.load(tmp_path / "model.safetensors")
    options = again.criterion.options["tuned"]
    assert (again.classifier.context_design, again.classifier.label_sampling) == ("project_concat_residual", "centred")
    assert (options.overlap_weight, options.align_corners, again.auxiliary_average) == (3.0, False, "labelled")
    assert options.soft_target_weight == 0.7  # which was said, and not the preset's
    images = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        assert torch.equal(again(images), given(images))
    again.save(tmp_path / "again.safetensors")
    assert cacseg.load(tmp_path / "again.safetensors").arguments == again.arguments
    newer = {**file.metadata, "preset_values": '{"unheard_of": 1}'}
    save_file(dict(file.tensors), tmp_path / "newer.safetensors", newer)
    with pytest.raises(
        ValueError, match=r"cannot be built: its preset has values that this version .* \{'unheard_of': 1\}"
    ):
        cacseg.load(tmp_path / "newer.safetensors")


def test_an_overlap_weight_of_ones_own_outlives_the_presets(tmp_path, monkeypatch):
    create_model("fcn", 4, backbone="test_resnet", head_channels=16, overlap_weight=0.5).save(
        tmp_path / "model.safetensors"
    )
    monkeypatch.setitem(PRESETS, "tuned", PRESETS["tuned"]._replace(overlap_weight=1.0))
    assert cacseg.load(tmp_path / "model.safetensors").criterion.options["tuned"].overlap_weight == 0.5


@pytest.mark.parametrize("classifier", ["context", "plain"])
def test_the_average_of_the_auxiliary_loss_outlives_its_preset(classifier, tmp_path, monkeypatch):
    create_model("fcn", 4, classifier, backbone="test_resnet", head_channels=16, preset="released").save(
        tmp_path / "model.safetensors"
    )
    monkeypatch.setitem(PRESETS, "released", PRESETS["released"]._replace(auxiliary_average="labelled"))
    assert cacseg.load(tmp_path / "model.safetensors").auxiliary_average == "all"


def test_a_model_put_together_by_hand_is_not_saved(model, tmp_path):
    import copy

    other = copy.deepcopy(model)
    other.arguments = {}
    with pytest.raises(ValueError, match=r"only a model of cacseg.create_model can be saved"):
        other.save(tmp_path / "x.safetensors")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(model, tmp_path, value):
    import copy

    other = copy.deepcopy(model)
    with torch.no_grad():
        other.head.get_parameter(next(name for name, _ in other.head.named_parameters())).view(-1)[3] = value
    name = "head." + next(name for name, _ in other.head.named_parameters())
    other.save(tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match=rf"m\.safetensors holds NaN or infinity in {name}"):
        cacseg.load(tmp_path / "m.safetensors")


def test_flipped_bytes_are_found(model, tmp_path):
    path = tmp_path / "m.safetensors"
    model.save(path)
    whole = bytearray(path.read_bytes())
    for place in (len(whole) - 5, len(whole) // 2, whole.index(b"0.2, 0.3") + 2):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"m\.safetensors is damaged.*checksum"):
            cacseg.load(path)


def test_a_small_file_claims_no_large_model(model, tmp_path):
    """The claim is looked at without memory for it: 4 TB of projectors would not fit anywhere."""
    model.save(tmp_path / "m.safetensors")
    tensors, metadata = load_file(tmp_path / "m.safetensors"), read_tensors(tmp_path / "m.safetensors").metadata
    for change in ({"head_channels": 10**6}, {"backbone": "vit_giant_patch14_dinov2", "name": "upernet"}):
        arguments = json.dumps({**model.arguments, **change})
        save_file(tensors, tmp_path / "large.safetensors", metadata={**metadata, "arguments": arguments})
        with pytest.raises(ValueError, match=r"does not fit the model it describes|cannot be built"):
            cacseg.load(tmp_path / "large.safetensors")


@pytest.mark.parametrize("key", ["arguments", "class_names", "preset_values"])
def test_a_description_that_is_nested_too_deeply(model, tmp_path, key):
    model.save(tmp_path / "m.safetensors")
    tensors, metadata = load_file(tmp_path / "m.safetensors"), read_tensors(tmp_path / "m.safetensors").metadata
    save_file(tensors, tmp_path / "deep.safetensors", metadata={**metadata, key: "[" * 100_000})
    with pytest.raises(ValueError, match=rf"damaged description of its model \({key}: nested too deeply"):
        cacseg.load(tmp_path / "deep.safetensors")


@pytest.mark.parametrize(
    ("key", "value"), [("class_names", 5), ("class_names", "abcd"), ("palette", 5), ("palette", [1] * 4)]
)
def test_class_names_and_colours_of_another_kind(model, tmp_path, key, value):
    model.save(tmp_path / "m.safetensors")
    tensors, metadata = load_file(tmp_path / "m.safetensors"), read_tensors(tmp_path / "m.safetensors").metadata
    save_file(tensors, tmp_path / "other.safetensors", metadata={**metadata, key: json.dumps(value)})
    with pytest.raises(ValueError, match=rf"{key} of .*other\.safetensors must be 4"):
        cacseg.load(tmp_path / "other.safetensors")
