"""The file that `cacseg report` writes, opened in a browser as a user opens it."""

import pytest
from typer.main import get_command

from cacseg.cli import app
from command_line import run
from test_cli_train import settings


@pytest.mark.parametrize("width", [390, 1280])
def test_a_report_opens_without_a_network(page, report_file, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(report_file.as_uri())
    assert page.title()
    assert page.locator("h1").first.is_visible()
    sizes = page.locator("img").evaluate_all("all => all.map((one) => one.complete ? one.naturalWidth : 0)")
    assert all(sizes)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.fixture(scope="module")
def report_file(tmp_path_factory):
    if "report" not in get_command(app).commands:
        pytest.skip("this version has no command `cacseg report`")
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        arguments = ("synthetic", "-o", folder / "run", *settings(**{"schedule.steps": 4}))
        assert run("train", *arguments, capsys=_Silent(), monkeypatch=patch).code == 0
        assert run("report", folder / "run", "--device", "cpu", capsys=_Silent(), monkeypatch=patch).code == 0
    return folder / "run" / "report.html"


class _Silent:
    """In the place of capsys, which lives as long as one test."""

    def readouterr(self):
        return "", ""
