"""Recorded traffic, and the model that it was for, as the lab's commands take them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from headstart.cli.pull import fetch_progress
from headstart.lab.replay.capacity import Capacity, Unit
from headstart.lab.traces.read import read_traces
from headstart.lab.traces.texts import PromptReader
from headstart.lab.traces.trace import Trace, TraceFormat
from headstart.model.source import resolve
from headstart.model.spec import read_spec

_PANEL = "Recorded traffic"
FormatOption = Annotated[
    TraceFormat | None,
    typer.Option(
        "--format", help="What the files are.", show_default="told by their lines", rich_help_panel=_PANEL
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        help="Whose tokenizer and chat template read text, and whose KV size tells what bytes hold: a "
        "built-in name, a directory, a GGUF file or a hub id.",
        show_default="smollm2-135m's tokenizer and ChatML, for text",
        rich_help_panel=_PANEL,
    ),
]
StrictOption = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Stop at the first line that cannot be read, instead of counting it.",
        rich_help_panel=_PANEL,
    ),
]
HashBlockSizeOption = Annotated[
    int | None,
    typer.Option(
        help="How many tokens a hash id stands for.",
        show_default="told by the lines' lengths",
        min=1,
        rich_help_panel=_PANEL,
    ),
]
WarmupOption = Annotated[
    str,
    typer.Option(
        help="Requests that fill the cache and do not count: a number, or a share (50%).",
        rich_help_panel=_PANEL,
    ),
]

_BYTES_PER_ELEMENT = 2
"""Of K and V: bfloat16 or float16, which engines keep."""


class NamedModel:
    """What ``--model`` names, or the stand-in for it (`PromptReader.of`); fetched when something needs it."""

    def __init__(self, name: str | None) -> None:
        self.name = name
        self._reader: PromptReader | None = None

    def reader(self) -> PromptReader:
        """Its tokenizer and template, read once.  Raises ``ModelError``."""
        if self._reader is None:
            with fetch_progress() as progress:
                self._reader = PromptReader.of(self.name, progress)
        return self._reader

    def reader_of(self, trace: Trace) -> PromptReader | None:
        """What made the trace's tokens, or is said to have: another one's text would be wrong."""
        if self._reader is None and self.name is not None and trace.tokens_per_symbol == 1:
            return self.reader()
        return self._reader

    def kv_bytes_per_token(self, capacities: Iterable[Capacity]) -> int | None:
        """Of K and V in 16 bits; None without a name, or where no capacity is in bytes.

        Nobody asks then, and the model's shape may be one that cannot be served.
        """
        if self.name is None or all(each.unit is not Unit.BYTES for each in capacities):
            return None
        with fetch_progress() as progress:
            return read_spec(resolve(self.name, progress=progress)).kv_bytes_per_token(_BYTES_PER_ELEMENT)


def read_recorded(
    paths: list[str],
    format_: TraceFormat | None,
    model: NamedModel,
    console: Console,
    *,
    strict: bool,
    hash_block_size: int | None = None,
) -> Trace:
    """The files' traffic, with a progress bar.  Raises ``TraceError`` and ``ModelError``."""
    columns = (TextColumn("reading"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=_num_bytes(paths))
        return read_traces(
            paths,
            format=format_,
            reader=model.reader,
            strict=strict,
            progress=lambda done: bar.update(task, completed=done),
            hash_block_size=hash_block_size,
        )


def _num_bytes(paths: list[str]) -> int | None:
    """Of all files; None where that cannot be told."""
    sizes = [Path(path).stat().st_size for path in paths if Path(path).is_file()]
    return sum(sizes) if len(sizes) == len(paths) else None
