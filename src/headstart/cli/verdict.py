"""``headstart verdict``: is prefix caching worth turning on for this traffic?"""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from headstart.cli.recorded import (
    FormatOption,
    HashBlockSizeOption,
    ModelOption,
    NamedModel,
    StrictOption,
    read_recorded,
)
from headstart.config import PrefixIndexName
from headstart.errors import HeadstartError
from headstart.lab.replay.capacity import Capacity
from headstart.lab.verdict import SECONDS_PER_TOKEN, Verdict, Word, judge

_COLOURS = {Word.GOOD: "green", Word.MARGINAL: "yellow", Word.BAD: "red", Word.UNKNOWN: "dim"}


def verdict(
    files: Annotated[
        list[str],
        typer.Argument(metavar="LOG…", help="Recorded traffic, in any format; - is standard input."),
    ],
    trace_format: FormatOption = None,
    model: ModelOption = None,
    capacity: Annotated[
        str | None,
        typer.Option(
            help="The pool: blocks (4096), tokens (500kt; vLLM logs its KV cache size so), bytes (8GiB), "
            "a share of the trace's unique blocks (10%).",
            show_default="unknown, so that it holds everything",
        ),
    ] = None,
    kv_bytes_per_token: Annotated[
        int | None,
        typer.Option(
            help="Bytes of K and V per token, for a capacity in bytes.",
            show_default="that of --model in 16 bits",
            min=1,
        ),
    ] = None,
    block_size: Annotated[
        int | None,
        typer.Option(help="Tokens in a block.", min=1, show_default="16, or what a hash id stands for"),
    ] = None,
    prefix_index: Annotated[
        PrefixIndexName,
        typer.Option(help="radix shares to the token, as SGLang; hash shares whole blocks, as vLLM."),
    ] = "radix",
    seconds_per_token: Annotated[
        float,
        typer.Option(help="What computing one prompt token takes on your machine.", min=0.0),
    ] = SECONDS_PER_TOKEN,
    hash_block_size: HashBlockSizeOption = None,
    strict: StrictOption = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as JSON, and nothing else.")
    ] = False,
) -> None:
    """Is prefix caching worth turning on for this traffic?

    Five variables are computed and judged, each by a threshold that is shown:
    how much of the traffic begins like an earlier prompt; how long such a
    beginning is against a block; how many blocks these take against the pool;
    and how soon one comes back against how long the pool keeps it.  Then the
    traffic is replayed: the verdict is what hits, and what that saves of the
    time to the first token.

    For example:

        headstart verdict requests.jsonl

        headstart verdict trace.jsonl --capacity 20000 --seconds-per-token 0.0001
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    try:
        pool = None if capacity is None else Capacity.parse(capacity)
        named = NamedModel(model)
        trace = read_recorded(
            files, trace_format, named, console, strict=strict, hash_block_size=hash_block_size
        )
        if pool is not None and kv_bytes_per_token is None:
            kv_bytes_per_token = named.kv_bytes_per_token([pool])
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            replaying = bar.add_task("replaying", total=2 * len(trace.requests))
            found = judge(
                trace,
                block_size=block_size,
                capacity=pool,
                kv_bytes_per_token=kv_bytes_per_token,
                prefix_index=prefix_index,
                seconds_per_token=seconds_per_token,
                progress=lambda done: bar.update(replaying, completed=done),
            )
    except HeadstartError as error:
        typer.echo(f"headstart verdict: {error}", err=True)
        raise typer.Exit(1) from error
    if as_json:
        typer.echo(json.dumps(found.fields(), indent=2))
        return
    _show(found, Console(highlight=False))


def _show(found: Verdict, console: Console) -> None:
    rates = found.rates
    requests, tokens = f"{rates.num_requests:,} requests", f"{rates.num_prompt_tokens:,} prompt tokens"
    table = Table(title=f"{found.trace_name}: {requests}, {tokens}", title_justify="left", show_lines=True)
    table.add_column("")
    for header in ("here", "good", "marginal", "verdict"):
        table.add_column(header, justify="right", no_wrap=True)
    for one in found.variables:
        table.add_row(
            f"{one.what}\n[dim]{escape(one.shown)}[/]",
            one.figure,
            one.limit(one.limits.good),
            one.limit(one.limits.marginal),
            f"[{_COLOURS[one.word]}]{one.word}[/]",
        )
    console.print(table)
    full, some = rates.request_full_hit_rate, rates.request_any_hit_rate
    console.print(
        f"Replayed: {rates.token_hit_rate:.1%} of tokens hit, {full:.1%} of requests wholly, {some:.1%} at "
        f"least in part. {found.total_saved_s:,.1f} s of computing saved in all.\n"
    )
    console.print(f"[bold {_COLOURS[found.word]}]{found.word}[/]  {escape(found.sentence)}\n")
    for note in found.notes:
        console.print(f"[dim]{escape(note)}[/]")
