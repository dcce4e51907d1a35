"""A bar on the terminal while rounds are measured."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

T = TypeVar("T")


async def collect(rounds: AsyncIterator[T], *, total: int, label: str, console: Console) -> list[T]:
    """All ``rounds``, of which there will be ``total``; the bar is drawn on a terminal only."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(label, total=total)
        collected = []
        async for each in rounds:
            collected.append(each)
            progress.advance(task)
        return collected
