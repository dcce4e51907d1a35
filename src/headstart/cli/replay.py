"""``headstart replay``: what recorded traffic would hit, with another cache too."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from headstart.cli.recorded import (
    FormatOption,
    HashBlockSizeOption,
    ModelOption,
    NamedModel,
    StrictOption,
    WarmupOption,
    read_recorded,
)
from headstart.errors import HeadstartError, LabError
from headstart.lab.replay.capacity import Capacity
from headstart.lab.replay.costs import PRESET, CostModel
from headstart.lab.replay.html import render
from headstart.lab.replay.outcome import OPTIMAL
from headstart.lab.replay.points import INDEXES, ONLINE, POLICIES, ROUTINGS, Axes, names, parse_seqs
from headstart.lab.replay.report import fields
from headstart.lab.replay.run import block_sizes, run, warmup_requests
from headstart.lab.replay.tables import print_report

_CACHE, _LOAD, _OUTPUT = "Cache", "Load", "Output"
_FILE_WIDTH = 120
"""Columns where there is no terminal to fit: tables are not cut."""


def replay(
    traces: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACE", help="Files of recorded traffic, gzip and zstd too; - is standard input."
        ),
    ],
    format_: FormatOption = None,
    model: ModelOption = None,
    strict: StrictOption = False,
    hash_block_size: HashBlockSizeOption = None,
    warmup: WarmupOption = "0",
    capacity: Annotated[
        str,
        typer.Option(
            help="Several with commas: blocks (4096), tokens (2Mt), bytes (8GiB), a share of the trace's "
            "unique blocks (10%), unbounded.",
            rich_help_panel=_CACHE,
        ),
    ] = "1%,2%,5%,10%,20%,50%,unbounded",
    block_size: Annotated[
        str | None,
        typer.Option(
            help="Tokens in a block; several with commas.",
            show_default="16, or that of the trace's hash ids",
            rich_help_panel=_CACHE,
        ),
    ] = None,
    prefix_index: Annotated[
        str, typer.Option(help=f"{', '.join(INDEXES)}, several with commas, or all.", rich_help_panel=_CACHE)
    ] = "radix",
    policy: Annotated[
        str | None,
        typer.Option(
            help=f"Eviction policies: {', '.join(POLICIES)}, several with commas, or all.",
            show_default="lru,optimal",
            rich_help_panel=_CACHE,
        ),
    ] = None,
    kv_bytes_per_token: Annotated[
        int | None,
        typer.Option(
            help="Bytes of K and V per token, for capacities in bytes.",
            show_default="that of --model in 16 bits",
            min=1,
            rich_help_panel=_CACHE,
        ),
    ] = None,
    max_num_seqs: Annotated[
        str | None,
        typer.Option(
            help="Let so many requests overlap, as they came: running ones hold their blocks. Several with "
            "commas; none is one after the other.",
            show_default="none",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    replicas: Annotated[
        int, typer.Option(help="So many caches of that capacity, side by side.", min=1, rich_help_panel=_LOAD)
    ] = 1,
    costs: Annotated[
        str,
        typer.Option(
            help="How long an engine's steps take, for requests that overlap: name=seconds,…",
            show_default=str(PRESET),
            rich_help_panel=_LOAD,
        ),
    ] = "",
    routing: Annotated[
        str,
        typer.Option(
            help=f"How they share the requests: {', '.join(ROUTINGS)}, several with commas, or all.",
            rich_help_panel=_LOAD,
        ),
    ] = "round-robin",
    jobs: Annotated[
        int,
        typer.Option(help="Replay so many settings at a time, in processes.", min=1, rich_help_panel=_LOAD),
    ] = 1,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write a report for a browser into this file, too; it has no prompts' text.",
            dir_okay=False,
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print everything as JSON, and nothing else.", rich_help_panel=_OUTPUT),
    ] = False,
) -> None:
    """Replay recorded traffic through the cache core: what would it hit?

    Each setting, of all combinations that are asked for, gets the whole trace,
    without a model and without a GPU.  Reads traces of hash ids (Mooncake, Qwen's
    Bailian), request logs of OpenAI-compatible servers, ShareGPT conversations and
    token ids.

    For example:

        headstart replay trace.jsonl

        headstart replay requests.jsonl --model ./my-model --capacity 4GiB,8GiB,16GiB

        headstart replay trace.jsonl.gz --policy all --warmup 50% --jobs 4

        headstart replay trace.jsonl --capacity 5%,10% --json > replay.json
    """
    console = Console(stderr=True)
    try:
        seqs = parse_seqs(max_num_seqs)
        axes = Axes(
            policies=_policies(policy, alone=None in seqs and replicas == 1),
            indexes=names(prefix_index, INDEXES),
            capacities=Capacity.parse_list(capacity),
            max_num_seqs=seqs,
            replicas=replicas,
            routings=names(routing, ROUTINGS),
        )
        named = NamedModel(model)
        trace = read_recorded(traces, format_, named, console, strict=strict, hash_block_size=hash_block_size)
        with _progress("replaying", console) as bar:
            report = run(
                trace,
                axes,
                block_sizes(block_size, trace),
                costs=CostModel.parse(costs),
                warmup=warmup_requests(warmup, trace),
                kv_bytes_per_token=kv_bytes_per_token or named.kv_bytes_per_token(axes.capacities),
                jobs=jobs,
                on_estimate=lambda expected: console.print(f"This will take {expected}."),
                replayed=lambda points: _told(bar, len(points) * len(trace.requests)),
            )
        if html is not None:
            _write(html, render(report, trace))
    except HeadstartError as error:
        typer.echo(f"headstart replay: {error}", err=True)
        raise typer.Exit(1) from error
    if as_json:
        typer.echo(json.dumps(fields(report), indent=2))
    else:
        print_report(report, _output())


def _policies(policy: str | None, *, alone: bool) -> list[str]:
    """The optimum is defined for one cache and one request after the other: else it is not among all."""
    if alone:
        return names(policy or f"lru,{OPTIMAL}", POLICIES)
    return names(policy or "lru", ONLINE)


def _write(path: Path, page: str) -> None:
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise LabError(f"{path} cannot be written: {error.strerror}") from error


def _output() -> Console:
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _FILE_WIDTH
    return console


def _progress(description: str, console: Console) -> Progress:
    columns = (TextColumn(description), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _told(bar: Progress, total: int | None) -> Callable[[int], None]:
    task = bar.add_task("", total=total)
    return lambda done: bar.update(task, completed=done)
