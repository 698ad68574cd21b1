"""What README and docs state is true: snippets run, links lead somewhere, tables are the code's."""

import re
import shutil
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from PIL import Image
from torch import nn
from torch.nn import functional as F

import cacseg
from cacseg.models import MODELS
from cacseg.models.summary import summarise
from cacseg.presets import PRESETS
from cacseg.variants import VARIANTS

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", "CHANGELOG.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
HOUSE = ["SECURITY.md", "CONTRIBUTING.md"]  # of the repository; the site has no such pages
TEXTS = {page: (ROOT / page).read_text() for page in (*PAGES, *HOUSE)}
# Run by tests/test_training.py, tests/adapters/test_saved.py and tests/models/test_hub.py, which look at the result.
ELSEWHERE = ("cacseg.train(", "again = ")


def between(text, name):
    found = re.search(rf"<!-- {name}:.*?-->\n(.*?)<!-- /{name} -->", text, re.DOTALL)
    assert found, f"no part named {name}"
    return found[1].strip().splitlines()


def blocks(text, language):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


SNIPPETS = {
    f"{page}-{place}": block
    for page, text in TEXTS.items()
    for place, block in enumerate(blocks(text, "python"))
    if not any(one in block for one in ELSEWHERE)
}


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    """A folder with what snippets read: a run and a photograph."""
    folder = tmp_path_factory.mktemp("snippets")
    (folder / "runs" / "mine").mkdir(parents=True)
    model = cacseg.create_model("fcn", 3, backbone="test_resnet", head_channels=8)
    model.save(folder / "runs" / "mine" / "best.safetensors")
    Image.new("RGB", (64, 48), (90, 120, 60)).save(folder / "photo.jpg")
    return folder


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if "torch.export.load(" in block else name
        for name, block in SNIPPETS.items()
    ],
)
def test_a_snippet_runs(name, small_run, tmp_path, monkeypatch):
    if "cacseg.export" in SNIPPETS[name]:
        pytest.importorskip("onnx", reason="needs the extra export")
    shutil.copytree(small_run, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(SNIPPETS[name], names)
    if "losses" in names:
        assert {"plain", "context", "oracle", "distillation", "overlap", "total"} <= set(names["losses"])


def test_the_diff_of_the_readme_runs(monkeypatch):
    smp = pytest.importorskip("segmentation_models_pytorch")
    monkeypatch.setattr(smp, "Unet", partial(smp.Unet, encoder_weights=None))  # nothing is downloaded
    (diff,) = blocks(TEXTS["README.md"], "diff")
    names = {"loader": [(torch.randn(2, 3, 32, 32), torch.randint(0, 19, (2, 32, 32)))]}
    exec("\n".join(line[2:] for line in diff.splitlines() if line[0] != "-"), names)
    assert all(one.grad is not None for one in names["model"].parameters())


class TwoOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Conv2d(3, 8, 3, padding=1)
        self.class_head, self.depth_head = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 1, 1)

    def forward(self, images):
        features = self.features(images)
        return {"classes": self.class_head(features), "depth": self.depth_head(features)}


def test_the_loss_of_several_outputs_runs():
    (block,) = blocks(TEXTS["docs/convert.md"], "text")
    names = {"model": TwoOutputs(), "cacseg": cacseg, "depth_loss": F.l1_loss, "depth": torch.randn(2, 1, 8, 8)}
    names |= {"images": torch.randn(2, 3, 8, 8), "labels": torch.randint(0, 4, (2, 8, 8))}
    exec(block, names)
    names["total"].backward()
    assert names["model"].depth_head.weight.grad is not None


def anchors(text):
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", TEXTS)
def test_every_link_leads_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", TEXTS[page]):
        if not link.startswith("https://"):
            path, _, anchor = link.partition("#")
            target = (ROOT / page).parent / path if path else ROOT / page
            assert target.is_file(), link
            assert not anchor or anchor in anchors(target.read_text()), link


def test_the_site_has_every_page_once():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    named = [page for section in site["nav"] for pages in section.values() for one in pages for page in one.values()]
    assert sorted(named) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", TEXTS)
def test_every_file_of_the_repository_that_is_named_exists(page):
    """Scripts and tests; what a user makes is elsewhere."""
    for name in re.findall(r"\b(?:tests|tools|benchmarks|examples)/[\w/]+\.py\b", TEXTS[page]):
        assert (ROOT / name).exists(), name


def test_no_message_installs_cacseg_from_an_index():
    """It is on none: a clone or a wheel is what a user has."""
    sources = [path for path in (ROOT / "src").rglob("*") if path.suffix in (".py", ".md")]
    for path in (*sources, *(ROOT / page for page in PAGES)):
        assert not re.search(r"pip install '?cacseg(?!-)", path.read_text()), path


@pytest.mark.parametrize(("page", "most"), [("README.md", 120), ("docs/results.md", 200)])
def test_a_page_is_short(page, most):
    assert len(TEXTS[page].splitlines()) <= most


@pytest.mark.parametrize("name", MODELS)
def test_the_models_in_the_docs_have_the_counted_costs(name):
    """And the parameters that the paper counts."""
    plain, context = summarise(name, 150, "plain"), summarise(name, 150, "context")
    millions = [plain.parameters, context.parameters, context.deployed_parameters]
    cells = [f"{count / 1e6:.2f}" for count in millions] + [f"{one.flops / 1e9:.1f}" for one in (plain, context)]
    assert f"| `{name}` | " + " | ".join(cells) + " |" in between(TEXTS["docs/models.md"], "models")
    papers = pd.read_csv(ROOT / "docs" / "records" / "paper.csv").set_index("model").loc[name]
    assert cells[:2] == [f"{papers[f'params_{kind}']:.2f}" for kind in ("plain", "context")]


def test_the_paper_has_the_models_of_the_code():
    """Its ablations are of UPerNet with Swin-Tiny."""
    papers = pd.read_csv(ROOT / "docs" / "records" / "paper.csv").set_index("model")
    assert list(papers.index) == list(MODELS)
    main = papers.loc["upernet_swin_tiny"]
    assert main["ade20k_plain"] == VARIANTS["loss_a"].paper_miou
    assert main["ade20k_context"] == VARIANTS["loss_f"].paper_miou


def test_the_presets_in_the_docs_are_complete():
    for argument in PRESETS["paper"]._fields:
        assert f"`{argument}`" in TEXTS["docs/method.md"]


def test_every_public_name_is_on_the_api_page():
    for name in cacseg.__all__:
        assert re.search(rf"^::: cacseg\.{name}\b", TEXTS["docs/api.md"], re.MULTILINE), name


def test_the_variants_in_the_docs_are_complete():
    assert set(re.findall(r"^\| ((?:loss|kl|cosine|design)_\S+) \|", TEXTS["docs/paper.md"], re.M)) == set(VARIANTS)


def credits_camvid(text):
    """Data set, licence and authors, in one paragraph."""
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    return any(all(fact in part for fact in ("CamVid", "CC BY-NC 4.0", "Brostow")) for part in paragraphs)


def test_pictures_are_few_and_small_and_name_their_source():
    pictures = list((ROOT / "docs" / "pictures").iterdir())
    assert len(pictures) <= 6
    assert sum(path.stat().st_size for path in pictures) < 800_000
    for path in pictures:
        shown = [page for page, text in TEXTS.items() if f"pictures/{path.name})" in text]
        assert shown, path
        if not path.name.startswith("report"):  # photographs
            assert all(credits_camvid(TEXTS[page]) for page in shown), path
