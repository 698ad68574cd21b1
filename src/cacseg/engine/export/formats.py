"""The three kinds of files: each written with its description, and opened again to be run."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from cacseg.engine.export.module import Description
from cacseg.runtime import seal
from cacseg.runtime.onnx_file import METADATA, open_file

SUFFIXES = {"onnx": ".onnx", "torch-export": ".pt2", "aotinductor": ".pt2"}
OPSET = 18
INPUT = "images"
TORCH = (2, 8)  # the first with dynamic sizes that may be 1, and torch.onnx.export of a traced program
LARGEST_ONNX = 2**31 - 2**20  # bytes, of a protocol buffer
SCOPES = "pkg.torch.onnx.name_scopes"  # where the exporter notes the modules that a node comes from

Run = Callable[[Tensor], Tensor]


def check_packages(file_format: str) -> None:
    """What a format needs is installed."""
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < TORCH:
        least = ".".join(map(str, TORCH))
        message = f"exporting needs torch {least}; this is {torch.__version__}: pip install 'torch>={least}'"
        raise ModuleNotFoundError(message, name="torch")
    needed = ("onnx", "onnxscript", "onnxruntime") if file_format == "onnx" else ()
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        message = f"ONNX files need {', '.join(missing)}: pip install {' '.join(missing)}"
        raise ModuleNotFoundError(message, name=missing[0])


def write(program: ExportedProgram, path: Path, file_format: str, described: Description) -> None:
    """The file of a traced program."""
    with quiet():
        if file_format == "onnx":
            write_onnx(program, path, described)
        elif file_format == "torch-export":
            torch.export.save(program, path, extra_files={METADATA: described.as_json()})
        else:
            configs = {"aot_inductor.metadata": {METADATA: described.as_json()}}
            torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=configs)


def open_program(path: Path, file_format: str, device: torch.device) -> Run:
    """The function that a file computes, by the runtime it is meant for; of ONNX files read as `Predictor` does."""
    if file_format == "onnx":
        return _run_by(open_file(path, "cpu")[0])
    with quiet():
        if file_format == "torch-export":
            return torch.export.load(path).module()
        compiled: Run = torch._inductor.aoti_load_package(str(path), device_index=device.index or -1)
        return compiled


def write_onnx(program: ExportedProgram, path: Path, described: Description) -> None:
    """One .onnx file of standard operators, its weights inside."""
    exported: Any = torch.onnx.export(
        program, input_names=[INPUT], output_names=[described.output], opset_version=OPSET, verbose=False, dynamo=True
    )
    model = exported.model
    size = sum(value.const_value.nbytes for value in model.graph.initializers.values())
    if size > LARGEST_ONNX:
        raise ValueError(
            f"an ONNX file holds at most 2 GiB; this model has {size / 2**30:.1f}. Use --precision fp16, or --format "
            "torch-export."
        )
    names = dict(zip(map(str, model.graph.inputs[0].shape), ("batch", "", "height", "width"), strict=True))
    for value in (*model.graph.inputs, *model.graph.outputs):
        for axis, length in enumerate(value.shape):
            if not isinstance(length, int):
                value.shape[axis] = names.get(str(length))  # a size that follows from the image's stays open
    for node in model.graph:
        # All else (the paths of the code, line by line) tells of the machine that wrote the file.
        scopes = node.metadata_props.get(SCOPES, "[]")
        node.metadata_props.clear()
        node.metadata_props[SCOPES] = scopes
    for value in model.graph.initializers.values():
        value.metadata_props.clear()
    model.metadata_props.clear()
    model.metadata_props.update(onnx_facts(described))
    exported.save(path, external_data=False)


def onnx_facts(described: Description) -> dict[str, str]:
    """The metadata of an ONNX file, before it is sealed."""
    return {METADATA: described.as_json(), seal.KEY: seal.UNSEALED}


def open_onnx(path: Path, threads: int = 0) -> Run:
    """By ONNX Runtime on the CPU, with as many threads as it likes or as given; any file, for its time and memory."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return _run_by(onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]))


def _run_by(session: Any) -> Run:
    def run(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {INPUT: images.numpy()})[0])

    return run


@contextmanager
def quiet() -> Iterator[None]:
    """Without the remarks of exporters on their own workings."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
