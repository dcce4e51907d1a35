"""``headstart demo``: what prefix caching saves, shown with two questions."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import resources
from typing import Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headstart.cli.pull import fetch_progress
from headstart.errors import HeadstartError
from headstart.lab.load.client import connect
from headstart.lab.load.local import running_server, serve_command
from headstart.lab.load.timing import Timing
from headstart.model import source

QUESTIONS = ("Until when are you open on Thursdays?", "Can I bring my own food?")
_ANSWER_TOKENS = 32
_NUM_BLOCKS = 1024  # of KV memory, which is plenty for three chats; the default would take what is free


def demo(
    model: Annotated[
        str | None,
        typer.Option(
            help="A built-in name, a directory or organisation/model of Hugging Face, or a GGUF file; with "
            "--base-url, what that server calls its model.",
            show_default="smollm2-135m; with --base-url, the first that is listed",
        ),
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option(
            help="Ask a server that runs already; its address, with or without /v1.",
            show_default="start one, and stop it at the end",
        ),
    ] = None,
) -> None:
    """Show what prefix caching saves, with two questions behind one long system prompt.

    The first question is cold: the server has never seen the system prompt and
    computes all of it.  The second is warm: it comes behind the same system
    prompt, so little more than the question itself is computed.

    For example:

        headstart demo

        headstart demo --base-url http://127.0.0.1:8000
    """
    status = Console(stderr=True)
    try:
        if base_url is None:
            with _own_server(model or "smollm2-135m", status) as url:
                cold, warm = _ask(url, None, status)
        else:
            cold, warm = _ask(base_url, model, status)
    except HeadstartError as error:
        typer.echo(f"headstart demo: {error}", err=True)
        raise typer.Exit(1) from error
    _show(cold, warm, Console(highlight=False))


@contextmanager
def _own_server(model: str, status: Console) -> Iterator[str]:
    """The address of a server of our own.  The model is fetched here, where its progress can be seen."""
    with fetch_progress() as progress:
        source.resolve(model, progress=progress)
    command = serve_command(model, "--num-blocks", str(_NUM_BLOCKS))
    with ExitStack() as until_the_end:
        with status.status(f"starting a server with {model} …"):
            url = until_the_end.enter_context(running_server(command))
        yield url


def _ask(base_url: str, model: str | None, status: Console) -> tuple[Timing, Timing]:
    """How the cold and the warm question went."""
    handbook = resources.files("headstart.cli").joinpath("demo_prompt.txt").read_text(encoding="utf-8")
    # A server that runs already may know the handbook from an earlier demo; it cannot know this number.
    system = f"Edition {secrets.token_hex(4)}.\n\n{handbook}"
    # As long as the others and equal to them in nothing: what a process does only once is done by it.
    warm_up = " ".join(reversed(handbook.split()))

    async def ask() -> tuple[Timing, Timing]:
        async with connect(base_url, model=model) as server:
            await server.chat(_messages(warm_up, "Hello!"), 1)
            cold = await server.chat(_messages(system, QUESTIONS[0]), _ANSWER_TOKENS)
            warm = await server.chat(_messages(system, QUESTIONS[1]), _ANSWER_TOKENS)
            return cold, warm

    with status.status("asking one question cold, then another one warm …"):
        return asyncio.run(ask())


def _messages(system: str, question: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]


def _show(cold: Timing, warm: Timing, console: Console) -> None:
    table = Table()
    for header in ("", "first token", "prompt tokens", "from the cache", "computed"):
        table.add_column(header, justify="right" if header else "left")
    for name, timing in (("cold", cold), ("warm", warm)):
        prompt, cached = timing.usage.prompt_tokens, timing.usage.cached_tokens
        computed = None if prompt is None or cached is None else prompt - cached
        table.add_row(name, _ms(timing), *map(_number, (prompt, cached, computed)))
    for name, question, timing in (("cold", QUESTIONS[0], cold), ("warm", QUESTIONS[1], warm)):
        console.print(f"[bold]{name}[/]  {question}")
        console.print(Padding(Text(_first_line(timing.text), style="dim"), (0, 0, 0, 6), expand=False))
    console.print()
    console.print(table)
    console.print(explain(cold, warm))


def _first_line(answer: str) -> str:
    return next(iter(answer.strip().splitlines()), "(no answer)")


def explain(cold: Timing, warm: Timing) -> str:
    """One sentence, for people, on why the warm question was answered sooner, or was not."""
    prompt, cached = warm.usage.prompt_tokens, warm.usage.cached_tokens
    times = f"its first token came after {_ms(warm)}, the cold one's after {_ms(cold)}"
    if prompt is None or cached is None:
        return f"The server does not say what it took from its cache for the warm question; {times}."
    if cached == 0:
        return f"The server found nothing of the warm prompt in its cache and computed all of it: {times}."
    ratio = cold.first_token / warm.first_token
    result = f", {ratio:.1f} times sooner" if ratio > 1 else ", no sooner"
    return (
        f"Of the warm prompt's {prompt:,} tokens the server had {cached:,} in its cache, because the cold "
        f"prompt began with the same ones, and computed only {prompt - cached:,}: {times}{result}."
    )


def _ms(timing: Timing) -> str:
    return f"{1000 * timing.first_token:,.0f} ms"


def _number(value: int | None) -> str:
    return "n/a" if value is None else f"{value:,}"
