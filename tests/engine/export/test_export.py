"""Files of each format give what the model gives, at sizes other than the traced one."""

import copy
import importlib
import json
import re
import shutil
import sys
from collections import Counter
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

import cacseg
from architectures import build, small_swin
from cacseg import ContextAwareClassifier, ContextLoss
from cacseg.data.python import PythonData
from cacseg.engine.export import export
from cacseg.engine.export.classifier import TINY
from cacseg.engine.export.formats import OPSET, SCOPES, SUFFIXES, check_packages, open_program
from cacseg.engine.export.module import TRACED, TRACES_MOST, Description, InferenceModule, inference_copy
from cacseg.engine.export.quantise import CALIBRATION, as_data, mean_iou, read_images
from cacseg.engine.export.verify import SHAPES, Check, Scores, compare, own_rounding, require, require_use, verify
from cacseg.functional._precision import without_tf32
from cacseg.models import MODELS
from onnx_files import Small, edited, write_small

pytest.importorskip("onnx", reason="needs the extra export")
import onnx
import onnxruntime

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
NAMES, PALETTE = ("grass", 'the "sky"', "Straße"), ((10, 200, 10), (10, 10, 200), (90, 90, 90))
CPU = torch.device("cpu")
OTHER = {"mean": MEAN, "std": STD}
PLAIN = Description(4, None, None, MEAN, STD, None, True, "logits", "input", "plain", None, None, None, "fp32")


def small(name="upernet", classes=3, backbone="test_resnet", **arguments):
    torch.manual_seed(0)
    model = cacseg.create_model(
        name, classes, backbone=backbone, head_channels=8, mean=MEAN, std=STD, preset="released", **arguments
    )
    return settle(model).eval()


