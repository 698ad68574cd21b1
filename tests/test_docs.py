"""What README and docs state is true: snippets run, tables are what the code and the recorded benchmarks say."""

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


def model_row(name):
    plain, context = summarise(name, 150, "plain"), summarise(name, 150, "context")
    millions = [plain.parameters, context.parameters, context.deployed_parameters]
    cells = [f"{count / 1e6:.2f}" for count in millions] + [f"{one.flops / 1e9:.1f}" for one in (plain, context)]
    return f"| `{name}` | " + " | ".join(cells) + " |"


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


def test_pictures_are_few_and_small_and_name_their_source():
    pictures = list((ROOT / "docs" / "pictures").iterdir())
    assert len(pictures) <= 6
    assert sum(path.stat().st_size for path in pictures) < 800_000
    texts = {page: (ROOT / page).read_text() for page in PAGES}
    for path in pictures:
        shown = [page for page, text in texts.items() if f"pictures/{path.name})" in text]
        assert shown, path
        if not path.name.startswith("report"):  # photographs
            assert all("CamVid, CC BY-NC 4.0, Brostow et al. 2008" in texts[page].replace("\n", " ") for page in shown)
