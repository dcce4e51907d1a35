"""``headstart audit``: a checklist against a live server."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headstart.errors import HeadstartError
from headstart.lab.audit import Line, Target, Word
from headstart.lab.audit import audit as run_audit

_COLOURS = {Word.OK: "green", Word.WARN: "yellow", Word.FAIL: "red", Word.UNKNOWN: "dim"}


def audit(
    url: Annotated[str, typer.Argument(help="The server: http://127.0.0.1:8000.")],
    model: Annotated[
        str | None, typer.Option(help="Which model to ask.", show_default="the first it lists")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="HEADSTART_API_KEY", help="Sent as bearer token.")
    ] = None,
    other_api_key: Annotated[
        str | None,
        typer.Option(
            envvar="HEADSTART_OTHER_API_KEY",
            help="Another caller's: what the first cached must be no hit for it.",
        ),
    ] = None,
    admin_api_key: Annotated[
        str | None,
        typer.Option(
            envvar="HEADSTART_ADMIN_API_KEY", help="For /metrics.", show_default="the same as --api-key"
        ),
    ] = None,
    metrics_url: Annotated[
        str | None,
        typer.Option(
            help="Where /metrics is, if not below URL: the address of headstart's --admin-port.",
            show_default="below URL",
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that an answer may take.", min=0.001)] = 120.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as JSON, and nothing else.")
    ] = False,
) -> None:
    """Check a live server: does its prefix cache do what you believe it does?

    Works with headstart, vLLM and SGLang, as far as their endpoints tell.  Does
    the template make the same tokens of the same messages, do equal prompts hit,
    does usage say so, do other salts and other keys not hit, do block size, KV
    memory and batching limits fit the traffic?

    About ten requests of one token each are sent, with random prompts that touch
    nobody's cache.  The exit code is 1 if a line says fail.

    For example:

        headstart audit http://127.0.0.1:8000

        headstart audit http://gpu-box:8000 --api-key $ONE --other-api-key $ANOTHER
    """
    console = Console(highlight=False)
    try:
        with Target(
            url,
            model=model,
            api_key=api_key,
            other_api_key=other_api_key,
            admin_api_key=admin_api_key,
            metrics=metrics_url,
            timeout=timeout,
        ) as target:
            if not as_json:
                console.print(f"[bold]{escape(target.model)}[/] at {escape(target.url)}\n")
            found = run_audit(target, heard=None if as_json else lambda line: _show(line, console))
    except HeadstartError as error:
        typer.echo(f"headstart audit: {error}", err=True)
        raise typer.Exit(1) from error
    if as_json:
        typer.echo(json.dumps(found.fields(), indent=2))
    else:
        _sum_up(found.lines, found.engine, console)
    if found.worst is Word.FAIL:
        raise typer.Exit(1)


def _show(line: Line, console: Console) -> None:
    said = [f"[bold]{line.name}[/]: {escape(line.why)}"]
    if line.change and line.word is not Word.OK:
        said.append(f"[dim]→ {escape(line.change)}[/]")
    words = [f"[{_COLOURS[line.word]}]{line.word:<7}[/]", *[" " * 7] * (len(said) - 1)]
    if not console.is_terminal:  # whole lines, for grep
        for word, text in zip(words, said, strict=True):
            console.print(f"{word}  {text}", soft_wrap=True)
        return
    grid = Table.grid(padding=(0, 2))
    for word, text in zip(words, said, strict=True):
        grid.add_row(word, text)
    console.print(grid)


def _sum_up(lines: tuple[Line, ...], engine: str | None, console: Console) -> None:
    counts = [f"{count} {word}" for word in Word if (count := sum(line.word is word for line in lines))]
    console.print(f"\n{', '.join(counts)}" + ("" if engine is None else f"; the server is {engine}"))
