"""Where features become class scores: the convolution by its name, or found by running the model once."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from cacseg.adapters.patches import CONVOLUTIONS, geometry_of
from cacseg.classifier import ContextAwareClassifier

# Modules that call the model they hold in a way that hides its methods or copies it. By name: some cannot be imported
# everywhere.
WRAPPERS = (
    "DataParallel",
    "DistributedDataParallel",
    "FullyShardedDataParallel",
    "FSDPModule",
    "OptimizedModule",
    "ScriptModule",
    "GraphModule",
)
MOST_BANDS = 16  # a first convolution with more channels reads features, not images


def wrapper_of(module: nn.Module) -> str | None:
    """The wrapper class that a module is of, or inherits from."""
    return next((kind.__name__ for kind in type(module).__mro__ if kind.__name__ in WRAPPERS), None)


def check_unwrapped(model: nn.Module) -> None:
    """Refuses a model that is wrapped, compiled, traced or converted already."""
    if wrapper := wrapper_of(model):
        raise TypeError(
            f"convert needs the model itself, not a wrapper around it; got {wrapper}. Convert first and wrap "
            "(distribute, compile, trace) the converted model."
        )
    if model._compiled_call_impl is not None or "forward" in vars(model):
        raise TypeError(
            "convert needs a model with the forward of its class; this one was compiled in place or its forward was "
            "replaced on the instance. Convert first."
        )
    for name, module in model.named_modules():
        if isinstance(module, ContextAwareClassifier):
            raise ValueError(
                f"the model must have a plain classifier; it has a context-aware one already, at {name!r}. A converted "
                "model becomes the original again with cacseg.restore(model)."
            )


def get_by_name(model: nn.Module, name: str) -> nn.Module:
    """The submodule of that name, not inside a wrapper; an error for a wrong name suggests the nearest."""
    modules = dict(model.named_modules(remove_duplicate=False))  # a layer with two names answers to both
    if not name or name not in modules:
        convolutions = [key for key, module in modules.items() if isinstance(module, CONVOLUTIONS)]
        near = difflib.get_close_matches(name, convolutions, n=3, cutoff=0.5) or convolutions[-3:]
        listed = ", ".join(repr(key) for key in near) or "none"
        raise ValueError(
            f"a seam or auxiliary must be the name of a convolution of {type(model).__name__}; got {name!r}. "
            f"Some it has: {listed}."
        )
    for prefix in accumulate(name.split(".")[:-1], "{}.{}".format):
        if wrapper := wrapper_of(modules[prefix]):
            raise TypeError(
                f"the seam {name!r} must not be inside a wrapper; {prefix!r} is a {wrapper}. Unwrap it, convert, and "
                "wrap it again."
            )
    return modules[name]


def check_no_hooks(name: str, module: nn.Module) -> None:
    """Refuses a module with hooks or a forward of its own, which would be lost."""
    if "forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
        raise TypeError(
            f"a replaced layer must be a bare layer; {name!r} has hooks or a forward of its own, which would be lost. "
            "Remove them first, and put them on the layer that comes in its place."
        )


def check_replaceable(name: str, module: nn.Module) -> None:
    """Refuses to replace anything but an ordinary convolution or linear layer."""
    kinds: tuple[type[nn.Module], ...] = (*CONVOLUTIONS, nn.Linear)
    kind = next((kind for kind in kinds if isinstance(module, kind)), None)
    if kind is None:
        raise TypeError(
            f"the seam must be an nn.Conv1d, Conv2d, Conv3d or Linear; {name!r} is a {type(module).__name__}. Name the "
            "layer inside it whose outputs are the class scores."
        )
    if type(module).forward is not kind.forward or "weight" not in dict(module.named_parameters(recurse=False)):
        raise TypeError(
            f"the seam must compute what {kind.__name__} computes from its own weight; {name!r} is a "
            f"{type(module).__name__} with a computation of its own. Remove parametrisations and adapters first."
        )
    check_no_hooks(name, module)
    assert isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear)
    if isinstance(module.weight, nn.UninitializedParameter):
        raise ValueError(f"the seam must have its weights; {name!r} is lazy. Run the model once before converting it.")
    if isinstance(module, nn.Linear):
        return
    # Patches are those of `F.unfold`: 2-D, zeros around the map, the same on both sides, no groups.
    size, dilation, padding, mode = module.kernel_size, module.dilation, module.padding, module.padding_mode
    arrived = f"kernel_size={size}, padding={padding!r}, padding_mode={mode!r}"
    if module.groups != 1:
        raise ValueError(f"the seam must not have groups; {name!r} has groups={module.groups}.")
    if not geometry_of(module).pointwise and (mode != "zeros" or not isinstance(module, nn.Conv2d)):
        raise ValueError(
            f"a seam that is no 1x1 convolution must be an nn.Conv2d that pads with zeros; {name!r} has {arrived}. "
            "Pad in a module of its own before the convolution."
        )
    if padding == "same" and any(d * (k - 1) % 2 for k, d in zip(size, dilation, strict=True)):
        raise ValueError(f"a seam must pad both sides alike; {name!r} has {arrived}. Use an odd kernel.")


def find_by_running(
    model: nn.Module, example: Tensor | None, known_seam: str = "", auxiliaries: Sequence[str] = ()
) -> str:
    """The name of the one 1x1 convolution that the first output map comes from with no other weights in between.

    Every layer with parameters has its output cut from the graph on the way; those that the output still depends on
    are the last ones. Parameters beside layers, in a module that holds both, are looked at one by one.
    A `known_seam`, of a known architecture inside the model, may have a larger kernel.
    """
    layer_inputs: dict[str, Any] = {}
    layer_outputs: dict[str, Tensor] = {}

    def cut_output(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
            if not isinstance(output, Tensor) or not output.is_floating_point():
                return output
            layer_inputs[name], layer_outputs[name] = inputs, output.detach().requires_grad_()
            return layer_outputs[name].clone()  # which, unlike a leaf, may be changed in place by what follows

        return hook

    modules = dict(model.named_modules())
    modes = {module: module.training for module in modules.values()}
    has_layers = {name: any([*child.parameters()] for child in module.children()) for name, module in modules.items()}
    holders = [name for name, module in modules.items() if [*module.parameters(recurse=False)]]
    hooks = [modules[name].register_forward_hook(cut_output(name)) for name in holders if name and not has_layers[name]]
    loose_parameters = {
        f"{name}.{key}".lstrip("."): one
        for name in holders
        if has_layers[name] or not name
        for key, one in modules[name].named_parameters(recurse=False)
        if one.is_floating_point()
    }
    frozen = [one for one in loose_parameters.values() if not one.requires_grad]
    try:
        for one in frozen:
            one.requires_grad_()
        model.eval()  # batch statistics stay as they are
        with torch.inference_mode(False), torch.enable_grad():
            answer = run_once(model, example)
            maps = {key: one for key, one in named_tensors_in(answer) if one.ndim == 4}
            first = next(iter(maps), None)
            if first is None or not maps[first].requires_grad:
                shapes = ", ".join(str(tuple(one.shape)) for one in tensors_in(answer)) or "none"
                raise ValueError(
                    f"the seam is found from a first output [b, n, H, W] that depends on a convolution; "
                    f"{type(model).__name__} returned {type(answer).__name__} with tensors of shape {shapes}. Name it: "
                    "convert(model, seam=...)."
                )
            leaves = {**layer_outputs, **loose_parameters}
            sources = {key: reached_leaves(one, leaves) for key, one in maps.items() if one.requires_grad}
            found = sources[first]
            inputs = layer_inputs.get(found[0]) if found else None
            read = [name for one in tensors_in(inputs) for name in reached_leaves(one, leaves)]
    finally:
        for hook in hooks:
            hook.remove()
        for one in frozen:
            one.requires_grad_(False)
        for module, mode in modes.items():
            module.training = mode
    if found == [known_seam]:
        return known_seam
    check_found(modules, found, maps[first].shape[1])
    heads = {first: (found[0], maps[first].shape[1])}
    for key, names in sources.items():
        beside = len(names) == 1 and names[0] not in (*found, *read, *auxiliaries)
        if beside and isinstance(modules.get(names[0]), nn.Conv2d):
            heads[key] = names[0], maps[key].shape[1]
    check_one_task(model, heads)
    return found[0]


def reached_leaves(output: Tensor, leaves: dict[str, Tensor]) -> list[str]:
    """The names of the modules that a tensor depends on."""
    if not output.requires_grad:
        return []
    gradients = torch.autograd.grad(output.sum(), [*leaves.values()], allow_unused=True, retain_graph=True)
    return [name for name, gradient in zip(leaves, gradients, strict=True) if gradient is not None]


def check_found(modules: dict[str, nn.Module], last: list[str], channels: int) -> None:
    """Exactly one module comes last, it is a 1x1 convolution, and its channels are the output's."""
    kinds = {name: type(modules[name]).__name__ if name in modules else "Parameter" for name in last}
    found = ", ".join(f"{name!r} ({kind})" for name, kind in kinds.items()) or "none"
    if len(last) != 1:
        raise ValueError(
            f"one convolution must make the class scores; the output comes from {len(last)} modules: {found}. If one "
            "makes the scores alone, name it: convert(model, seam=...); a sum has no single classifier to replace."
        )
    module = modules.get(last[0])
    if not isinstance(module, nn.Conv2d):
        raise ValueError(
            f"the last module with weights must be a 1x1 convolution; it is {found}. What comes after the classifier "
            "has no part in its losses; name the convolution all the same with convert(model, seam=...)."
        )
    if module.out_channels != channels:
        raise ValueError(
            f"the last convolution must have as many channels as the output, one for each class; {last[0]!r} has "
            f"{module.out_channels} and the output {channels}: something after it, such as an nn.PixelShuffle, changes "
            "their number. Put a 1x1 convolution after that: convert finds it."
        )
    if set(module.kernel_size) != {1}:
        raise ValueError(
            f"the last convolution must be 1x1; {last[0]!r} has kernel_size={module.kernel_size}. If it makes the "
            f"class scores, name it: convert(model, seam={last[0]!r})."
        )


