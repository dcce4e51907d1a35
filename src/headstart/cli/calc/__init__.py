"""``headstart calc``: what fits, what it costs, what blocks lose.  One file for each calculator."""

from __future__ import annotations

import typer

from headstart.cli.calc.alignment import alignment
from headstart.cli.calc.cost import cost
from headstart.cli.calc.vram import vram
from headstart.cli.command import Command

app = typer.Typer(
    name="calc",
    help="Calculate what fits into memory, what hits are worth in money, and what blocks lose.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
for command in (vram, cost, alignment):
    app.command(cls=Command)(command)
