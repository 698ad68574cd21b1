"""A network of a few numbers as a file of the form that `cacseg export` writes, without the seconds that this takes."""

import json

import pytest
import torch
from torch import nn

from cacseg.engine.export.module import Description
from cacseg.runtime.onnx_file import METADATA

pytest.importorskip("onnx", reason="needs the extra export")
import onnx
from onnx import TensorProto, helper, numpy_helper

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


class Small(nn.Module):
    """Scores at half the size, which know of the whole image."""

    def __init__(self, classes, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.conv = nn.Conv2d(3, classes, 3, padding=1, stride=2)
        nn.init.normal_(self.conv.weight, std=0.4)

    def forward(self, images):
        scores = self.conv(images)
        return scores - scores.mean((2, 3), keepdim=True)


def write_small(path, network, output="logits", **facts):
    """The file of a `Small` with pixels in."""
    mean, std = (torch.tensor(one).view(1, 3, 1, 1) for one in (MEAN, STD))
    n = network.conv.out_channels
    values = {
        "factor": 1.0 / (255.0 * std),
        "shift": mean / std,
        "weight": network.conv.weight.detach(),
        "bias": network.conv.bias.detach(),
        "zero": torch.zeros(()),
        "axis": torch.tensor([1]),
    }
    nodes = [
        helper.make_node("Cast", ["images"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["floats", "factor"], ["scaled"]),
        helper.make_node("Sub", ["scaled", "shift"], ["normal"]),
        helper.make_node("Conv", ["normal", "weight", "bias"], ["scores"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["scores"], ["mean"]),
        helper.make_node("Sub", ["scores", "mean"], ["logits"]),
    ]
    if output == "probabilities":
        axis = {} if n == 1 else {"axis": 1}
        nodes.append(helper.make_node("Sigmoid" if n == 1 else "Softmax", ["logits"], [output], **axis))
    elif output == "classes" and n == 1:
        nodes += [
            helper.make_node("Greater", ["logits", "zero"], ["above"]),
            helper.make_node("Squeeze", ["above", "axis"], ["one"]),
            helper.make_node("Cast", ["one"], [output], to=TensorProto.UINT8),
        ]
    elif output == "classes":
        nodes += [
            helper.make_node("ArgMax", ["logits"], ["best"], axis=1, keepdims=0),
            helper.make_node("Cast", ["best"], [output], to=TensorProto.UINT8),
        ]
    fixed = facts.get("fixed_size")
    shape = ["b", 3, "h", "w"] if fixed is None else [1, 3, *fixed]
    images = helper.make_tensor_value_info("images", TensorProto.UINT8, shape)
    kind, shape = (TensorProto.FLOAT, ["b", n, "y", "x"])
    if output == "classes":
        kind, shape = TensorProto.UINT8, ["b", "y", "x"]
    found = helper.make_tensor_value_info(output, kind, shape)
    stored = [numpy_helper.from_array(value.numpy(), name) for name, value in values.items()]
    graph = helper.make_graph(nodes, "small", [images], [found], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    empty = {"class_names": None, "palette": None, "bands": None, "scale": None, "window": None, "stride": None}
    described = Description(
        **{**empty, **facts}, num_classes=n, mean=MEAN, std=STD, normalises=True, output=output, size="features",
        classifier="context", precision="fp32",
    )  # fmt: skip
    helper.set_model_props(model, {METADATA: described.as_json()})
    onnx.save(model, path)
    return path


def edited(path, target, **facts):
    """A copy of such a file that says something else of itself."""
    graph = onnx.load(path)
    described = json.loads(graph.metadata_props[0].value)
    onnx.helper.set_model_props(graph, {METADATA: json.dumps({**described, **facts})})
    onnx.save(graph, target)
    return target
