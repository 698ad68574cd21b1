"""What is exported: a module with images in and one tensor out, traced with any batch, height and width."""

from __future__ import annotations

import copy
import json
import operator
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple

import torch
from timm.layers.conv2d_same import Conv2dSame
from timm.layers.pool2d_same import AvgPool2dSame, MaxPool2dSame
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from cacseg.adapters.converted import ConvertedModel, is_converted
from cacseg.classifier import ContextAwareClassifier
from cacseg.engine.export.classifier import for_onnx
from cacseg.engine.foreign import find_logits, pad_to_multiple
from cacseg.functional._precision import widen
from cacseg.models.heads import OCRNet
from cacseg.models.layers import crop, missing_to_multiple, pool, resize
from cacseg.models.model import PlainClassifier, SegmentationModel
from cacseg.runtime.onnx_file import FORMAT

Output = Literal["logits", "probabilities", "classes"]
Size = Literal["input", "features"]
TRACED = (2, 64, 96)  # images, height, width; it leaves no trace in the result
LARGEST_STRIDE = 32  # of nearly all models
LEAST_SIDE = 33  # of images, so that no map of such a stride has a side of 1, which torch.export takes for a constant
TRACES_MOST = (2, 13)  # the version of torch that traces all models of this package
BYTE = 256
# Layers of timm with TensorFlow's padding, and those that do the same work on a padded map.
SAME_PADDED: dict[type[nn.Module], type[nn.Module]] = {Conv2dSame: nn.Conv2d, AvgPool2dSame: nn.AvgPool2d}
SAME_PADDED[MaxPool2dSame] = nn.MaxPool2d
MOBILENET_LAYER = "MobileNetV2ConvLayer"  # of transformers, with the same padding where its config has `tf_padding`


class Description(NamedTuple):
    """What a file computes, and what goes with it; `cacseg` in its metadata holds this as JSON."""

    num_classes: int
    class_names: Sequence[str] | None
    palette: Sequence[Sequence[int]] | None
    mean: Sequence[float]
    std: Sequence[float]
    bands: int | None  # that images have, in the units of their files; None: red, green, blue bytes
    normalises: bool  # images are as read, uint8 pixels or bands in float32; else float32, normalised by the caller
    output: Output
    size: Size
    classifier: Literal["context", "plain"]
    scale: tuple[int, int] | None  # longest and shortest side that images are fitted into
    window: tuple[int, int] | None  # height and width of sliding windows; None shows images whole
    stride: tuple[int, int] | None
    precision: str
    fixed_size: tuple[int, int] | None = None  # height and width of every image, one at a time; None takes any

    def as_json(self) -> str:
        return json.dumps({"format": FORMAT, **self._asdict()}, default=operator.index)  # numpy's integers


class InferenceModule(nn.Module):
    """`model` from pixels to what `described` says. Owns the model; `inference_copy` makes it one of its own."""

    factor: Tensor
    shift: Tensor

    def __init__(self, model: nn.Module, described: Description, multiple: int = 1) -> None:
        super().__init__()
        self.model, self.described, self.multiple = model, described, multiple
        mean, std = (torch.tensor(one).view(-1, 1, 1) for one in (described.mean, described.std))
        self.register_buffer("factor", 1.0 / (255.0 * std) if described.bands is None else 1.0 / std)
        self.register_buffer("shift", mean / std)
        self.dtype = torch.float32

    def forward(self, images: Tensor) -> Tensor:
        return finish(self.logits(images), self.described)

    def logits(self, images: Tensor) -> Tensor:
        """In float32, at the size that was asked for."""
        size = images.shape[2:]
        if self.described.normalises:
            images = images.float() * self.factor - self.shift
            if self.described.bands is not None:  # 0, the mean of the band, where there is no data
                images = torch.where(images.isfinite(), images, 0.0)
        images = images.to(self.dtype)
        if self.multiple > 1:
            images = pad_to_multiple(images, self.multiple)
        logits = self._logits(images)
        return crop(logits, size) if self.multiple > 1 and self.described.size == "input" else logits

    def _logits(self, images: Tensor) -> Tensor:
        model, at_input = self.model, self.described.size == "input"
        is_plain = self.described.classifier == "plain"
        if isinstance(model, SegmentationModel):
            classifier: Callable[[Tensor], Any] = model.classifier
            if is_plain and isinstance(model.classifier, ContextAwareClassifier):
                classifier = model.classifier.plain_logits
            logits: Tensor = classifier(widen(model.features(images))).float()
            return model.upsample_logits(logits, images.shape[2:]) if at_input else logits
        logits = find_logits(forward_of(model, plain=is_plain)(images)).float()
        return resize(logits, images.shape[2:]) if at_input else logits


