"""``headstart verify-log``: replay a decision log, and see whether the core decides the same again."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from headstart.engine.decisions import Header
from headstart.errors import HeadstartError, LogError
from headstart.lab.decisions.reader import LogReader
from headstart.lab.decisions.replay import Outcome, replay


def verify_log(
    file: Annotated[
        Path, typer.Argument(help="What headstart serve --decision-log wrote, as it is or unpacked.")
    ],
    check: Annotated[
        bool, typer.Option("--check", help="Also prove the cache's laws after every step, which is slow.")
    ] = False,
) -> None:
    """Replay a decision log, without the model, and see whether the cache decides the same.

    A fresh cache core is asked what the engine's core was asked, and must answer
    the same, block for block.  The exit code is 0 if it does, also for the log of
    an engine that was killed, and 1 if it does not: then the first difference is
    shown.

    The log holds the token ids of prompts and answers; this report holds none.

    For example:

        headstart serve --decision-log run.log.gz

        headstart verify-log run.log.gz
    """
    try:
        header, outcome, num_lost = _replay(file, check=check)
    except HeadstartError as error:
        typer.echo(f"headstart verify-log: {error}", err=True)
        raise typer.Exit(1) from error
    _show(header, outcome, num_lost, Console(highlight=False))
    if not outcome.agrees:
        _complain(header, outcome)
        raise typer.Exit(1)


def _replay(path: Path, *, check: bool) -> tuple[Header, Outcome, int]:
    console = Console(stderr=True)
    columns = (TextColumn("replaying"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    try:
        with (
            path.open("rb") as file,
            Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar,
        ):
            task = bar.add_task("", total=path.stat().st_size)
            reader = LogReader(file, path.name)
            outcome = replay(reader, check=check, progress=lambda done: bar.update(task, completed=done))
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror}") from error
    return reader.header, outcome, reader.num_lost


def _show(header: Header, outcome: Outcome, num_lost: int, console: Console) -> None:
    cache, stats = header.cache, outcome.stats
    if outcome.closed:
        end = "in order"
    elif outcome.agrees:
        end = "none: the engine was killed, or still runs"
        end += f"; {num_lost:,} bytes of half a record are left out" if num_lost else ""
    else:
        end = "not reached"
    share = f" ({stats.hits / stats.queries:.1%})" if stats.queries else ""
    rows = {
        "written by": f"headstart {header.headstart}, Python {header.python}, from {header.started}",
        "cache": f"{cache.index} index, {cache.policy} eviction, {cache.num_blocks:,} blocks of "
        f"{cache.block_size}" + ("" if cache.enable_prefix_caching else ", prefix caching off"),
        "end": end,
        "steps": f"{outcome.num_steps:,}",
        "calls": f"{outcome.num_calls:,}",
        "requests": f"{outcome.num_requests:,} ({stats.requests:,} admitted)",
        "hits": f"{stats.hits:,} of {stats.queries:,} prompt tokens{share}",
        "preemptions": f"{stats.preempted_requests:,} readmitted, with "
        f"{stats.preempted_hits:,} of {stats.preempted_queries:,} tokens hit",
        "evictions": f"{outcome.num_evicted_blocks:,} blocks",
        "state": f"{outcome.digest} ({outcome.num_digests:,} compared)",
    }
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        table.add_row(f"[dim]{name}[/]", escape(value))
    console.print(table)
    if outcome.agrees:
        console.print("\nThe replayed core decided the same, call for call.")


def _complain(header: Header, outcome: Outcome) -> None:
    if outcome.problem is not None:
        typer.echo(f"headstart verify-log: in step {outcome.num_steps:,}: {outcome.problem}", err=True)
    if outcome.difference is not None:
        first = outcome.difference
        typer.echo(
            f"headstart verify-log: the replayed core decides otherwise in step {first.step:,}, "
            f"call {first.call:,}\n  expected  {first.expected}\n  got       {first.got}",
            err=True,
        )
        if header.headstart != version("headstart"):
            typer.echo(
                f"The log is headstart {header.headstart}'s and this is {version('headstart')}, whose cache "
                "may decide otherwise on purpose: verify it with the former.",
                err=True,
            )