def check_one_task(model: nn.Module, heads: dict[str, tuple[str, int]]) -> None:
    """The first output must be the class scores, among others that come from convolutions beside that of the first.

    `heads` has the convolution and the channels of each output. One channel may be depth as well as a mask. Outputs
    with the channels of the first are those of auxiliary classifiers.
    """
    (_, channels), *others = heads.values()
    if not others or (channels > 1 and all(count == channels for _, count in others)):
        return
    listed = ", ".join(f"{key!r} (channels: {count}, from {name!r})" for key, (name, count) in heads.items())
    by_channels = sorted(heads, key=lambda key: heads[key][1], reverse=True)
    choices = ", ".join(f"seam={heads[key][0]!r} for {key!r}" for key in by_channels)
    raise ValueError(
        f"it must be known which output holds the class scores; {type(model).__name__} returns {listed}. Name its "
        f"convolution: {choices}. Further classifiers of the same classes: auxiliaries=[...]."
    )


def run_once(model: nn.Module, example: Tensor | None) -> Any:
    """The output for the example, or for a small random image."""
    if example is not None:
        return model(example)
    weight = next((one for one in model.parameters() if one.is_floating_point()), torch.zeros(()))
    first = next((one for one in model.modules() if isinstance(one, nn.Conv2d)), None)
    channels = first.in_channels if first is not None and first.in_channels <= MOST_BANDS else 3
    noise = torch.randn(1, channels, 64, 64, generator=torch.Generator().manual_seed(0))
    try:
        return model(noise.to(device=weight.device, dtype=weight.dtype))
    except Exception as error:
        raise ValueError(
            f"the seam is found by running the model once, and {type(model).__name__} does not run on images "
            f"{tuple(noise.shape)}: {type(error).__name__}: {error}. Pass images that it takes, convert(model, "
            "example=images), or the name of the convolution, convert(model, seam=...)."
        ) from error


def tensors_in(answer: Any) -> Iterator[Tensor]:
    """The tensors of nested tuples, lists, dicts and dataclasses, in order."""
    return (tensor for _, tensor in named_tensors_in(answer))


def named_tensors_in(answer: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """The same with their names, such as "out" or "logits.0"."""
    entries: list[tuple[Any, Any]] = []
    if isinstance(answer, Tensor):
        yield name, answer
    elif isinstance(answer, dict):
        entries = list(answer.items())
    elif isinstance(answer, (list, tuple)):  # a tuple: torch 2.8 does not trace `list | tuple`
        entries = list(enumerate(answer))
    elif dataclasses.is_dataclass(answer):
        entries = [(field.name, getattr(answer, field.name)) for field in dataclasses.fields(answer)]
    for key, value in entries:
        yield from named_tensors_in(value, f"{name}.{key}" if name else str(key))
