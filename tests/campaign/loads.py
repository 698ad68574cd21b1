"""What the commands do with each kind of file, and how that kind is damaged.

A load raises as the command would, or returns the failures that the command reports and goes on from. An error of what
is accepted and gives another result than the file that was saved is `WrongResult`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import io
import json
import re
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import cache, partial
from html import unescape
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

from campaign import mutate
from campaign.mutate import BYTES, IMAGE, WINDOWS, ZIP, Mutator, bomb_member, edit_numpy_header
from campaign.structure import mutate_csv, mutate_json, mutate_lines, mutate_value, to_json

ROOT = Path(__file__).resolve().parents[2]

Load = Callable[[Path, Path, Path], list[str]]  # the corpus, the folder of the case, its damaged file


class WrongResult(Exception):
    """A damaged file was taken for a whole one."""


class Kind(NamedTuple):
    """A kind of file."""

    tree: str  # the folder of the corpus that a case is a copy of
    targets: tuple[str, ...]  # globs of the files in it, one of which is damaged
    mutators: tuple[Mutator, ...]
    load: Load
    share: float = 1.0  # of the loads, beside the other kinds
    is_new: bool = False  # came with bands, labelling tools, exports, hub folders, pages and services
    also: tuple[str, ...] = ()  # words that name the file as its name does
    beside: tuple[str, ...] = ()  # globs of other files of the tree that a case needs
    is_data: bool = False  # a data set, of which an error may name the root alone


# --- images


def load_image(
    corpus: Path, folder: Path, file: Path, *, model: str = "model.safetensors", tile: bool = False
) -> list[str]:
    """`cacseg predict MODEL FILE -o OUT`, of one file."""
    from cacseg.runtime.decode import count_pixels
    from cacseg.runtime.folder import SaveOptions, predict_files
    from cacseg.runtime.inputs import find_images
    from cacseg.runtime.journal import Journal

    backend = predictor(corpus / "models" / model, tile).backend
    output = folder / "out"
    inputs = find_images([file], output)
    count_pixels(file)
    with Journal(output, {"plain": False, **backend.settings()}) as journal:
        if tile:
            from cacseg.engine.rasters import predict_rasters

            found = predict_rasters(backend, inputs, journal, save=SaveOptions(overlays=False))
        else:
            found = predict_files(backend, inputs, journal, batch=4, workers=1)
    return [one.reason for one in found.failed]


def load_video(corpus: Path, folder: Path, file: Path) -> list[str]:
    """`cacseg predict MODEL FILM -o OUT`."""
    from cacseg.runtime.folder import SaveOptions
    from cacseg.runtime.journal import Journal
    from cacseg.runtime.video import open_frames, write_masks

    backend, frames = predictor(corpus / "models" / "model.safetensors").backend, open_frames(file)
    with Journal(folder / "out", {"plain": False, **backend.settings()}) as journal:
        write_masks(backend, frames, journal, SaveOptions(overlays=False), False, 4, 1, carry=0.0)
    return [one.reason for one in frames.failed]


@cache
def predictor(path: Path, tile: bool = False) -> Any:
    import cacseg

    return cacseg.Predictor(path, device="cpu", **({"tile": 64, "overlap": 32} if tile else {}))


# --- data sets


def load_data(corpus: Path, folder: Path, file: Path, *, root: str = "", bands: int | None = None) -> list[str]:
    """`cacseg data check ROOT`."""
    from cacseg.data.check import check_data, guess_name
    from cacseg.data.layout import Rules

    place = folder / root
    found = check_data(guess_name(place), place, rules=Rules(bands=bands), workers=0, sheet_rows=2)
    found.as_json()
    return found.problems


def load_split(corpus: Path, folder: Path, file: Path) -> list[str]:
    """`cacseg data check` and then what `cacseg train` reads, with images held out where there are no splits."""
    from cacseg.data.check import check_data, guess_name
    from cacseg.recipes.config import DataConfig
    from cacseg.recipes.protocol import open_split

    name = guess_name(folder)
    found = check_data(name, folder, workers=0, sheet_rows=2)
    found.as_json()
    if found.ok or (found.unsplit and not found.problems):
        share = 0.5 if found.unsplit else None
        data = open_split(DataConfig(name=name, root=str(folder), crop=(16, 16), val_share=share), "train")
        for index in range(len(data)):
            data.read(index)
    return found.problems


# --- models


def load_model(corpus: Path, folder: Path, file: Path) -> list[str]:
    """`cacseg predict FILE`; a file that is accepted has the tensors that were saved.

    One whose checksum is gone or was counted anew must have those that it holds itself.
    """
    import torch

    import cacseg

    model = cacseg.load(file)
    cacseg.Predictor(file, device="cpu")(corpus / "images" / "a.png")
    whole = corpus / "models" / "model.safetensors"
    is_resealed = checksum_of(file) != checksum_of(whole)
    expected, found = saved_tensors.__wrapped__(file) if is_resealed else saved_tensors(whole), model.state_dict()
    changed = [name for name in found if name not in expected or not torch.equal(found[name], expected[name])]
    if changed:
        raise WrongResult(f"accepted with other values in {changed[:3]}")
    return []


def checksum_of(path: Path) -> str | None:
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return (file.metadata() or {}).get("checksum")


@cache
def saved_tensors(path: Path) -> Any:
    from safetensors.torch import load_file

    return load_file(path)


def load_tensors(corpus: Path, folder: Path, file: Path) -> list[str]:
    """What `cacseg import-weights FILE` and model.backbone_weights read."""
    from cacseg.models.files import read_tensors

    read_tensors(file)
    return []


def load_checkpoint(corpus: Path, folder: Path, file: Path) -> list[str]:
    """`cacseg train --resume -o FOLDER`; a run that goes on ends where it would have."""
    import torch
    from safetensors.torch import load_file

    from cacseg.recipes.build import run
    from cacseg.recipes.files import read_config

    name, config, *_ = read_config(folder)
    run(config, folder, recipe=name, resume=True, report=lambda text: None, progress=False)
    found, expected = (
        load_file(folder / "last.safetensors"),
        saved_tensors(corpus / "runs" / "run" / "last.safetensors"),
    )
    changed = [name for name in expected if not torch.equal(found[name], expected[name])]
    if changed:
        raise WrongResult(f"resumed and elsewhere: {changed[:3]}")
    return []


def load_config(corpus: Path, folder: Path, file: Path) -> list[str]:
    """A run's config.json, for `cacseg train RUN`, `--resume`, `predict` and `eval`."""
    from cacseg.cli._options import make_inference, open_recipe
    from cacseg.recipes.build import begin
    from cacseg.recipes.files import read_config
    from cacseg.recipes.protocol import data_of_run

    _, config = open_recipe(str(folder))
    open_recipe(str(file))
    make_inference(data_of_run(folder / "last.safetensors"), None, None, False, False, False, 4)
    read_config(folder)
    begin(config, folder, True)
    return []


