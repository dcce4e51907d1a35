"""The ``headstart`` command.  One short file per subcommand; none imports torch."""

from __future__ import annotations

import typer

from headstart.cli.bench import bench
from headstart.cli.demo import demo
from headstart.cli.pull import pull
from headstart.cli.serve import serve

app = typer.Typer(
    name="headstart",
    help="Serve language models and never compute the same prompt prefix twice.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (serve, pull, demo, bench):
    app.command()(command)


def main() -> None:
    """The console script's entry point."""
    app()
