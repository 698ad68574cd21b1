"""Finds the dropout before and the upsampling after the classifier of a model, from its modules."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from cacseg.adapters.patches import CONVOLUTIONS, geometry_of
from cacseg.adapters.search import check_no_hooks
from cacseg.adapters.supported import Parts

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)  # by the dimensions of their maps
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CONVOLUTION_AFTER = "Put a 1x1 convolution with one output for each class after it: that one is then the seam."


def find_dropout(model: nn.Module, name: str, parts: Parts, conv: nn.Module) -> tuple[str, nn.Module | None]:
    """The name of the dropout right before the seam, and a dropout for the plain logits; "" and None without."""
    parent_name, _, last = name.rpartition(".")
    parent, before = model.get_submodule(parent_name), ""
    if name == parts.seam and parts.dropout:
        before = parts.dropout
    elif runs_in_order(parent):
        names = list(parent._modules)
        if names.index(last) > 0:
            before = f"{parent_name}.{names[names.index(last) - 1]}".lstrip(".")
    module = dict(model.named_modules(remove_duplicate=False)).get(before) if before else None
    places = sum(child is module for parent in model.modules() for child in parent._modules.values())
    if module is None or places > 1:
        return "", None  # one that stands elsewhere too goes on dropping there
    size = geometry_of(conv).kernel_size
    kinds = {nn.Dropout, DROPOUTS[len(size)]}  # a linear layer reads no map
    kind = next((kind for kind in kinds if type(module).forward is kind.forward), None)
    if kind is None or not isinstance(module, kind) or module.p == 0.0:
        return "", None
    if kind is nn.Dropout and not set(size) <= {1}:
        return "", None  # single values, dropped from every patch they are in: that is only possible before the patches
    check_no_hooks(before, module)
    return before, kind(module.p)


def aligns_corners(model: nn.Module, name: str, parts: Parts) -> bool:
    """Whether the model upsamples the scores of a convolution with align_corners=True."""
    if name in parts.aligned:
        return True
    after = (one for one in modules_after(model, name) if not isinstance(one, (nn.Identity, *DROPOUTS)))
    return bool(getattr(next(after, None), "align_corners", False))


def check_channels_after(model: nn.Module, name: str, channels: int) -> None:
    """No layer after the seam may change the number of channels: the model would not return its scores."""
    found = channels
    for module in modules_after(model, name):
        if isinstance(module, nn.PixelShuffle):
            found //= module.upscale_factor**2
        elif isinstance(module, nn.PixelUnshuffle):
            found *= module.downscale_factor**2
        elif isinstance(module, (*CONVOLUTIONS, *TRANSPOSED)):
            found = module.out_channels
        if found != channels:
            raise ValueError(
                f"the seam must make the scores that the model returns; {name!r} makes {channels} channels, and "
                f"{module} after it makes {found} of them. {CONVOLUTION_AFTER}"
            )


def modules_after(model: nn.Module, name: str) -> Iterator[nn.Module]:
    """The modules after a module in its `nn.Sequential`s."""
    while name:
        parent_name, _, last = name.rpartition(".")
        parent = model.get_submodule(parent_name)
        if not runs_in_order(parent):
            return
        names = list(parent._modules)
        yield from (parent.get_submodule(after) for after in names[names.index(last) + 1 :])
        name = parent_name  # what follows the Sequential?


def runs_in_order(parent: nn.Module) -> bool:
    """A Sequential without a forward of its own."""
    return isinstance(parent, nn.Sequential) and type(parent).forward is nn.Sequential.forward
