"""``headstart explain --live``: why one request of a running server missed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headstart.errors import HeadstartError
from headstart.lab.explain.live import LiveExplanation, LivePrompt, ask, explain_url


def explain_live(url: str, request_ids: Sequence[str], *, api_key: str | None, as_json: bool) -> None:
    """Print why each of the requests missed; exits with 1 where a server does not say."""
    try:
        where = explain_url(url)
        found = [ask(where, request_id, api_key=api_key) for request_id in request_ids]
    except HeadstartError as error:
        typer.echo(f"headstart explain: {error}", err=True)
        raise typer.Exit(1) from error
    if as_json:
        told = [msgspec.to_builtins(one) for one in found]
        typer.echo(msgspec.json.format(msgspec.json.encode(told), indent=2).decode())
        return
    console = Console(highlight=False)
    for one in found:
        _show(one, console)


def _show(explanation: LiveExplanation, console: Console) -> None:
    for prompt in explanation.prompts:
        number = f", prompt {prompt.index}" if len(explanation.prompts) > 1 else ""
        console.print(f"[bold]{escape(explanation.request_id)}[/]{number}")
        if prompt.status == "pending":
            console.print("not reported\n")
        else:
            _show_prompt(prompt, console)
    if explanation.note is not None:
        console.print(escape(explanation.note))


def _show_prompt(prompt: LivePrompt, console: Console) -> None:
    share = prompt.hit_tokens / max(1, prompt.prompt_tokens)
    console.print(
        f"{prompt.prompt_tokens:,} prompt tokens, {prompt.hit_tokens:,} hit ({share:.1%}), "
        f"{prompt.missed_tokens:,} computed\n"
    )
    table = Table.grid(padding=(0, 2))
    for one in prompt.reasons:
        table.add_row(f"[bold]{escape(one.reason)}[/]", f"{one.tokens:,}", escape(one.meaning))
        table.add_row("", "", f"[dim]{escape(one.advice)}[/]")
    console.print(table)
    if prompt.first_difference_at is not None:
        console.print(f"\nThe first difference is at token {prompt.first_difference_at:,}.")
    if prompt.evicted_s is not None:
        console.print(f"\nWhat was evicted had gone {prompt.evicted_s:,.1f} s before.")
    console.print()