def load_arms(corpus: Path, folder: Path, file: Path) -> list[str]:
    """`cacseg compare synthetic --arms FILE`."""
    from cacseg.recipes.compare import choose_arms, describe, make_plan, naming_file
    from cacseg.recipes.named import find_recipe

    base = find_recipe("synthetic")
    with naming_file(str(file)):
        arms = choose_arms(str(file))
        make_plan(base, arms, (0, 1), (4,), {})
    describe("synthetic", base, arms)
    return []


# --- what commands wrote


def load_journal(corpus: Path, folder: Path, file: Path) -> list[str]:
    """The folder of an earlier `cacseg predict`, for the same options."""
    from cacseg.runtime.journal import Journal
    from cacseg.runtime.shards import Shard

    options = {"weights_sha256": "0123456789abcdef", "scale": None, "plain": False}
    for shard in (Shard(0, 2), Shard()):
        with Journal(folder, options, shard=shard) as journal:
            for name in [*journal.rows, "day/1"]:
                journal.is_done(SimpleNamespace(name=name, path=Path("/dev/null")))  # type: ignore[arg-type]
    return []


def load_report(corpus: Path, folder: Path, file: Path) -> list[str]:
    """`cacseg report FOLDER`, which must not call a file missing that is there."""
    from cacseg.cli.report import write_page

    with redirect_stderr(io.StringIO()) as said, redirect_stdout(io.StringIO()):
        page = unescape(write_page([folder], folder / "out" / "report.html", images=0).read_text())
    if denied := [one.name for one in folder.rglob("*.*") if re.search(rf"{re.escape(one.name)} is missing", page)]:
        raise WrongResult(f"the page says that {denied[0]} is missing, which is there")
    return said.getvalue().splitlines()


