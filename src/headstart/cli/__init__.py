"""The ``headstart`` command.  One short file per subcommand; none imports torch."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from headstart.cli.audit import audit
from headstart.cli.bench import bench
from headstart.cli.calc import app as calc
from headstart.cli.command import Command
from headstart.cli.demo import demo
from headstart.cli.explain import explain
from headstart.cli.lint import lint
from headstart.cli.metrics import metrics
from headstart.cli.pull import pull
from headstart.cli.replay import replay
from headstart.cli.serve import serve
from headstart.cli.verdict import verdict
from headstart.cli.verify_log import verify_log

app = typer.Typer(
    name="headstart",
    help="Serve language models and never compute the same prompt prefix twice.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"headstart {version('headstart')}")
        raise typer.Exit


@app.callback()
def root(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Say which version it is."),
    ] = False,
) -> None:
    """Serve language models and never compute the same prompt prefix twice."""


for command in (serve, pull, demo, bench, replay, verdict, metrics, audit, verify_log, lint, explain):
    app.command(cls=Command)(command)
app.add_typer(calc)


def main() -> None:
    """The console script's entry point."""
    app()
