"""How much of their beginning requests share, and how soon blocks are used again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from headstart.lab.replay.analysis import Histogram, histogram
from headstart.lab.replay.charts.axes import (
    NARROW,
    WIDE,
    Chart,
    Numbers,
    draw_shares,
    draw_ticks,
    share_scale,
)
from headstart.lab.replay.charts.svg import Box, Drawing, Scale, text_width
from headstart.lab.replay.prefixes import PrefixTree, ReuseDistances
from headstart.lab.replay.wording import compact, count, percent

_MOST_BINS = 12
"""Of reuse distances; what is less than these reach is in the first one."""


def prefix_lengths(tree: PrefixTree) -> Chart | None:
    """How many tokens of each request an earlier one began with; None without requests."""
    shared = tree.shared_tokens()
    if not len(shared):
        return None
    bins = histogram(shared, tree.block_size)
    with_some = shared[shared > 0]
    middle = f"; their median is {count(float(np.median(with_some)))} tokens" if len(with_some) else ""
    some = percent(1 - bins.num_zero / bins.total)
    what = f"{some} of requests share a beginning with an earlier one{middle}."
    rows = [["none", count(bins.num_zero), percent(bins.num_zero / bins.total)]]
    rows += [
        [name, count(number), percent(number / bins.total)]
        for name, number in zip(_names(bins), bins.counts, strict=True)
    ]
    return Chart(
        _draw_lengths("prefix-w", WIDE, bins, what),
        _draw_lengths("prefix-n", NARROW, bins, what),
        Numbers(["shared tokens", "requests", "share"], rows),
    )


def _draw_lengths(key: str, width: float, bins: Histogram, what: str) -> Markup:
    height = 260.0
    box = Box(52, 34, width - 8, height - 48)
    drawing = Drawing(key, width, height, "Length of the prefix shared with an earlier request", what)
    none = bins.num_zero / bins.total
    y, ticks = share_scale(box, max(bins.num_zero, *bins.counts, 1) / bins.total)
    draw_shares(drawing, box, y, ticks, "share of requests")
    slot = min((box.width - 24) / (len(bins.counts) + 1.5), 120)
    start = box.left + slot * 1.5 + 12
    zero = Box(box.left + 8, y(none), box.left + 6 + slot, box.bottom)
    drawing.rect(zero, "bar none", f"nothing shared: {percent(none)}")
    drawing.text((box.left + 8 + slot / 2, box.bottom + 18), "none", "tick", "middle")
    if bins.counts:
        bars = Box(start, box.top, start + slot * len(bins.counts), box.bottom)
        x = _draw_bars(drawing, bars, y, bins, bins.total, _names(bins))
        draw_ticks(drawing, x, box.bottom, bins.edges)
        drawing.text(((start + bars.right) / 2, height - 6), "shared tokens (log scale)", "caption", "middle")
    return drawing.markup()


def reuse_distances(reuse: ReuseDistances, capacities: Sequence[int]) -> Chart | None:
    """How large a cache must be to keep a block until its next use; None where no block is used twice.

    ``capacities`` are marked, each with the share of look-ups that lies on its left.
    """
    if not len(reuse.distances):
        return None
    needed = reuse.distances + 1  # a distance of 0 needs a capacity of 1
    bins = histogram(needed, 1 << max(0, int(needed.max()).bit_length() - _MOST_BINS))
    first = percent(reuse.num_first_uses / reuse.num_uses)
    kept = [f"{count(one)} blocks keep {percent(reuse.share_below(one))}." for one in capacities]
    what = " ".join([f"{first} of look-ups are a block's first use.", *kept])
    rows, below = [], 0
    for name, number in zip(_names(bins, 1), bins.counts, strict=True):
        below += number
        rows.append([name, count(number), percent(number / reuse.num_uses), percent(below / reuse.num_uses)])
    rows.append(["first use", count(reuse.num_first_uses), first, ""])
    return Chart(
        _draw_reuse("reuse-w", WIDE, bins, reuse, capacities, what),
        _draw_reuse("reuse-n", NARROW, bins, reuse, capacities, what),
        Numbers(["blocks needed to keep it", "look-ups", "share", "so far"], rows),
    )


def _draw_reuse(
    key: str, width: float, bins: Histogram, reuse: ReuseDistances, capacities: Sequence[int], what: str
) -> Markup:
    height = 300.0
    box = Box(52, 70, width - 24, height - 48)
    drawing = Drawing(key, width, height, "Blocks used between two uses of the same block", what)
    y, ticks = share_scale(box, max(bins.counts) / reuse.num_uses)
    draw_shares(drawing, box, y, ticks, "share of block look-ups")
    x = _draw_bars(drawing, box, y, bins, reuse.num_uses, _names(bins, 1))
    draw_ticks(drawing, x, box.bottom, bins.edges[1:])  # the first bar has all that is less
    _draw_marks(drawing, box, x, reuse, [one for one in capacities if x.low <= one <= x.high])
    middle = (box.left + box.right) / 2
    drawing.text((middle, height - 6), "blocks needed to keep it (log scale)", "caption", "middle")
    return drawing.markup()


def _draw_marks(
    drawing: Drawing, box: Box, x: Scale, reuse: ReuseDistances, capacities: Sequence[int]
) -> None:
    """The capacities, and what LRU hits with each; figures that would touch the ones before are left out."""
    free = float("-inf")
    for blocks in sorted(capacities):
        drawing.line((x(blocks), box.top - 4), (x(blocks), box.bottom), "mark")
        words = [compact(blocks), percent(reuse.share_below(blocks))]
        half = max(text_width(word) for word in words) / 2
        if x(blocks) - half > free:
            free = x(blocks) + half + 2
            drawing.text((x(blocks), box.top - 24), words[0], "label ink", "middle")
            drawing.text((x(blocks), box.top - 9), words[1], "label own strong", "middle")


def _names(bins: Histogram, lowest: int | None = None) -> list[str]:
    """What each bin holds; the first one begins at ``lowest``, if that is given."""
    lows = [bins.edges[0] if lowest is None else lowest, *bins.edges[1:]]
    return [f"{count(low)} to {count(high - 1)}" for low, high in zip(lows, bins.edges[1:], strict=False)]


def _draw_bars(
    drawing: Drawing, box: Box, y: Scale, bins: Histogram, total: int, names: Sequence[str]
) -> Scale:
    """Bars between the edges of ``bins``, over the whole width of ``box``; returns the x axis."""
    x = Scale(bins.edges[0], bins.edges[-1], box.left, box.right, is_log=True)
    for low, high, number, name in zip(bins.edges, bins.edges[1:], bins.counts, names, strict=False):
        bar = Box(x(low) + 1, y(number / total), x(high) - 1, box.bottom)
        drawing.rect(bar, "bar own", f"{name}: {percent(number / total)}")
    return x
