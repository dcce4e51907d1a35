"""What ``headstart calc alignment`` prints for people: a table, and a plot of the saw's teeth."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2

from rich import box
from rich.console import Console
from rich.table import Table

from headstart.lab.calc.alignment import Loss, loss, mean_loss

_BARS = " ▁▂▃▄▅▆▇█"
_PLOT_WIDTH = 64


def show(found: Sequence[Loss], sizes: Sequence[int], *, ends_there: bool, console: Console) -> None:
    """Tokens lost by length and block size, then how the loss goes with the length."""
    where = ", prompts that end there" if ends_there else ""
    console.print(f"Tokens computed again of a shared prefix{where}\n")
    console.print(_table(found, sizes, ends_there=ends_there))
    console.print()
    for line in _plot(sizes, ends_there=ends_there):
        console.print(line)
    console.print(
        "\nWhole blocks of the hash index; the radix index matches to the token. "
        "A loss is paid by every request."
    )


def _table(found: Sequence[Loss], sizes: Sequence[int], *, ends_there: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("shared", justify="right")
    for size in sizes:
        table.add_column(f"hash, {size}", justify="right")
    table.add_column("radix", justify="right")
    for start in range(0, len(found), len(sizes)):
        row = found[start : start + len(sizes)]
        cells = [f"{one.hash:,} ({one.hash_share:.1%})" if one.hash else "0" for one in row]
        table.add_row(f"{row[0].shared:,}", *cells, f"{row[0].radix}")
    table.add_section()
    table.add_row(
        "mean", *(f"{mean_loss(size, ends_there=ends_there):,.1f}" for size in sizes), f"{found[0].radix}"
    )
    return table


def _plot(sizes: Sequence[int], *, ends_there: bool) -> list[str]:
    """One line for each block size: the mean loss by length, up to two of the largest blocks."""
    longest = max(2 * max(sizes), _PLOT_WIDTH)
    title = (
        f"Tokens lost with the hash index by block size, for shared lengths from 1 to {longest:,}; "
        f"a full bar is {max(sizes):,}, each eighth less a half"
    )
    lines = [f"[dim]{title}[/]"]
    for size in sizes:
        bars = ""
        for column in range(_PLOT_WIDTH):
            first, last = (at * longest // _PLOT_WIDTH for at in (column, column + 1))
            lost = [loss(shared, size, ends_there=ends_there).hash for shared in range(first + 1, last + 1)]
            bars += _bar(sum(lost) / len(lost), max(sizes))
        lines.append(f"{size:>6,}  {bars}")
    return lines


def _bar(lost: float, most: int) -> str:
    """On a scale of halves, so that small blocks are seen beside large ones."""
    if lost == 0:
        return _BARS[0]
    return _BARS[max(1, min(8, 8 + round(log2(lost / most))))]
