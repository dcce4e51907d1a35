"""``headstart explain``: why the hit rate is what it is, and what to change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from headstart.cli.pull import fetch_progress
from headstart.config import ModelConfig, PrefixIndexName
from headstart.errors import HeadstartError
from headstart.lab.explain.explain import explain as explain_trace
from headstart.lab.explain.report import fields
from headstart.lab.explain.tables import print_explanation
from headstart.lab.replay.bounds import bounds_of
from headstart.lab.replay.capacity import Capacity
from headstart.lab.replay.outcome import Setting
from headstart.lab.replay.run import block_sizes, warmup_requests
from headstart.lab.traces.read import read_traces
from headstart.lab.traces.texts import PromptReader
from headstart.lab.traces.trace import Trace, TraceFormat
from headstart.model.source import resolve
from headstart.model.spec import read_spec

_LOG, _CACHE, _OUTPUT = "Log", "Cache", "Output"
_BYTES_PER_ELEMENT = 2
"""Of K and V: bfloat16 or float16, which engines keep."""


def _share(text: str) -> float | None:
    """``5%`` as 0.05; None for ``none``."""
    if text.strip().lower() == "none":
        return None
    number = text.strip().removesuffix("%")
    if not number.replace(".", "", 1).isdigit() or not 0 <= float(number) <= 100:
        raise typer.BadParameter("a share of the prompt tokens, as 5%, or none")
    return float(number) / 100


def explain(
    logs: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG…",
            help="Request logs or traces of any format, gzip and zstd too; - is standard input.",
        ),
    ],
    format_: Annotated[
        TraceFormat | None,
        typer.Option(
            "--format", help="What the files are.", show_default="told by their lines", rich_help_panel=_LOG
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Whose tokenizer and chat template make prompts of requests, and text of token ids: a "
            "built-in name, a directory, a GGUF file or a hub id.",
            show_default="smollm2-135m for text, none for token ids",
            rich_help_panel=_LOG,
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Stop at the first line that cannot be read, instead of counting it.",
            rich_help_panel=_LOG,
        ),
    ] = False,
    warmup: Annotated[
        str,
        typer.Option(
            help="Requests that fill the cache and do not count: a number, or a share (50%).",
            rich_help_panel=_LOG,
        ),
    ] = "0",
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
    """
    least = _share(fail_on)
    console = Console(stderr=True)
    reader = _Reader(model)
    try:
        room = Capacity.parse(capacity)
        trace = _read(logs, format_, reader, console, strict=strict)
        [size] = block_sizes(None if block_size is None else str(block_size), trace)
        bytes_per_token = _kv_bytes(model)
        blocks = room.blocks(size, bounds_of(trace, size).num_unique_blocks, bytes_per_token)
        setting = Setting(prefix_index=prefix_index, block_size=size, capacity_blocks=blocks)
        with _bar(console, SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()) as bar:
            task = bar.add_task("")
            explanation = explain_trace(
                trace,
                setting,
                reader.used_for(trace),
                privacy=privacy,
                warmup=warmup_requests(warmup, trace),
                bytes_per_token=bytes_per_token,
                progress=lambda doing: bar.update(task, description=doing),
            )
    except HeadstartError as error:
        why = "this cannot be explained; without --privacy it is said why" if privacy else error
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


class _Reader:
    """The model's tokenizer, made when something first needs it."""

    def __init__(self, model: str | None) -> None:
        self._model = model
        self._made: PromptReader | None = None

    def make(self) -> PromptReader:
        """Fetched and read, once."""
        if self._made is None:
            with fetch_progress() as progress:
                self._made = PromptReader.from_model(self._model or ModelConfig().model, progress)
        return self._made

    def used_for(self, trace: Trace) -> PromptReader | None:
        """What made the trace's tokens, or is said to have: another one's text would be wrong."""
        if self._made is None and self._model is not None and trace.tokens_per_symbol == 1:
            return self.make()
        return self._made


def _read(
    logs: list[str], format_: TraceFormat | None, reader: _Reader, console: Console, *, strict: bool
) -> Trace:
    sizes = [Path(log).stat().st_size for log in logs if Path(log).is_file()]
    total = sum(sizes) if len(sizes) == len(logs) else None
    with _bar(console, TextColumn("reading"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task("", total=total)
        return read_traces(
            logs,
            format=format_,
            reader=reader.make,
            strict=strict,
            progress=lambda done: bar.update(task, completed=done),
        )


def _kv_bytes(model: str | None) -> int | None:
    """Of K and V per token in 16 bits; None without a model."""
    if model is None:
        return None
    with fetch_progress() as progress:
        return read_spec(resolve(model, progress=progress)).kv_bytes_per_token(_BYTES_PER_ELEMENT)


def _bar(console: Console, *columns: ProgressColumn) -> Progress:
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