def load_comparison(corpus: Path, folder: Path, file: Path) -> list[str]:
    """`cacseg compare FOLDER`."""
    from cacseg.cli.compare import present

    with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
        present([folder], folder / "out")
    return load_report(corpus, folder, file)


def load_hub(corpus: Path, folder: Path, file: Path) -> list[str]:
    """A folder of `cacseg hub`, for `cacseg predict FOLDER` and for uploading."""
    import cacseg
    from cacseg.recipes.hub import is_hub_folder, read_source

    is_hub_folder(folder)
    cacseg.Predictor(folder, device="cpu")(corpus / "images" / "a.png")
    if file.suffix == ".safetensors":
        import torch

        expected, found = saved_tensors(corpus / "runs" / "hub" / file.name), cacseg.load(folder).state_dict()
        if not all(torch.equal(found[name], expected[name]) for name in expected):
            raise WrongResult("accepted with other values")
    read_source(folder / "model.safetensors")
    return []


# --- exports, the page, the service


def load_onnx(corpus: Path, folder: Path, file: Path) -> list[str]:
    """`cacseg predict FILE.onnx IMAGE`."""
    from cacseg.runtime.folder import predict_files
    from cacseg.runtime.inputs import find_images
    from cacseg.runtime.journal import Journal
    from cacseg.runtime.onnx_file import OnnxBackend

    backend = OnnxBackend(file, device="cpu", threads=1)
    backend.check(maps=False, plain=False)
    with Journal(folder / "out", {"plain": False, **backend.settings()}) as journal:
        found = predict_files(backend, find_images([corpus / "images" / "a.png"]), journal, workers=1)
    return [one.reason for one in found.failed]


def load_page(corpus: Path, folder: Path, file: Path, *, model: str = "model.safetensors") -> list[str]:
    """An upload to the page of `cacseg app MODEL`."""
    from urllib.parse import quote

    from cacseg.app.server import BODY

    server = page_of(corpus / "models" / model)

    async def upload() -> tuple[int, bytes]:
        async with server._lifespan(server.app):
            query = f"name={quote(file.name)}".encode()
            return await ask(server.app, "/api/predict", query, BODY, file.read_bytes())

    return explained(*asyncio.run(upload()))


@cache
def page_of(path: Path) -> Any:
    import torch

    import cacseg
    from cacseg.app.predict import Predictor
    from cacseg.app.server import Server
    from cacseg.engine.inference import Inference

    return Server(Predictor(cacseg.load(path), Inference(), None, torch.device("cpu")), "fuzz")


def load_service(corpus: Path, folder: Path, file: Path) -> list[str]:
    """A request to examples/serve_onnx.py."""
    service = service_of(corpus / "models" / "classes.onnx")
    status, body = asyncio.run(ask(service.app, "/mask", b"", "application/octet-stream", file.read_bytes()))
    return explained(status, body)


