"""What README and docs state is true: snippets run, tables are what the code and the recorded benchmarks say."""

import json
import re
from pathlib import Path

import pytest
from typer.main import get_command

from cacseg.cli import app
from cacseg.models import MODELS
from cacseg.models.summary import summarise
from cacseg.presets import PRESETS
from cacseg.recipes.named import PAPER_DATA
from cacseg.variants import VARIANTS

ROOT = Path(__file__).parent.parent


def between(text, name):
    found = re.search(rf"<!-- {name}:.*?-->\n(.*?)<!-- /{name} -->", text, re.DOTALL)
    assert found, f"no part named {name}"
    return found[1].strip().splitlines()


def test_what_dilation_leaves_of_weights():
    rows = recorded("dilated_blocks")["rows"]
    table = ["| {stride}, {blocks} | {miou:.1f} | {correlation:.2f} |".format(**row) for row in rows]
    shown = between((ROOT / "docs" / "models.md").read_text(), "blocks")[2:]
    assert shown == [row.replace("32, all", "32") for row in table]


def model_row(name):
    plain, context = summarise(name, 150, "plain"), summarise(name, 150, "context")
    millions = [plain.parameters, context.parameters, context.deployed_parameters]
    cells = [f"{count / 1e6:.2f}" for count in millions] + [f"{one.flops / 1e9:.1f}" for one in (plain, context)]
    return f"| `{name}` | " + " | ".join(cells) + " |"


OURS = "plain, upsampled_cross_entropy"


def cost_rows():
    """The loss from the features on: on a CPU, and on a GPU as a CUDA graph with the memory of the eager run."""
    arm = recorded("arm_cpu_float32")["rows"]
    runs = [(arm, arm)]
    for index, dtype in enumerate(("float32", "bfloat16")):
        runs.append((recorded("h200_loss_graph")[index]["rows"], recorded(f"h200_{dtype}")["rows"]))
    titles = {"plain": "plain", OURS: f"plain, `{OURS.split(', ')[1]}`", "tuned": "`tuned`", "released": "`released`"}
    for key, title in titles.items():
        cells = []
        for timed, eager in runs:
            if key not in timed:
                cells.append("")
            elif key == "plain":
                time = timed[key]["time_ms"]
                cells.append(f"{time:.0f} ms, " if time > 100 else f"{time:.1f} ms, ")
                cells[-1] += f"{eager[key]['memory_mib']:.0f} MiB"
            else:
                cells.append(f"{timed[key]['time_ratio']:.2f}x time, {eager[key]['memory_ratio']:.2f}x memory")
        yield f"| {title} | " + " | ".join(cells) + " |"


def test_the_costs_in_the_readme_are_the_recorded_ones():
    readme = (ROOT / "README.md").read_text()
    assert between(readme, "costs")[2:] == list(cost_rows())
    assert between(readme, "steps")[2:] == speed_tables()["step"]


def recorded(name):
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def times(rows, name):
    """A row's time beside plain, and its memory where that was measured."""
    row = rows[name]
    if name == "plain":
        cell = f"{row['time_ms']:.1f} ms"
        return cell + ("" if row["memory_mib"] is None else f", {row['memory_mib']:.0f} MiB")
    cell = f"{row['time_ratio']:.2f}x" if row["time_ratio"] > 1.1 else f"{row['time_ratio']:.3f}x"
    return cell + ("" if row["memory_ratio"] is None else f", {row['memory_ratio']:.2f}x")


