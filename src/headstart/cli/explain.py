"""``headstart explain``: why the hit rate is what it is, and what to change."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from headstart.cli.explain_live import explain_live
from headstart.cli.recorded import (
    FormatOption,
    HashBlockSizeOption,
    ModelOption,
    NamedModel,
    StrictOption,
    WarmupOption,
    read_recorded,
)
from headstart.config import PolicyName, PrefixIndexName
from headstart.errors import ConfigError, HeadstartError
from headstart.lab.explain.explain import explain as explain_trace
from headstart.lab.explain.report import fields
from headstart.lab.explain.tables import print_explanation
from headstart.lab.replay.bounds import bounds_of
from headstart.lab.replay.capacity import Capacity
from headstart.lab.replay.outcome import Setting
from headstart.lab.replay.routers import Routing
from headstart.lab.replay.run import block_sizes, warmup_requests

_CACHE, _OUTPUT, _LIVE = "Cache", "Output", "One live request"


def _share(text: str) -> float | None:
    """``5%`` as 0.05; None for ``none``."""
    if text.strip().lower() == "none":
        return None
    number = text.strip().removesuffix("%")
    if not number.replace(".", "", 1).isdigit() or not 0 <= float(number) <= 100:
        raise typer.BadParameter("a share of the prompt tokens, as 5%, or none")
    return float(number) / 100


def _may_quote(error: HeadstartError) -> bool:
    """Whether it may say something of what a log holds: not of options, nor of files that are not there."""
    return not isinstance(error, ConfigError) and not isinstance(error.__cause__, OSError)


def explain(
    logs: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG…",
            help="Request logs or traces of any format, gzip and zstd too; - is standard input.  With --live "
            "ids of requests.",
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
            help="Blocks (4096), tokens (2Mt), bytes (8GiB, of --model), a share of the log's unique "
            "blocks (10%), unbounded.",
            rich_help_panel=_CACHE,
        ),
    ] = "unbounded",
    block_size: Annotated[
        int | None,
        typer.Option(
            help="Tokens in a block.",
            show_default="16, or that of the log's hash ids",
            min=1,
            rich_help_panel=_CACHE,
        ),
    ] = None,
    prefix_index: Annotated[
        PrefixIndexName,
        typer.Option(
            help="radix shares to the token, as SGLang; hash shares whole blocks, as vLLM.",
            rich_help_panel=_CACHE,
        ),
    ] = "radix",
    policy: Annotated[
        PolicyName, typer.Option(help="What goes first when the cache is full.", rich_help_panel=_CACHE)
    ] = "lru",
    max_num_seqs: Annotated[
        int | None,
        typer.Option(
            help="So many requests ran at once, and held their blocks.",
            show_default="one after the other",
            min=1,
            rich_help_panel=_CACHE,
        ),
    ] = None,
    replicas: Annotated[
        int,
        typer.Option(help="So many caches of that capacity, side by side.", min=1, rich_help_panel=_CACHE),
    ] = 1,
    routing: Annotated[
        Routing, typer.Option(help="How they shared the requests.", rich_help_panel=_CACHE)
    ] = Routing.ROUND_ROBIN,
    fail_on: Annotated[
        str,
        typer.Option(
            metavar="SHARE%|none",
            help="Exit with 2 if a finding costs at least this share of the prompt tokens.",
            rich_help_panel=_OUTPUT,
        ),
    ] = "5%",
    top: Annotated[
        int | None,
        typer.Option(
            help="Show so many findings, the dearest.", show_default="all", min=1, rich_help_panel=_OUTPUT
        ),
    ] = None,
    privacy: Annotated[
        bool,
        typer.Option("--privacy", help="Write no text of prompts anywhere.", rich_help_panel=_OUTPUT),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print everything as JSON, and nothing else.", rich_help_panel=_OUTPUT),
    ] = False,
    live: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Ask this headstart server about your own requests instead, by the ids of their answers.",
            rich_help_panel=_LIVE,
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="HEADSTART_API_KEY",
            show_default=False,
            help="Sent to it as bearer token.",
            rich_help_panel=_LIVE,
        ),
    ] = None,
) -> None:
    """Why is the hit rate of this traffic what it is, and what should change?

    The log is replayed, each missed token gets a reason, and whatever costs hits is
    looked for: clocks, ids and names in front of stable text; tools, examples and
    JSON keys in ever other orders; drifting white space and template switches;
    reasoning that is dropped from the history; too little room; and more.  Each
    finding has its price in tokens, and the hit rate with its fix, which is tried by
    replaying the rewritten traffic.

    For programs: the exit code is 0 if no finding costs --fail-on, 2 if one does,
    and 1 if the log cannot be read.  New text, which nobody can mend, does not count.

    For example:

        headstart explain requests.jsonl

        headstart explain requests.jsonl.gz --model ./my-model --prefix-index hash --capacity 20000

        headstart explain requests.jsonl --privacy --json --fail-on none > why.json

        headstart explain --live http://127.0.0.1:8000 chatcmpl-0c2f1d
    """
    if live is not None:
        explain_live(live, logs, api_key=api_key, as_json=as_json)
        return
    least = _share(fail_on)
    console = Console(stderr=True)
    named = NamedModel(model)
    try:
        room = Capacity.parse(capacity)
        trace = read_recorded(logs, format_, named, console, strict=strict, hash_block_size=hash_block_size)
        [size] = block_sizes(None if block_size is None else str(block_size), trace)
        bytes_per_token = named.kv_bytes_per_token([room])
        blocks = room.blocks(size, bounds_of(trace, size).num_unique_blocks, bytes_per_token)
        setting = Setting(policy, prefix_index, size, blocks, max_num_seqs, replicas, routing)
        with _bar(console, SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()) as bar:
            task = bar.add_task("")
            explanation = explain_trace(
                trace,
                setting,
                named.reader_of(trace),
                privacy=privacy,
                warmup=warmup_requests(warmup, trace),
                bytes_per_token=bytes_per_token,
                progress=lambda doing: bar.update(task, description=doing),
            )
    except HeadstartError as error:
        why = (
            "this cannot be explained; without --privacy it is said why"
            if privacy and _may_quote(error)
            else error
        )
        typer.echo(f"headstart explain: {why}", err=True)
        raise typer.Exit(1) from error
    if as_json:
        typer.echo(json.dumps(fields(explanation), indent=2))
    else:
        print_explanation(explanation, Console(highlight=False), most=top)
    if least is not None and any(
        finding.kind.is_fault and finding.share_lost >= least for finding in explanation.findings
    ):
        raise typer.Exit(2)


def _bar(console: Console, *columns: ProgressColumn) -> Progress:
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
