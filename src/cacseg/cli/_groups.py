"""The list of commands in `cacseg --help`, grouped by what people do."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

START, DATA, TRAIN = "Start here", "Look at data", "Train and compare"
RESULTS, USE, REFERENCE = "Look at results", "Use a model", "Models, weights, timings"


class TrainCommand(TyperCommand):
    """`cacseg train`, whose error about a second word names --root: it is often the folder of the data."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.allow_extra_args = True
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            ctx.fail(f"there is one RECIPE; got {rest[0]!r} too. Give the data with --root {rest[0]}.")
        return rest


class GroupedCommands(TyperGroup):
    """Lists each command below its heading, the `rich_help_panel` that it was added with."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands: dict[str, Any] = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
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
