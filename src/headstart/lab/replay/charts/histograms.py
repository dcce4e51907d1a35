"""How much of their beginning requests share, and how soon blocks are used again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from headstart.lab.replay.analysis import Histogram, histogram
from headstart.lab.replay.charts.axes import NARROW, WIDE, Chart, Numbers, draw_shares, draw_ticks, share_scale
from headstart.lab.replay.charts.svg import Box, Drawing, Scale, text_width
from headstart.lab.replay.prefixes import PrefixTree, ReuseDistances
from headstart.lab.replay.wording import compact, count, percent


def prefix_lengths(tree: PrefixTree) -> Chart | None:
    """How many tokens of each request an earlier one began with; None without requests."""
    shared = tree.shared_tokens()
    if not len(shared):
        return None
    bins = histogram(shared, tree.block_size)
    with_some = shared[shared > 0]
    middle = f"; their median is {count(float(np.median(with_some)))} tokens" if len(with_some) else ""
    what = f"{percent(1 - bins.num_zero / bins.total)} of requests share a beginning with an earlier one{middle}."
    names = [
        f"{count(low)} to {count(high - 1)}" for low, high in zip(bins.edges, bins.edges[1:], strict=False)
    ]
    rows = [["none", count(bins.num_zero), percent(bins.num_zero / bins.total)]]
    rows += [
        [name, count(number), percent(number / bins.total)]
        for name, number in zip(names, bins.counts, strict=True)
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
    shares = [number / bins.total for number in bins.counts]
    none = bins.num_zero / bins.total
    y, ticks = share_scale(box, max([none, *shares]))
    draw_shares(drawing, box, y, ticks, "share of requests")
    slot = min((box.width - 24) / (len(shares) + 1.5), 90)
    start = box.left + slot * 1.5 + 12
    drawing.rect(
        Box(box.left + 8, y(none), box.left + 6 + slot, box.bottom), "bar none", f"nothing shared: {percent(none)}"
    )
    drawing.text((box.left + 8 + slot / 2, box.bottom + 18), "none", "tick", "middle")
    _draw_bars(drawing, Box(start, box.top, start + slot * len(shares), box.bottom), y, bins, shares, "tokens")
    drawing.text(((start + box.right) / 2, height - 6), "shared tokens (log scale)", "caption", "middle")
    return drawing.markup()


def _draw_bars(
    drawing: Drawing, box: Box, y: Scale, bins: Histogram, shares: Sequence[float], unit: str
) -> Scale | None:
    """Bars between the edges of ``bins``, over the whole width of ``box``; returns the x axis, if any."""
    if not shares:
        return None
    x = Scale(bins.edges[0], bins.edges[-1], box.left, box.right, is_log=True)
    for low, high, share in zip(bins.edges, bins.edges[1:], shares, strict=False):
        words = f"{count(low)} to {count(high - 1)} {unit}: {percent(share)}"
        drawing.rect(Box(x(low) + 1, y(share), x(high) - 1, box.bottom), "bar own", words)
    draw_ticks(drawing, x, box.bottom, bins.edges)
    return x


def reuse_distances(reuse: ReuseDistances, capacities: Sequence[int]) -> Chart | None:
    """How many other blocks come between two uses of one; None where no block is used twice.

    ``capacities`` are marked, each with the share of look-ups that lies on its left.
    """
    if not len(reuse.distances):
        return None
    bins = histogram(reuse.distances + 1)  # a distance of 0 needs a capacity of 1
    what = (
        f"{percent(reuse.num_first_uses / reuse.num_uses)} of look-ups are a block's first use. "
        + " ".join(f"{percent(reuse.share_below(one))} lie below {count(one)} blocks." for one in capacities)
    )
    rows, below = [], 0
    for low, high, number in zip(bins.edges, bins.edges[1:], bins.counts, strict=False):
        below += number
        rows.append(
            [f"{count(low)} to {count(high - 1)}", count(number), *(percent(n / reuse.num_uses) for n in (number, below))]
        )
    rows.append(["first use", count(reuse.num_first_uses), percent(reuse.num_first_uses / reuse.num_uses), ""])
    return Chart(
        _draw_reuse("reuse-w", WIDE, bins, reuse, capacities, what),
        _draw_reuse("reuse-n", NARROW, bins, reuse, capacities, what),
        Numbers(["capacity that holds it, blocks", "look-ups", "share", "so far"], rows),
    )


def _draw_reuse(
    key: str, width: float, bins: Histogram, reuse: ReuseDistances, capacities: Sequence[int], what: str
) -> Markup:
    height = 300.0
    box = Box(52, 70, width - 14, height - 48)
    drawing = Drawing(key, width, height, "Blocks used between two uses of the same block", what)
    shares = [number / reuse.num_uses for number in bins.counts]
    y, ticks = share_scale(box, max(shares))
    draw_shares(drawing, box, y, ticks, "share of block look-ups")
    x = _draw_bars(drawing, box, y, bins, shares, "blocks")
    if x is not None:
        free = float("-inf")
        for blocks in sorted(capacities):
            if not x.low <= blocks <= x.high:
                continue
            drawing.line((x(blocks), box.top - 4), (x(blocks), box.bottom), "mark")
            words = [compact(blocks), percent(reuse.share_below(blocks))]
            half = max(text_width(word) for word in words) / 2
            if x(blocks) - half > free:
                free = x(blocks) + half + 4
                drawing.text((x(blocks), box.top - 24), words[0], "label ink", "middle")
                drawing.text((x(blocks), box.top - 9), words[1], "label own strong", "middle")
    drawing.text(
        ((box.left + box.right) / 2, height - 6), "blocks needed to keep it (log scale)", "caption", "middle"
    )
    return drawing.markup()
