"""The list of commands in `cacseg --help`, grouped by what people do."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from cacseg.cli._console import typer

START, DATA, TRAIN = "Start here", "Look at data", "Train and compare"
RESULTS, USE, REFERENCE = "Look at results", "Use a model", "Models, weights, timings"


class GroupedCommands(TyperGroup):
    """Lists each command below its heading, the `rich_help_panel` that it was added with."""

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        width = max(map(len, commands))
        headings: dict[str, list[tuple[str, str]]] = {
            heading: [] for heading in (START, DATA, TRAIN, RESULTS, USE, REFERENCE)
        }
        for name, command in commands.items():
            words = command.get_short_help_str(formatter.width - width - 6)
            headings[command.rich_help_panel].append((name.ljust(width), words))
        for heading, rows in headings.items():
            with formatter.section(heading):
                formatter.write_dl(rows)