def settle(model):
    """Statistics unlike those of a new model, and outputs of layers that stay of the same size."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.2, 0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return model


def draw(*shape, seed=0):
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def normalised(images, mean=MEAN, std=STD):
    mean, std = (torch.tensor(one).view(1, 3, 1, 1) for one in (mean, std))
    return (images / 255.0 - mean) / std


def run_onnx(path, images):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


def metadata(path):
    return json.loads({one.key: one.value for one in onnx.load(path).metadata_props}["cacseg"])


@pytest.fixture(scope="module")
def model():
    model = small()
    model.class_names, model.palette = NAMES, PALETTE
    return model


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("exported") / "model.onnx"
    return export(model, path, scale=(2048, 512))


@torch.no_grad()
@pytest.mark.parametrize("shape", [(1, 33, 64), (3, 90, 51), (2, 128, 128)])
def test_an_onnx_file_gives_the_logits_of_the_model(exported, model, shape):
    images = draw(shape[0], 3, *shape[1:])
    truth = model(normalised(images))
    torch.testing.assert_close(run_onnx(exported.path, images), truth, atol=1e-3, rtol=1e-4)


def test_a_file_was_compared_at_two_other_sizes(exported):
    assert [(check.shape[0], *check.shape[2:]) for check in exported.checks] == list(SHAPES)
    assert TRACED[1:] not in [shape[1:] for shape in SHAPES]
    assert all(0.0 < check.difference <= check.allowed and check.agreement > 0.99 for check in exported.checks)


def test_an_onnx_file_is_of_standard_operators_and_tells_nothing_of_its_machine(exported):
    content = onnx.load(exported.path)
    onnx.checker.check_model(content, full_check=True)
    assert [(one.domain, one.version) for one in content.opset_import] == [("", OPSET)]
    assert {node.domain for node in content.graph.node} == {""}
    assert not content.functions
    assert b"/" not in b"".join(one.value.encode() for node in content.graph.node for one in node.metadata_props)
    (given,), (found,) = content.graph.input, content.graph.output
    assert (given.name, given.type.tensor_type.elem_type) == ("images", onnx.TensorProto.UINT8)
    assert (found.name, found.type.tensor_type.elem_type) == ("logits", onnx.TensorProto.FLOAT)
    sizes = [[one.dim_param or one.dim_value for one in value.type.tensor_type.shape.dim] for value in (given, found)]
    assert sizes == [["batch", 3, "height", "width"], ["batch", 3, "height", "width"]]
    assert [path.name for path in exported.path.parent.iterdir()] == ["model.onnx"]


def test_the_classifier_reads_the_features_as_a_map_and_as_one_copy(exported):
    """Its operations, by which it takes little time: see `for_onnx`."""
    nodes = onnx.load(exported.path).graph.node
    scopes = {node.name: next(one.value for one in node.metadata_props if one.key == SCOPES) for node in nodes}
    kinds = Counter(node.op_type for node in nodes if "'module.model.classifier" in scopes[node.name])
    assert kinds["Conv"] == 1  # the plain logits
    assert kinds["MatMul"] == 5  # prototypes, context logits, lengths, and the projector's two
    assert kinds["Einsum"] == 0


def test_no_product_reads_subnormal_shares(exported):
    """Exporters leave out an addition of 1e-30; without a floor a confident model takes twenty times as long there."""
    graph = onnx.load(exported.path).graph
    products = {name for node in graph.node if node.op_type == "MatMul" for name in node.input}
    (floor,) = [node for node in graph.node if node.op_type == "Clip" and node.output[0] in products]
    values = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    assert values[floor.input[1]] == np.float32(TINY)


def test_the_description_is_in_the_file(exported):
    assert metadata(exported.path) == {
        "format": 1,
        "num_classes": 3,
        "class_names": list(NAMES),
        "palette": [list(colour) for colour in PALETTE],
        "mean": list(MEAN),
        "std": list(STD),
        "bands": None,
        "normalises": True,
        "output": "logits",
        "size": "input",
        "classifier": "context",
        "scale": [2048, 512],
        "window": None,
        "stride": None,
        "precision": "fp32",
        "fixed_size": None,
    }


@torch.no_grad()
@pytest.mark.parametrize("output", ["probabilities", pytest.param("classes", marks=pytest.mark.slow)])
def test_torch_export_with_other_outputs(model, tmp_path, output):
    plain = output == "probabilities"
    written = export(model, tmp_path / "a.pt2", format="torch-export", output=output, normalise=not plain, plain=plain)
    extra = {"cacseg": ""}
    program = torch.export.load(written.path, extra_files=extra)
    described = json.loads(extra["cacseg"])
    assert (described["class_names"], described["output"]) == (list(NAMES), output)
    assert (described["classifier"], described["normalises"]) == (("plain", False) if plain else ("context", True))
    assert not any("auxiliary" in name or "oracle" in name for name in program.state_dict)
    images = draw(2, 3, 70, 41)
    normal = normalised(images)
    truth = model.plain(normal).softmax(1) if plain else model(normal).argmax(1).to(torch.uint8)
    found = program.module()(normal if plain else images)
    if plain:
        torch.testing.assert_close(found, truth, atol=1e-5, rtol=1e-5)
    else:
        assert found.dtype == torch.uint8
        assert (found == truth).float().mean() > 0.999


@pytest.mark.slow
@torch.no_grad()
def test_float16_is_half_the_file_and_near_the_model(model, exported, tmp_path):
    written = export(model, tmp_path / "half.onnx", precision="fp16", size="features")
    assert written.path.stat().st_size < 0.6 * exported.path.stat().st_size
    assert metadata(written.path)["precision"] == "fp16"
    images = draw(1, 3, 80, 64)
    found, truth = run_onnx(written.path, images), model.all_logits(normalised(images))["context"]
    assert (found.dtype, found.shape) == (torch.float32, truth.shape)
    assert (found - truth).abs().max() < 0.02 * (truth.max() - truth.min())
    content = onnx.load(written.path)
    kinds = {one.name: one.type.tensor_type.elem_type for one in content.graph.value_info}
    softmaxes = [node for node in content.graph.node if node.op_type in ("Softmax", "LogSoftmax", "Einsum", "Resize")]
    assert {kinds[node.output[0]] for node in softmaxes if node.op_type != "Resize"} == {onnx.TensorProto.FLOAT}


@pytest.mark.slow
@torch.no_grad()
def test_int8_is_calibrated_with_images_and_keeps_the_classifier(model, exported, tmp_path):
    images = [draw(60, 72, 3, seed=seed).numpy() for seed in range(3)]
    (tmp_path / "photos").mkdir()
    for seed, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / "photos" / f"{seed}.png")
    labels = [(seed + np.add.outer(np.arange(60), np.arange(72))) // 8 % 3 for seed in range(3)]
    how = {"precision": "int8", "calibration": tmp_path / "photos", "score": list(zip(images, labels, strict=True))}
    written = export(model, tmp_path / "int8.onnx", output="classes", accept=True, **how)
    assert 0.0 < written.scores.of_file == pytest.approx(written.scores.of_model, abs=0.2)
    assert metadata(written.path)["precision"] == "int8"
    assert written.path.stat().st_size < 0.4 * exported.path.stat().st_size
    assert len(written.checks) == len(images)
    assert np.mean([check.agreement for check in written.checks]) > 0.8
    content = onnx.load(written.path)
    assert {node.domain for node in content.graph.node} == {""}
    scopes = {node.name: str(node.metadata_props) for node in content.graph.node}
    stored = {one.name for one in content.graph.initializer if one.data_type == onnx.TensorProto.INT8}
    weights = {node.output[0] for node in content.graph.node if stored & set(node.input[:1])}
    reading = [node for node in content.graph.node if weights & set(node.input)]
    convolutions = {node.name for node in content.graph.node if node.op_type == "Conv"}
    kept = {name for name in convolutions if "module.model.classifier" in scopes[name]}
    assert len(kept) == 1  # the plain logits
    assert {node.name for node in reading} == convolutions - kept


COMPILES = pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor compiles C++")
FORMATS = ["onnx", "torch-export", "aotinductor"]


def write_and_open(model, folder, file_format, **arguments):
    """What was written, and the function that the file computes."""
    if file_format == "aotinductor" and shutil.which("g++") is None:
        pytest.skip("AOTInductor compiles C++")
    path = folder / f"model{SUFFIXES[file_format]}"
    written = export(model, path, format=file_format, **arguments)
    if file_format == "onnx":
        return written, partial(run_onnx, path)
    if file_format == "torch-export":
        return written, torch.export.load(path).module()
    return written, torch._inductor.aoti_load_package(str(path))


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("file_format", FORMATS[1:])
@pytest.mark.parametrize("head", ["fcn", "deeplabv3plus", "ocrnet", "upernet"])
def test_every_head_in_the_formats_of_torch(head, file_format, tmp_path):
    model = small(head)
    written, run = write_and_open(model, tmp_path, file_format)
    assert [(check.shape[0], *check.shape[2:]) for check in written.checks] == list(SHAPES)
    for shape in ((2, 3, 50, 77), (1, 3, 96, 64)):
        images = draw(*shape)
        torch.testing.assert_close(run(images), model(normalised(images)), atol=1e-3, rtol=1e-4)


BACKBONES = {
    "mobilenet": lambda: small("deeplabv3plus", backbone="mobilenetv2_050", output_stride=8),
    "hrnet": lambda: small("ocrnet", backbone="hrnet_w18_small"),
    "swin": lambda: small_swin(
        ContextAwareClassifier(8, 3, preset="released"), criterion=ContextLoss("released"), mean=MEAN, std=STD
    ).eval(),
}


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "file_format"),
    [*product(BACKBONES, FORMATS[:2]), ("mobilenet", "aotinductor")],  # which needs over six minutes for Swin's windows
)
def test_every_family_of_backbones(name, file_format, tmp_path):
    model = BACKBONES[name]()
    written, run = write_and_open(model, tmp_path, file_format)
    assert written.described.classifier == "context"
    for shape in ((1, 3, 61, 83), (2, 3, 112, 48)):
        images = draw(*shape)
        torch.testing.assert_close(run(images), model(normalised(images)), atol=1e-3, rtol=1e-4)


@pytest.mark.slow
@torch.no_grad()
@COMPILES
def test_aotinductor(model, tmp_path):
    model = small("fcn")
    model.class_names = NAMES
    written = export(model, tmp_path / "model.pt2", format="aotinductor")
    compiled = torch._inductor.aoti_load_package(str(written.path))
    assert json.loads(compiled.get_metadata()["cacseg"])["class_names"] == list(NAMES)
    images = draw(2, 3, 50, 77)
    torch.testing.assert_close(compiled(images), model(normalised(images)), atol=1e-3, rtol=1e-4)


@pytest.mark.gpu
@torch.no_grad()
@COMPILES
def test_aotinductor_on_a_gpu(tmp_path):
    model = small("fcn").cuda()
    traces_most = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= TRACES_MOST
    shape, size = ((2, 3, 50, 77), None) if traces_most else ((1, 3, 50, 77), (50, 77))
    written = export(model, tmp_path / "model.pt2", format="aotinductor", fixed_size=size)
    assert next(model.parameters()).is_cuda
    compiled = torch._inductor.aoti_load_package(str(written.path))
    images = draw(*shape).cuda()
    with without_tf32():
        truth = model(
            (images / 255.0 - torch.tensor(MEAN).view(1, 3, 1, 1).cuda()) / torch.tensor(STD).view(1, 3, 1, 1).cuda()
        )
        torch.testing.assert_close(compiled(images), truth, atol=1e-2, rtol=1e-2)


@pytest.mark.slow
@torch.no_grad()
def test_a_fixed_size(tmp_path):
    model = small("fcn")
    written, run = write_and_open(model, tmp_path, "onnx", fixed_size=(40, 56))
    assert [check.shape for check in written.checks] == [(1, 3, 40, 56)] * 2
    (given,), (found,) = (getattr(onnx.load(written.path).graph, name) for name in ("input", "output"))
    sizes = [[one.dim_value for one in value.type.tensor_type.shape.dim] for value in (given, found)]
    assert sizes == [[1, 3, 40, 56], [1, 3, 40, 56]]
    images = draw(1, 3, 40, 56, seed=5)
    torch.testing.assert_close(run(images), model(normalised(images)), atol=1e-3, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformers UperNet with Swin", "transformers MobileViT", "smp DPT"])
def test_a_fixed_size_is_for_models_that_cannot_be_traced_with_any(name, tmp_path):
    model = cacseg.convert(build(name)).eval()
    with pytest.raises(ValueError, match="fixed_size"):
        export(model, tmp_path / "model.onnx", **OTHER)
    assert export(model, tmp_path / "model.onnx", fixed_size=(64, 64), **OTHER).checks


COMPILED = ["smp Unet", "torchvision deeplabv3", "transformers Segformer"]  # which takes minutes: one of each library
CONVERTED = ["transformers UperNet with ConvNeXt", "transformers MobileNetV2"]
CONVERTED += ["torchvision deeplabv3_mobilenet_v3_large"]


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "file_format"),
    [*product(COMPILED, FORMATS), *product(CONVERTED, ["onnx", "torch-export"])],
)
def test_converted_models_of_other_libraries(name, file_format, tmp_path):
    model = cacseg.convert(build(name)).eval()
    written, run = write_and_open(model, tmp_path, file_format, class_names=list("abcde"), **OTHER)
    assert (written.described.num_classes, written.described.classifier) == (5, "context")
    for shape in ((1, 3, 96, 64), (2, 3, 64, 160)):  # what smp takes without padding
        images = draw(*shape)
        output = model(normalised(images))
        logits = output if isinstance(output, torch.Tensor) else output["logits" if "logits" in output else "out"]
        truth = F.interpolate(logits, shape[2:], mode="bilinear", align_corners=False)
        torch.testing.assert_close(run(images), truth, atol=1e-3, rtol=1e-4)


@pytest.mark.slow
@torch.no_grad()
def test_binary_models_and_the_plain_classifier_of_a_converted_one(tmp_path):
    smp = importlib.import_module("segmentation_models_pytorch")
    torch.manual_seed(0)
    model = settle(cacseg.convert(smp.FPN("resnet18", encoder_weights=None, classes=1))).eval()
    written = export(model, tmp_path / "a.pt2", format="torch-export", output="classes", plain=True, **OTHER)
    assert (written.described.num_classes, written.described.classifier) == (1, "plain")
    images = draw(2, 3, 64, 96)
    truth = model.plain(normalised(images))[:, 0] > 0.0
    found = torch.export.load(written.path).module()(images)
    assert found.dtype == torch.uint8
    assert (found.bool() == truth).float().mean() > 0.999


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_eleven_models(name, tmp_path):
    torch.manual_seed(0)
    model = settle(cacseg.create_model(name, 19, preset="released"))
    written = export(model, tmp_path / "model.onnx")
    differences = ", ".join(f"{check.difference:.1e} of {check.allowed:.1e}" for check in written.checks)
    size = written.path.stat().st_size / 2**20
    print(f"\nmodel {name}: {differences}, {size:.1f} MiB, {written.seconds:.0f} s")
    assert {node.domain for node in onnx.load(written.path).graph.node} == {""}


class Noisy(nn.Module):
    """Dropout that nobody switched off, a mistake that models have."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, images):
        return self.conv(F.dropout(images, 0.5))


