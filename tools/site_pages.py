"""Writes what the documentation site is built from: make docs

The pages of docs with two changes. The reference of the command line is filled in from the code. And a page links to a
file of the repository as its readers there do, `../examples/serve_onnx.py`: the site gets a copy in `source/`.
"""

from __future__ import annotations

import inspect
import re
import shutil
from pathlib import Path
from typing import Any

from typer.main import get_command

from cacseg.cli import app

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "build" / "docs"  # docs_dir of mkdocs.yml
COMMANDS, MARK = "cli.md", "<!-- commands -->"
OUTSIDE = re.compile(r"\]\(\.\./([\w./-]+)\)")


def main() -> None:
    shutil.rmtree(TARGET, ignore_errors=True)
    shutil.copytree(ROOT / "docs", TARGET, ignore=shutil.ignore_patterns("records"))
    for page in TARGET.glob("*.md"):
        text = page.read_text()
        for name in OUTSIDE.findall(text):
            copy = TARGET / "source" / f"{name}.txt"  # which a browser shows
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy)
        text = OUTSIDE.sub(r"](source/\1.txt)", text)
        page.write_text(text.replace(MARK, "\n".join(command_pages())) if page.name == COMMANDS else text)


def command_pages() -> list[str]:
    """Every command as Markdown: what it does, its arguments, its options."""
    lines = []
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        lines += command_lines(f"cacseg {name}", command, 2)
        for below, one in getattr(command, "commands", {}).items():
            lines += command_lines(f"cacseg {name} {below}", one, 3)
    return lines


def command_lines(name: str, command: Any, level: int) -> list[str]:
    """A heading, the help, and a table of arguments and options."""
    heading, rows = f"{'#' * level} {name}", []
    for one in command.params:
        described = getattr(one, "help", None) or ""
        if one.param_type_name == "argument":
            name = (one.metavar or one.name).upper().replace("|", "or")
            rows.append(f"| `{name}` | {cell(described)} |")
        elif not getattr(one, "hidden", False):
            names = ", ".join(f"`{word}`" for word in (*one.opts, *one.secondary_opts))
            rows.append(f"| {names} | {cell(described)}{default_of(one)} |")
    table = ["| | |", "|---|---|", *rows] if rows else []
    return ["", heading, "", *help_lines(command.help or ""), "", *table]


def default_of(option: Any) -> str:
    """The default, where it says something."""
    value = option.default
    if (
        option.required
        or not option.show_default
        or isinstance(value, bool)
        or value in (None, "", (), [])
        or callable(value)
    ):
        return ""
    return f" Default: `{value}`."


def cell(text: str) -> str:
    """Plain text as Markdown shows it in a table; what stands between backticks is code already."""
    parts = " ".join(text.split()).split("`")
    parts[::2] = [re.sub(r"([|<>*_\[\]])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def help_lines(text: str) -> list[str]:
    r"""Paragraphs as they are; what follows `\b` keeps its lines, as code."""
    lines = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            lines += ["```text", *paragraph.split("\n")[1:], "```", ""]
        else:
            lines += [cell(paragraph), ""]
    return lines


if __name__ == "__main__":
    main()
