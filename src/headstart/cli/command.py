"""What all subcommands have in common."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand


class Command(TyperCommand):
    """A subcommand that tells a wrong value in one sentence, without the preamble of typer's validator."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer's."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise
