"""The kernels become machine code, for a device that need not be there. What they compute is test_kernels.py's.

The interpreter takes what the compiler may refuse: here each kernel is compiled with the arguments that a training step
gives it, and nothing is launched.
"""

import importlib
import re
from pathlib import Path

import pytest
import torch

import cacseg
from cacseg.ops import _choice
from cacseg.ops.labels import fitted_labels

triton = pytest.importorskip("triton")
compiler = importlib.import_module("triton.compiler")
backends = importlib.import_module("triton.backends.compiler")

pytestmark = pytest.mark.skipif(_choice.interpreted(), reason="the interpreter was asked for, which compiles nothing")
KERNELS = Path(cacseg.__file__).parent / "kernels"
MODULES = [path.stem for path in sorted(KERNELS.glob("*.py")) if path.stem != "__init__"]
TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.int64: "i64", torch.int32: "i32"}
OPTIONS = ("num_warps", "num_stages")


def launched(name):
    """The kernels that a module launches."""
    return set(re.findall(r"^ +(_\w+)\[[^\]]*\]\(", (KERNELS / f"{name}.py").read_text(), re.MULTILINE))


def signature(kernel, arguments, constants):
    """What Triton would compile for these arguments: types, constants, and which numbers 16 divides."""
    types, fixed, known = {}, {}, {}
    exempt = {one.name for one in kernel.params if one.do_not_specialize}
    for place, (name, value) in enumerate(zip(kernel.arg_names, arguments, strict=False)):
        looked_at = type(value) is int and name not in exempt
        if value is None or (looked_at and value == 1):
            types[name], fixed[name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            types[name] = f"*{TYPES[value.dtype]}"
        else:
            types[name] = {int: "i32", bool: "i1", float: "fp32"}[type(value)]
        if isinstance(value, torch.Tensor) or (looked_at and value % 16 == 0):
            known[(place,)] = [["tt.divisibility", 16]]
    for name in kernel.arg_names[len(arguments) :]:
        types[name], fixed[name] = "constexpr", constants[name]
    return types, fixed, known


@pytest.fixture
def compiled(request, monkeypatch):
    """Instead of launching a kernel, compile it for a device of that capability; by module and name."""
    target, found = backends.GPUTarget("cuda", request.param, 32), {}

    def compile_only(kernel, *arguments, grid, warmup, **constants):
        types, fixed, known = signature(kernel, arguments, constants)
        where = kernel.fn.__module__.rsplit(".", 1)[-1], kernel.fn.__name__
        key = (tuple(types.values()), tuple(fixed.values()), tuple(known))
        if key in found.setdefault(where, {}):
            return
        source = compiler.ASTSource(fn=kernel, signature=types, constexprs=fixed, attrs=known)
        options = {name: constants[name] for name in OPTIONS if name in constants}
        found[where][key] = triton.compile(source, target=target, options=options).asm["cubin"]

    monkeypatch.setattr(triton.runtime.jit.JITFunction, "run", compile_only)
    monkeypatch.setattr(_choice, "kernels_run_on", lambda device: True)
    return found


@pytest.mark.parametrize(
    ("compiled", "dtype"),
    [pytest.param(90, torch.float32, marks=pytest.mark.slow), (80, torch.bfloat16)],
    indirect=["compiled"],
)
def test_every_kernel_becomes_machine_code(compiled, dtype):
    features, labels = torch.randn(2, 32, 16, 16).to(dtype), torch.randint(0, 7, (2, 64, 64))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        leaf = features.clone().requires_grad_()
        classifier = cacseg.ContextAwareClassifier(32, 7, dropout=0.1)
        cacseg.ContextLoss()(classifier(leaf, labels), labels)["total"].backward()
        classifier.eval()(leaf)
    fitted_labels(labels, 16, 16, 7, 255, "centred")
    assert set(compiled) == {(name, kernel) for name in MODULES for kernel in launched(name)}
    assert all(code[:4] == b"\x7fELF" for codes in compiled.values() for code in codes.values())