def finish(logits: Tensor, described: Description) -> Tensor:
    """What is asked for, from logits; one channel is that of a sigmoid."""
    is_binary = described.num_classes == 1
    if described.output == "logits":
        return logits
    if described.output == "probabilities":
        return logits.sigmoid() if is_binary else logits.softmax(1)
    classes = logits[:, 0] > 0.0 if is_binary else logits.argmax(1)
    return classes.to(torch.uint8 if described.num_classes <= BYTE else torch.int32)


def forward_of(model: nn.Module, *, plain: bool) -> Callable[..., Any]:
    """What is called with images: the model, or the plain answer of a converted one."""
    return model.plain if plain and isinstance(model, ConvertedModel) else model


def inference_copy(model: nn.Module, *, plain: bool = False) -> nn.Module:
    """A copy in evaluation mode and float32, without what only training reads."""
    model = copy.deepcopy(model).eval().float().requires_grad_(False)
    if isinstance(model, SegmentationModel):
        model.criterion = None
        if not isinstance(model.head, OCRNet):
            model.auxiliary = None
        if isinstance(model.classifier, ContextAwareClassifier):
            model.classifier.drop_oracle()
    elif is_converted(model):
        assert isinstance(model, ConvertedModel)
        model.drop_oracle()
    if plain:
        for module in classifiers_of(model):
            if isinstance(module, ContextAwareClassifier):
                module.context_projector = None
    for module in model.modules():
        if type(module) in SAME_PADDED:
            module.__class__ = SAME_PADDED[type(module)]
            module.register_forward_pre_hook(_pad_same)
        elif type(module).__name__ == MOBILENET_LAYER:
            _pad_within_hook(module)
    return model


def _pad_within_hook(layer: Any) -> None:
    if layer.config.tf_padding:
        layer.config = copy.copy(layer.config)  # which the other layers share
        layer.config.tf_padding = False
        layer.convolution.register_forward_pre_hook(_pad_same)