@cache
def service_of(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("serve_onnx", ROOT / "examples" / "serve_onnx.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Service(module.read_options([str(path), "--threads", "1"]))


async def ask(app: Any, path: str, query: bytes, kind: str, body: bytes) -> tuple[int, bytes]:
    """Status and body of a POST request, by the application's own handlers; what they raise is raised."""
    parts: list[dict[str, Any]] = []
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if waiting:
            return waiting.pop()
        await asyncio.sleep(3600)  # the client stays
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        parts.append(message)

    headers = [(b"content-type", kind.encode()), (b"host", b"127.0.0.1"), (b"content-length", str(len(body)).encode())]
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http"}
    scope |= {"path": path, "raw_path": path.encode(), "query_string": query, "root_path": "", "headers": headers}
    await app({**scope, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)}, receive, send)
    return parts[0]["status"], b"".join(part.get("body", b"") for part in parts[1:])


def explained(status: int, body: bytes) -> list[str]:
    if status < 400:
        return []
    if status >= 500:
        raise RuntimeError(f"status {status}: {body[:300]!r}")
    return [json.loads(body)["error"]]


# --- damage of formats of their own


def edit_safetensors(rng: Random, content: bytes, _: Sequence[bytes]) -> bytes:
    """In the header, in the description within it, or in the numbers; half of them get past the checksum."""
    length = int.from_bytes(content[:8], "little")
    header, numbers = json.loads(content[8 : 8 + length]), content[8 + length :]
    action = rng.choice(("header", "facts", "facts", "inner", "inner", "inner", "numbers", "numbers"))
    if action == "numbers":
        place = 4 * rng.randrange(len(numbers) // 4)
        strange = rng.choice(
            (b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\0\0\x80\xff", b"\xff\xff\x7f\x7f", b"\0\0\0\0", b"\0\0\xa0\x41")
        )
        numbers = numbers[:place] + strange + numbers[place + 4 :]
    elif action == "header":
        header = mutate_value(rng, header)
    else:
        facts = header["__metadata__"]
        if action == "facts":
            header["__metadata__"] = mutate_value(rng, facts)
        else:
            key = rng.choice([key for key in facts if facts[key][:1] in '{["' or facts[key] == "null"])
            facts[key] = mutate_json(rng, facts[key].encode()).decode("utf-8", "replace")
    facts = header.get("__metadata__") if isinstance(header, dict) else None
    if isinstance(facts, dict) and rng.random() < 0.5:
        facts.pop("checksum", None)
        if rng.random() < 0.5:
            return _sealed(header, numbers)
    return _packed(header, numbers)


def _packed(header: Any, numbers: bytes) -> bytes:
    text = to_json(header)
    return len(text).to_bytes(8, "little") + text + numbers


def _sealed(header: dict[str, Any], numbers: bytes) -> bytes:
    """With the checksum that reading will ask for, where the rest can be read at all."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    from cacseg._tensors import CHECKSUM, checksum

    facts, content = header["__metadata__"], _packed(header, numbers)
    try:
        facts = json.loads(to_json(facts))  # as it is written
        return _packed({**header, "__metadata__": {**facts, CHECKSUM: checksum(load(content), facts)}}, numbers)
    except (SafetensorError, ValueError, TypeError, AttributeError, KeyError, RuntimeError, OverflowError):
        return content


def edit_checkpoint(rng: Random, content: bytes, _: Sequence[bytes]) -> bytes:
    """Parts that are gone, of another type, or of another shape."""
    import torch

    state = torch.load(io.BytesIO(content), weights_only=True)
    places = [(state, key) for key in state]
    places += [
        (one, key)
        for one, _ in list(places)
        for part in [one[_]]
        if isinstance(part, dict)
        for one, key in [(part, k) for k in part]
    ]
    for part in state.get("optimizer_states", []):
        places += [(part, key) for key in part] + [(part["state"], key) for key in part["state"]]
        places += [(one, key) for one in part["state"].values() if isinstance(one, dict) for key in one]
        places += [(one, key) for one in part["param_groups"] for key in one]
    for _ in range(rng.choice((1, 1, 2))):
        depth, key = rng.choice(places)
        if key not in depth:
            continue
        value = depth[key]
        action = rng.choice(("remove", "empty", "strange", "strange", "shape", "nan"))
        if isinstance(value, torch.Tensor) and action in ("shape", "nan", "empty"):
            flat = value.reshape(-1)
            depth[key] = {
                "shape": flat[: max(1, len(flat) - 1)],
                "nan": torch.full_like(value.float(), float("nan")),
                "empty": flat[:0],
            }[action].clone()
        elif action == "remove":
            del depth[key]
        elif action == "empty" and isinstance(value, list | dict | str):
            depth[key] = type(value)()
        else:
            depth[key] = rng.choice((None, -1, 10**9, 0.5, float("nan"), "x", [], {}, [None], torch.zeros(3), True))
    target = io.BytesIO()
    torch.save(state, target)
    return target.getvalue()


def edit_onnx_facts(rng: Random, content: bytes, _: Sequence[bytes]) -> bytes:
    """In what `cacseg export` says of the model within the file."""
    import onnx

    model = onnx.load_model_from_string(content)
    (facts,) = [one for one in model.metadata_props if one.key == "cacseg"]
    facts.value = mutate_json(rng, facts.value.encode()).decode("utf-8", "replace")
    if rng.random() < 0.05:
        facts.key = rng.choice(("", "Cacseg", "x"))
    return model.SerializeToString()


TILED = partial(load_image, model="bands.safetensors", tile=True)
PICTURES = ("*.png", "*.jpg", "*.jpeg", "*.webp", "*.bmp", "*.tif", "*.tiff", "*.gif")
NUMPY = (*IMAGE, edit_numpy_header)
TEXTS = ("*.json", "**/*.json")
WHOLE = ("**/*",)
JSON_TEXT: tuple[Mutator, ...] = (
    *(mutate_json,) * 12,
    mutate.truncate,
    mutate.flip_bits,
    mutate.write_run,
    mutate.splice,
)
CSV_TEXT: tuple[Mutator, ...] = (*(mutate_csv,) * 8, mutate.truncate, mutate.flip_bits, mutate.write_run)
LINE_TEXT: tuple[Mutator, ...] = (*(mutate_lines,) * 8, mutate.truncate, mutate.flip_bits, mutate.splice)


def numpy_or_image(rng: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    chosen = NUMPY if content.startswith(b"\x93NUMPY") else IMAGE
    return rng.choice(chosen)(rng, content, others)


def by_format(rng: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """As its first bytes say: an image, JSON, or lines."""
    if content[:1] in (b"\x89", b"\xff", b"B", b"I", b"M", b"G", b"R"):
        return rng.choice(IMAGE)(rng, content, others)
    if content[:1] in (b"{", b"["):
        return rng.choice(JSON_TEXT)(rng, content, others)
    if content[:1].isascii() and b"\0" not in content[:100]:
        return rng.choice(LINE_TEXT)(rng, content, others)
    return rng.choice(BYTES)(rng, content, others)


def _tool(name: str, *targets: str, share: float = 1.0) -> Kind:
    """Labels of a labelling tool; its images are damaged too, seldom."""
    return Kind(
        f"labels/{name}",
        (*targets, *targets, *targets, "**/*.*"),
        (by_format,),
        load_split,
        share,
        True,
        beside=WHOLE,
        is_data=True,
    )


CHECKPOINT: tuple[Mutator, ...] = (*(edit_checkpoint,) * 8, *BYTES)
JOURNAL: tuple[Mutator, ...] = (*CSV_TEXT[:8], *BYTES, by_format)
MAT_FILES = ("**/*.mat", "**/ImageSets/**/*.txt")
HUB_FILES = ("config.json", "config.json", "README.md", "model.safetensors")

KINDS: dict[str, Kind] = {
    "image": Kind("images", PICTURES, IMAGE, load_image, 12),
    "video": Kind("videos", ("*",), BYTES, load_video, 2),
    "labels-index": Kind("labels/index", ("labels/**/*.png",), IMAGE, load_data, 6, beside=WHOLE, is_data=True),
    "labels-colour": Kind("labels/colour", ("labels/**/*.png",), IMAGE, load_data, 4, beside=WHOLE, is_data=True),
    "labels-mat": Kind("labels/mat", MAT_FILES, (by_format,), load_data, 2, beside=WHOLE, is_data=True),
    "class-list": Kind("labels/index", ("classes.txt",), LINE_TEXT, load_data, 4, beside=WHOLE, is_data=True),
    "zip": Kind("labels/zip", ("data.zip",), ZIP, partial(load_data, root="data.zip"), 8),
    "zip-bomb": Kind("labels/zip", ("data.zip",), (bomb_member,), partial(load_data, root="data.zip"), 0.1),
    "model": Kind("models", ("model.safetensors",), (edit_safetensors,) * 4 + BYTES[:6], load_model, 10),
    "weights": Kind("models", ("weights.pth", "old.pth"), BYTES + (mutate.edit_zip,) * 2, load_tensors, 6),
    "checkpoint": Kind("runs/stopped", ("last.ckpt",), CHECKPOINT, load_checkpoint, 4, beside=WHOLE),
    "config": Kind("runs/run", ("config.json",), JSON_TEXT, load_config, 8, beside=("config.json", "scores.json")),
    "arms": Kind("runs/arms", ("arms.toml",), LINE_TEXT, load_arms, 5),
    "journal": Kind("journal", ("*.csv", "*.json"), JOURNAL, load_journal, 6, also=("index.csv",), beside=WHOLE),
    "scores": Kind("runs/run", ("scores.json",), JSON_TEXT, load_report, 4, beside=("*.json", "*.csv")),
    "metrics": Kind("runs/run", ("metrics.csv",), CSV_TEXT, load_report, 4, beside=("*.json", "*.csv")),
    "evaluation": Kind("runs/evaluation", ("*.json", "*.csv"), (by_format,), load_report, 3, beside=WHOLE),
    "comparison": Kind("runs/comparison", (*TEXTS, "**/*.csv"), (by_format,), load_comparison, 2, beside=WHOLE),
    "bands": Kind("bands", ("*",), (numpy_or_image,), partial(load_image, model="bands.safetensors"), 7, True),
    "bands-tiled": Kind("bands", ("*.tif",), WINDOWS, TILED, 3, True),
    "coco": _tool("coco", "annotations/*.json", share=2),
    "coco-runs": _tool("coco_runs", "**/*.json", share=2),
    "labelme": _tool("labelme", "**/*.json", share=2),
    "labelme-masks": _tool("labelme_masks", "**/*.json", share=2),
    "yolo": _tool("yolo", "data.yaml", "**/*.txt", share=2),
    "voc": _tool("voc", "labelmap.txt", "**/*.txt", "SegmentationClass/*.png", share=2),
    "roboflow-masks": _tool("masks", "**/*.csv", "**/*.png", share=1),
    "label-studio": _tool("label_studio", "*.json", "masks/*.png", share=2),
    "hub": Kind("runs/hub", HUB_FILES, (by_format,), load_hub, 4, True, beside=WHOLE),
    "onnx": Kind("models", ("*.onnx",), BYTES, load_onnx, 5, True),
    "export-metadata": Kind("models", ("*.onnx",), (edit_onnx_facts,), load_onnx, 5, True),
    "page": Kind("images", PICTURES, IMAGE, load_page, 5, True),
    "page-bands": Kind("bands", ("*",), (numpy_or_image,), partial(load_page, model="bands.safetensors"), 2, True),
    "service": Kind("images", PICTURES, IMAGE, load_service, 4, True, also=("the image", "no image")),
}  # fmt: skip
