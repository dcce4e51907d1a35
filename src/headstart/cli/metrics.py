"""``headstart metrics``: what a live server's prefix cache does right now, and what that means."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from headstart.errors import HeadstartError
from headstart.lab.metrics import Reading, Scraper, Thresholds, metrics_url, readings, watch

_TICK = 0.1


def metrics(
    url: Annotated[str, typer.Argument(help="The server, or its metrics page: http://127.0.0.1:8000.")],
    window: Annotated[
        float, typer.Option(help="Seconds between the two looks.", min=0.001, max=86_400.0)
    ] = 10.0,
    high_usage: Annotated[
        float, typer.Option(help="KV usage from which it counts as high.", min=0.0, max=1.0)
    ] = 0.8,
    high_rate: Annotated[
        float, typer.Option(help="Token hit rate from which it counts as high.", min=0.0, max=1.0)
    ] = 0.5,
    api_key: Annotated[str | None, typer.Option(help="Sent as bearer token.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that may pass without a byte.", min=0.001)] = 10.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as JSON, and nothing else.")
    ] = False,
) -> None:
    """Read a live server's metrics twice, and say what its prefix cache does.

    Works with vLLM, SGLang and headstart.  Counters are compared over a window,
    since a rate over the server's whole life hides what happens now.  Token hit
    rate and KV usage are then read together:

    usage high, rate low: capacity; both high: routing or prompts; both low:
    nothing shared, or blocks too big; usage low, rate high: healthy.

    For example:

        headstart metrics http://127.0.0.1:8000

        headstart metrics gpu-box:30000 --window 60 --json
    """
    try:
        limits = Thresholds(usage=high_usage, rate=high_rate)
        with Scraper(metrics_url(url), api_key=api_key, timeout=timeout) as scraper:
            seen = watch(scraper, window, _wait)
        found = readings(seen, limits)
    except HeadstartError as error:
        typer.echo(f"headstart metrics: {error}", err=True)
        raise typer.Exit(1) from error
    if as_json:
        typer.echo(json.dumps({"url": seen.source, "models": [one.fields() for one in found]}, indent=2))
        return
    console = Console(highlight=False)
    for one in found:
        _show(one, seen.source, console)


def _wait(seconds: float) -> None:
    console = Console(stderr=True)
    columns = (TextColumn("watching"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=seconds)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(_TICK, left))
            bar.update(task, completed=seconds - left)


def _show(one: Reading, source: str, console: Console) -> None:
    engines = f", {one.num_engines} engines" if one.num_engines > 1 else ""
    model = "" if one.model is None else f": {one.model}"
    console.print(
        f"[bold]{one.engine}[/] at {escape(source)}{escape(model)}{engines}, {one.seconds:,.1f} s\n"
    )
    table = Table.grid(padding=(0, 2))
    for name, figure, remark in _rows(one):
        table.add_row(f"[dim]{name}[/]", figure, f"[dim]{escape(remark)}[/]")
    console.print(table)
    console.print(f"\n[bold]{one.state}[/]  {escape(one.sentence)}")
    for note in one.notes:
        console.print(escape(note))
    console.print()


def _rows(one: Reading) -> list[tuple[str, str, str]]:
    """What is known: name, figure, and what it is made of."""
    limits = one.thresholds
    rows = [
        ("token hit rate", _share(one.token_hit_rate), f"high from {limits.rate:.0%}{_tokens(one)}"),
        ("since the start", _share(one.lifetime_hit_rate), ""),
        ("KV usage", _share(one.kv_usage), f"high from {limits.usage:.0%}{_ends(one)}"),
        ("requests", _count(one.requests), "that ended"),
        ("running", _count(one.running), "at the end"),
        ("waiting", _count(one.waiting), "at the end"),
        ("preemptions", _count(one.preemptions), ""),
        ("evicted", _count(one.evicted), one.evicted_unit),
        ("from outside", _count(one.external_hit_tokens), "tokens by a KV connector, not in the rate"),
        ("prompt tokens/s", _count(_per_second(one)), ""),
        ("in the queue", _seconds(one.queue_time_s), "mean"),
        ("first token", _seconds(one.first_token_s), "mean"),
    ]
    missed = sum(one.misses.values())
    rows += [
        (f"missed: {reason}", f"{tokens / missed:.1%}", f"of what missed; {tokens:,.0f} tokens")
        for reason, tokens in one.misses.items()
    ]
    rows += [
        (f"at {capacity} the pool", f"{rate:.1%}", "estimated token hit rate, of about 1,000 requests")
        for capacity, rate in one.estimates.items()
    ]
    return [row for row in rows if row[1]]


def _tokens(one: Reading) -> str:
    if one.query_tokens is None or one.hit_tokens is None:
        return ""
    return f"; {one.hit_tokens:,.0f} of {one.query_tokens:,.0f} tokens"


def _ends(one: Reading) -> str:
    if one.kv_usage_before is None or one.kv_usage_after is None:
        return ""
    return f"; {one.kv_usage_before:.1%}, then {one.kv_usage_after:.1%}"


def _per_second(one: Reading) -> float | None:
    return None if one.prompt_tokens is None else one.prompt_tokens / one.seconds


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.2f} s" if value >= 1 else f"{value * 1000:,.0f} ms"