def speed_tables():
    """The tables of docs/speed.md, each as its rows."""
    loss = []
    for index, dtype in enumerate(("float32", "bfloat16")):
        eager, graph = recorded(f"h200_{dtype}")["rows"], recorded("h200_loss_graph")[index]["rows"]
        names = ("plain", OURS, "tuned", "released", "paper", "looped")
        loss.append(f"| {dtype}, eager | " + " | ".join(times(eager, name) for name in names) + " |")
        loss.append(f"| {dtype}, CUDA graph | " + " | ".join(times(graph, name) for name in names[:-1]) + " | |")
    step = []
    for entry in recorded("h200_step"):
        assert entry["preset"] == "tuned"
        title = f"| {entry['dtype']}{'' if entry['auxiliary'] else ', no auxiliary head'} | "
        step.append(title + " | ".join(times(entry["rows"], name) for name in ("plain", OURS, "context")) + " |")
    infer, modes = [], {"eager": "eager", "graph": "CUDA graph"}
    for entry in recorded("h200_infer"):
        rows = entry["rows"]
        speed = f"{1e3 / rows['plain']['time_ms']:.1f} | {1e3 / rows['context']['time_ms']:.1f}"
        assert entry["preset"] == "tuned"
        cells = f"{speed} | {times(rows, 'plain')} | {times(rows, 'context')} |"
        infer.append(f"| {entry['size']}, {modes[entry['mode']]} | {cells}")
    return {"loss": loss, "step": step, "infer": infer}


@pytest.mark.parametrize("table", ["loss", "step", "infer"])
def test_the_speeds_in_the_docs_are_the_recorded_ones(table):
    assert between((ROOT / "docs" / "speed.md").read_text(), table)[2:] == speed_tables()[table]


def test_the_snippets_of_the_readme_run():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    runnable = [block for block in blocks if block.startswith("import")]
    assert runnable
    for block in runnable:
        names = {}
        exec(block, names)
        assert names["logits"].shape == names["plain"].shape == names["oracle"].shape == (2, 19, 128, 128)
        assert set(names["losses"]) == {"plain", "context", "oracle", "distillation", "overlap", "auxiliary", "total"}


PAGES = ["README.md", "CHANGELOG.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]


def anchors(text):
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page):
    text = (ROOT / page).read_text()
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if not link.startswith("https://"):
            path, _, anchor = link.partition("#")
            target = (ROOT / page).parent / path if path else ROOT / page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target.read_text()), link


@pytest.mark.parametrize("page", PAGES)
def test_every_command_exists(page):
    text = (ROOT / page).read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^|`)make (\w+)", text, re.MULTILINE):
        assert f"\n{target}:" in makefile
    commands = get_command(app).commands
    for name, below in re.findall(r"(?:^ *|`)cacseg ([a-z][a-z-]*)(?: ([a-z]+))?", text, re.MULTILINE):
        assert name in commands
        assert not below or below in getattr(commands[name], "commands", {below})


@pytest.mark.parametrize("page", PAGES)
def test_every_file_of_the_repository_that_is_named_exists(page):
    """Scripts and tests; what a user makes is elsewhere."""
    pattern = r"\b(?:tests|tools|benchmarks|examples)/[\w/]+\.py\b"
    for name in re.findall(pattern, (ROOT / page).read_text()):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("name", MODELS)
def test_the_models_in_the_docs_have_the_counted_costs(name):
    assert model_row(name) in between((ROOT / "docs" / "models.md").read_text(), "models")


def test_the_presets_in_the_docs_are_complete():
    text = (ROOT / "docs" / "method.md").read_text()
    for argument in PRESETS["paper"]._fields:
        assert f"`{argument}`" in text


def test_the_variants_in_the_docs_exist():
    text = (ROOT / "docs" / "method.md").read_text().split("## Ablations")[1]
    named = re.findall(r"`((?:loss|kl|cosine|design)_[a-z0-9#]+)`", text)
    assert len(named) > 10
    assert set(named) <= set(VARIANTS)


def test_the_protocols_in_the_docs_are_those_of_the_recipes():
    rows = []
    for name, entry in PAPER_DATA.items():
        data = entry.data
        windows = "whole"
        if data.window is not None:
            windows = f"{data.window[0]}x{data.window[1]}, stride {data.stride[0]}x{data.stride[1]}"
        rows.append(f"| `{name}` | {data.val_scale[0]}, {data.val_scale[1]} | {windows} |")
    assert between((ROOT / "docs" / "evaluation.md").read_text(), "protocols")[2:] == rows
