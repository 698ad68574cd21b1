"""`cacseg --help` and the help of every command."""

import re
import shlex

import pytest
import typer

from cacseg.cli import app
from cacseg.cli._groups import GroupedCommands
from command_line import run

ROOT = typer.main.get_command(app)
COMMANDS = {(name,): command for name, command in ROOT.commands.items() if not hasattr(command, "commands")} | {
    (group, name): command
    for group, inner in ROOT.commands.items()
    for name, command in getattr(inner, "commands", {}).items()
}
EXAMPLE = re.compile(r"^(?:cacseg|torchrun .* -m cacseg\.cli) (.*)$", re.MULTILINE)


def examples(command):
    """The arguments of each, without the remark behind it."""
    return [shlex.split(re.split(r"\s{2,}", line)[0]) for line in EXAMPLE.findall(command.help)]


def test_every_command_stands_below_a_heading_with_a_whole_sentence(capsys, monkeypatch):
    text = run("--help", capsys=capsys, monkeypatch=monkeypatch).out
    assert isinstance(ROOT, GroupedCommands)
    assert "Commands:" not in text
    for name in ROOT.commands:
        (line,) = re.findall(rf"^  {name} +(.*)$", text, re.MULTILINE)
        assert line.endswith(".")
        assert not line.endswith("...")  # cut to the width
    assert ROOT.commands["predict"].rich_help_panel == ROOT.commands["export"].rich_help_panel == "Use a model"


@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
def test_the_examples_of_a_command_are_commands(name):
    """Every option in them exists, and takes that value."""
    lines = examples(COMMANDS[name])
    assert lines, "no example"
    assert any(tuple(line[: len(name)]) == name for line in lines)
    for line in lines:
        length = 2 if tuple(line[:2]) in COMMANDS else 1
        command = COMMANDS[tuple(line[:length])]
        assert command.make_context(" ".join(line[:length]), line[length:]).params


def test_the_examples_of_cacseg_are_commands():
    for line in examples(ROOT):
        length = 2 if tuple(line[:2]) in COMMANDS else 1
        COMMANDS[tuple(line[:length])].make_context(line[0], line[length:])


@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
def test_a_wrong_option_is_named_without_a_traceback(name, capsys, monkeypatch):
    done = run(*name, "--no-such-option", capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 2
    assert "--no-such-option" in done.err
    assert "Traceback" not in done.err
