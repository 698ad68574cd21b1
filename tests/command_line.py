"""The command line within the tests' own process: starting another costs seconds."""

import sys
from typing import NamedTuple

import pytest
import torch

from cacseg.cli import main


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Silent:
    """In the place of capsys, which lives as long as one test."""

    def readouterr(self):
        return "", ""


def run(*arguments, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["cacseg", *map(str, arguments)])
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    capsys.readouterr()
    threads = torch.get_num_threads()  # a command may set them, as the process is usually its own
    try:
        with pytest.raises(SystemExit) as stop:
            main()
    finally:
        torch.set_num_threads(threads)
    out, err = capsys.readouterr()
    return Done(stop.value.code or 0, out, err)