def _pad_same(layer: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    """TensorFlow's padding in whole numbers that may vary.

    That of timm is in fractions, which torch.export can neither bound nor save; that of transformers in constants.
    """
    kernel, stride, dilation = (_pair(getattr(layer, name, 1)) for name in ("kernel_size", "stride", "dilation"))
    (maps,) = inputs
    padding: list[Any] = []
    for axis in (1, 0):  # as F.pad has it, the width first
        reach = (kernel[axis] - 1) * dilation[axis] + 1
        missing = missing_to_multiple(maps.shape[2 + axis], stride[axis]) + reach - stride[axis]
        if reach < stride[axis]:
            missing = torch.sym_max(missing, 0)
        padding += (missing // 2, missing - missing // 2)
    return F.pad(maps, padding, value=-torch.inf if isinstance(layer, nn.MaxPool2d) else 0.0)


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


def classifiers_of(model: nn.Module) -> list[nn.Module]:
    """The context-aware classifiers of a model, and the plain one of ours."""
    return [one for one in model.modules() if isinstance(one, ContextAwareClassifier | PlainClassifier)]


def narrow(module: InferenceModule) -> InferenceModule:
    """Convolutions and products in float16, in place; classifiers and normalisations keep their float32 values."""
    classifiers = classifiers_of(module.model)
    kept = {inner for one in classifiers for inner in one.modules()}
    for one in module.model.modules():
        if one not in kept and not isinstance(one, nn.modules.batchnorm._BatchNorm):
            for value in (*one.parameters(recurse=False), *one.buffers(recurse=False)):
                value.data = value.data.half() if value.is_floating_point() else value.data
    for one in classifiers:
        one.register_forward_pre_hook(_widen_inputs)
    module.dtype = torch.float16
    return module


def _widen_inputs(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tree_map(_widened, inputs)


def _widened(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype == torch.float16 else value


class Traceable(nn.Module):
    """The module, with what exporters cannot follow replaced while it runs."""

    def __init__(self, module: InferenceModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, images: Tensor) -> Tensor:
        with _Replacements():
            return self.module(images)


# Sums that float16 would round, beside those of the classifier, which is float32 as a whole.
SENSITIVE: tuple[Any, ...] = (F.softmax, torch.softmax, Tensor.softmax, F.scaled_dot_product_attention, torch.einsum)
SENSITIVE += (F.layer_norm, F.group_norm, torch.mean, Tensor.mean)
CONVOLUTIONS: tuple[Any, ...] = (torch.conv2d, F.conv2d, torch.conv_transpose2d, F.conv_transpose2d)


class _Replacements(TorchFunctionMode):
    """The same values from functions that hold at any size, and in float16 from sums in float32."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        first = next((one for one in args if isinstance(one, Tensor)), None)
        if first is None:
            return func(*args, **kwargs)
        if func is F.adaptive_avg_pool2d:
            return pool(first, *args[1:], **kwargs)
        if func is F.avg_pool2d and len(args) == 7 and args[1] == args[2] and args[3:5] == (0, True):
            return _pool_and_round_up(first, args[1])
        if func in CONVOLUTIONS and not first.is_contiguous():
            # Channels that lie last would ask how many images there are, and hold for more than one alone.
            args = (first.clone(memory_format=torch.contiguous_format), *args[1:])
        if first.dtype == torch.float16:
            if func is F.batch_norm:
                return _scale_and_shift(*args, **kwargs)
            if func in SENSITIVE:
                result = func(*tree_map(_widened, args), **tree_map(_widened, kwargs))
                return result.to(torch.float16)
        return func(*args, **kwargs)


def _pool_and_round_up(maps: Tensor, kernel: int | tuple[int, int]) -> Tensor:
    """F.avg_pool2d with ceil_mode=True, which compares sizes: a cell over the edge averages what it has."""
    sides = (kernel, kernel) if isinstance(kernel, int) else kernel
    below, right = (missing_to_multiple(maps.shape[2 + i], side) for i, side in enumerate(sides))
    inside = torch.ones_like(maps[:1, :1])
    sums, shares = (F.avg_pool2d(F.pad(one, (0, right, 0, below)), kernel) for one in (maps, inside))
    return sums / shares


def _scale_and_shift(
    maps: Tensor,
    mean: Tensor,
    variance: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """F.batch_norm of an evaluation, its statistics read in float32: a variance may be larger than float16 holds."""
    factor = (variance + eps).rsqrt() if weight is None else weight * (variance + eps).rsqrt()
    shift = -mean * factor if bias is None else bias - mean * factor
    return maps * factor.to(maps.dtype).view(-1, 1, 1) + shift.to(maps.dtype).view(-1, 1, 1)


def draw_images(module: InferenceModule, shape: Sequence[int], seed: int = 0) -> Tensor:
    """Noise of the type that the module takes."""
    generator = torch.Generator().manual_seed(seed)
    whole = (shape[0], len(module.described.mean), *shape[1:])
    if module.described.normalises and module.described.bands is None:
        return torch.randint(0, 256, whole, generator=generator, dtype=torch.uint8)
    noise = torch.randn(whole, generator=generator)
    if module.described.normalises:
        noise = noise * torch.tensor(module.described.std)[:, None, None]
        noise += torch.tensor(module.described.mean)[:, None, None]
    return noise


def trace(module: InferenceModule, device: torch.device, *, onnx: bool = False) -> ExportedProgram:
    """The program of the module, for any number of images of any size from `LEAST_SIDE` on; or for its fixed size.

    Of models whose strides leave out what is over (ConvNeXt of transformers), from 64 on.
    """
    fixed, asked = module.described.fixed_size, "any batch, height and width (a fixed_size asks for less)"
    b, *sides = TRACED
    traced = (b, *(side + module.multiple for side in sides)) if module.multiple > LARGEST_STRIDE else TRACED
    if fixed is not None:
        traced, asked = (1, *fixed), "its fixed size"
    images = draw_images(module, traced).to(device)
    most = 65535 if device.type == "cuda" else None  # CUDA's kernels say so while they are traced
    first: Exception | None = None
    for least in (LEAST_SIDE, 2 * LARGEST_STRIDE):
        sizes = {0: Dim("batch", min=1, max=most), 2: Dim("height", min=least), 3: Dim("width", min=least)}
        shapes = (sizes if fixed is None else {},)
        # As torch.onnx.export does: without it a batch of 1, or a map with one window, becomes a constant.
        oblivious = torch.fx.experimental._config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]
        try:
            with torch.no_grad(), oblivious, for_onnx(module) if onnx else nullcontext():
                return torch.export.export(Traceable(module).to(device), (images,), dynamic_shapes=shapes, strict=False)
        except Exception as error:
            first = first or error
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    hint = "" if version >= TRACES_MOST else f" torch 2.13 traces more models; this is {torch.__version__}."
    raise ValueError(
        f"{type(module.model).__name__} cannot be traced with {asked} by torch.export "
        f"({type(first).__name__}): {' '.join(str(first).splitlines()[:2])}{hint}"
    ) from first