def test_a_file_that_differs_is_not_left(tmp_path):
    with pytest.raises(ValueError, match="differs from the model"):
        export(Noisy(), tmp_path / "model.pt2", format="torch-export", **OTHER)
    assert not list(tmp_path.iterdir())


def test_an_earlier_file_stays_where_the_new_one_fails(tmp_path):
    (tmp_path / "model.pt2").write_text("earlier")
    with pytest.raises(ValueError, match="differs from the model"):
        export(Noisy(), tmp_path / "model.pt2", format="torch-export", overwrite=True, **OTHER)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["earlier"]


class Unsteady(nn.Module):
    """Batch statistics that raise what rounding leaves: logits beside those in float64 differ by a thousandth."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.Conv2d(64, 4, 1))
        self.layers[0].bias.data += 1e4
        self.layers[1].running_mean.fill_(1e4)

    def forward(self, images):
        return self.layers(images)


@torch.no_grad()
def test_the_rounding_of_a_model_itself_counts():
    reference = InferenceModule(inference_copy(Unsteady()), PLAIN)
    images = draw(1, 3, 40, 60)
    logits = reference.logits(images)
    exact = copy.deepcopy(reference).double()
    exact.dtype = torch.float64
    rounding = float((exact.logits(images) - logits).abs().max())
    least = 1e-4 * float(logits.max() - logits.min())
    assert own_rounding(reference, images, logits) == rounding > least
    for difference, passes in ((least / 2, True), (2.9 * rounding, True), (3.1 * rounding, False)):
        check = compare(lambda _, off=difference: logits + off, reference, images)
        assert check.passed == passes
    noisy = InferenceModule(Noisy(), PLAIN)
    assert own_rounding(noisy, images, noisy.logits(images)) == 0.0


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="the settings of torch 2.9")
def test_the_settings_of_float32_are_left_alone_on_a_cpu():
    """Reading them by their older names is an error where the newer ones were set."""
    reference = InferenceModule(inference_copy(Small(3)), PLAIN)
    torch.backends.fp32_precision = "ieee"
    try:
        assert all(check.passed for check in verify(reference, reference, CPU))
        assert torch.backends.fp32_precision == "ieee"
    finally:
        torch.backends.fp32_precision = "none"


def test_a_file_is_verified_as_it_is_read(tmp_path):
    path = write_small(tmp_path / "a.onnx", Small(3))
    assert open_program(path, "onnx", CPU)(draw(1, 3, 40, 60)).shape == (1, 3, 20, 30)
    with pytest.raises(ValueError, match="std must be 3 numbers above 0"):
        open_program(edited(path, tmp_path / "b.onnx", std=[0.2, 0.2, -0.2]), "onnx", CPU)


def test_sizes_may_be_integers_of_numpy():
    assert json.loads(PLAIN._replace(scale=(np.int64(512), 256)).as_json())["scale"] == [512, 256]


def test_images_to_calibrate_with(tmp_path):
    photos = [draw(6, 7 + k, 3, seed=k).numpy() for k in range(3)]
    for k, photo in enumerate(photos):
        Image.fromarray(photo).save(tmp_path / f"{k}.png")
    paths = sorted(tmp_path.iterdir())
    mixed = [paths[0], Image.fromarray(photos[1]), photos[2] / np.float32(255.0)]
    for images in (tmp_path, str(tmp_path / "*.png"), paths, iter(photos), mixed):
        found = read_images(images, None)
        assert all(np.array_equal(one, photo) for one, photo in zip(found, photos, strict=True))
    measured = np.ones((4, 5, 2), np.float64)
    assert read_images([measured], 2)[0].dtype == np.float32
    with pytest.raises(TypeError, match="path"):
        read_images([3], None)
    for k in range(3, 40):
        shutil.copy(paths[0], tmp_path / f"{k}.png")
    assert len(read_images(tmp_path, None)) == CALIBRATION


@torch.no_grad()
def test_the_miou_of_labelled_images():
    reference = InferenceModule(inference_copy(Unsteady()), PLAIN)
    images = [draw(40, 60, 3, seed=k).numpy() for k in range(2)]
    own = [reference(torch.from_numpy(one).permute(2, 0, 1)[None]).argmax(1)[0].byte().numpy() for one in images]
    pairs = list(zip(images, own, strict=True))
    assert mean_iou(reference, PLAIN, as_data(pairs, PLAIN)) == 1.0
    half = [(image, np.where(np.arange(60) < 30, labels, (labels + 1) % 4)) for image, labels in pairs]
    assert mean_iou(reference, PLAIN, as_data(half, PLAIN)) == pytest.approx(1 / 3, abs=0.1)


def test_what_counts_as_rounding():
    shape = (1, 3, 8, 8)
    fine = Check(shape, 1e-4, 1e-3, 1.0)
    assert require([fine, Check(shape, 9.0, None, 0.5)])
    for wrong in (
        Check(shape, 2e-3, 1e-3, 1.0),
        Check(shape, float("inf"), None, 0.0),
        Check(shape, float("nan"), 1.0, 0),
    ):
        with pytest.raises(ValueError, match="differs from the model"):
            require([fine, wrong])


def test_what_int8_may_lose():
    near, far = (Check((1, 3, 8, 8), 1.0, None, agreement) for agreement in (0.81, 0.7))
    require_use([near], None)
    require_use([far], Scores(0.451, 0.5))  # labels tell more than agreement
    with pytest.raises(ValueError, match=r"80 %.* 75\.5 %.*--accept"):
        require_use([near, far], None)
    with pytest.raises(ValueError, match=r"5 points.* 50\.0 to 44\.9.*--accept"):
        require_use([near], Scores(0.449, 0.5))


@pytest.mark.slow
def test_int8_that_lost_too_much_is_kept_on_demand_alone(model, tmp_path):
    images = [draw(60, 72, 3).numpy()]
    options = {"precision": "int8", "calibration": images, "score": lambda run, _: float(hasattr(run, "logits"))}
    with pytest.raises(ValueError, match=r"100\.0 to 0\.0"):
        export(model, tmp_path / "int8.onnx", **options)
    assert not list(tmp_path.iterdir())
    written = export(model, tmp_path / "int8.onnx", accept=True, **options)
    assert (written.scores, written.path.exists()) == ((0.0, 1.0), True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"format": "tflite"}, "'onnx', 'torch-export', 'aotinductor'"),
        ({"format": "torch-export"}, "ends in .pt2; got model.onnx"),
        ({"output": "masks"}, "'logits', 'probabilities', 'classes'"),
        ({"size": "half"}, "'input', 'features'"),
        ({"precision": "bf16"}, "'fp32', 'fp16', 'int8'"),
        ({"precision": "int8"}, "images to calibrate"),
        ({"precision": "int8", "calibration": []}, "images to calibrate"),
        ({"precision": "int8", "calibration": "nowhere"}, "no file or folder nowhere"),
        ({"scale": (512.5, 256)}, r"scale must be .*two whole numbers.*got \[512\.5, 256\]"),
        ({"scale": (512, 0)}, "two whole numbers from 1 on"),
        ({"scale": "own"}, "two whole numbers"),
        ({"mean": (0.5,)}, "3 channels; got 1"),
        ({"std": (0.2, 0.0, 0.2)}, "std finite and positive"),
        ({"mean": (123.7, 116.3, 103.5)}, "by 255"),
        ({"fixed_size": (64, 0)}, "fixed_size must be .*two whole numbers"),
        ({"fixed_size": (64, 64), "scale": (64, 64)}, "neither scale nor window"),
        ({"score": PythonData([], "val", ["a", "b"])}, "3 classes of the model; python has 2"),
        ({"class_names": ["one"]}, "must be 3 strings"),
        ({"window": (64, 64)}, "go together"),
        ({"window": (32, 64), "stride": (32, 32)}, "at least 33"),
        ({"window": (64, 64), "stride": (32, 32), "output": "classes"}, "no mean"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_done(model, tmp_path, arguments, words):
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        export(model, tmp_path / "model.onnx", **arguments)
    assert not list(tmp_path.iterdir())


def test_other_refusals(model, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="mean and std"):
        export(Noisy(), tmp_path / "model.onnx")
    (tmp_path / "there.onnx").touch()
    with pytest.raises(FileExistsError, match="exists already"):
        export(model, tmp_path / "there.onnx")
    monkeypatch.setitem(sys.modules, "onnxscript", None)  # as where it is not installed
    with pytest.raises(ModuleNotFoundError, match="pip install onnxscript"):
        check_packages("onnx")
    check_packages("torch-export")
    for old in ("2.7.1+cu126", "1.13.1"):
        monkeypatch.setattr(torch, "__version__", old)
        with pytest.raises(ModuleNotFoundError, match=rf"needs torch 2\.8; this is {re.escape(old)}"):
            check_packages("torch-export")


def test_it_is_found_by_its_name():
    assert cacseg.export is export
