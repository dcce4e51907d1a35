"""Hits and misses by reason, in the order of the trace: a stack of areas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from headstart.cache.reasons import MissReason
from headstart.lab.replay.analysis import TimeBin
from headstart.lab.replay.charts.axes import (
    NARROW,
    WIDE,
    Chart,
    Label,
    Numbers,
    draw_labels,
    draw_shares,
    labels_width,
)
from headstart.lab.replay.charts.svg import Box, Drawing, Point, Scale, text_width
from headstart.lab.replay.wording import REASON_WORDS, clock, count, percent

_ORDER = (
    *(MissReason.EVICTED, MissReason.DIVERGED, MissReason.ISOLATED, MissReason.IN_FLIGHT),
    *(MissReason.UNALIGNED, MissReason.SKIPPED, MissReason.LAST_TOKEN, MissReason.COLD),
)
"""From the bottom up, above the hits: what something can be done about lies next to them."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """A band of the stack: its share in each bin, and of all tokens."""

    words: str
    style: str
    shares: list[float]
    total: float


def misses_over_time(key: str, bins: Sequence[TimeBin], name: str) -> Chart:
    """The stack of one outcome, which is called ``name``; ``key`` makes its ids unlike those of others.

    ``bins`` must have one or more.
    """
    layers = _layers(bins)
    return Chart(
        _draw(f"{key}-w", WIDE, 330, bins, layers, name),
        _draw(f"{key}-n", NARROW, 300, bins, layers, name),
        Numbers(
            ["requests", "prompt tokens", *(layer.words for layer in layers)],
            [
                [
                    f"{count(each.first + 1)} to {count(each.last + 1)}",
                    count(each.num_prompt_tokens),
                    *(percent(layer.shares[place]) for layer in layers),
                ]
                for place, each in enumerate(bins)
            ],
        ),
    )


def _layers(bins: Sequence[TimeBin]) -> list[_Layer]:
    tokens = sum(each.num_prompt_tokens for each in bins) or 1
    hits = sum(each.num_hit_tokens for each in bins)
    layers = [_Layer("hit", "hit", [each.hit_share for each in bins], hits / tokens)]
    for reason in _ORDER:
        missed = sum(each.misses.get(reason, 0) for each in bins)
        if missed:
            shares = [each.miss_share(reason) for each in bins]
            layers.append(_Layer(REASON_WORDS[reason], reason.value, shares, missed / tokens))
    return layers


def _draw(
    key: str, width: float, height: float, bins: Sequence[TimeBin], layers: Sequence[_Layer], name: str
) -> Markup:
    words = [f"{layer.words} {percent(layer.total)}" for layer in layers]
    box = Box(52, 34, width - labels_width(words, width), height - 58)
    what = f"{name}: " + ", ".join(words) + " of prompt tokens. The figures are in the table below."
    drawing = Drawing(key, width, height, "Hits and misses by reason over time", what)
    y = Scale(0, 1, box.bottom, box.top)
    edges = [box.left + box.width * place / len(bins) for place in range(len(bins) + 1)]
    below = [0.0] * len(bins)
    labels = []
    for layer, label in zip(layers, words, strict=True):
        above = [low + share for low, share in zip(below, layer.shares, strict=True)]
        outline = _steps(edges, [y(value) for value in above])
        floor = _steps(edges, [y(value) for value in below])
        drawing.path([*outline, *reversed(floor)], f"area {layer.style}", is_closed=True)
        labels.append(Label((y(above[-1]) + y(below[-1])) / 2, label, layer.style, layer.style == "hit"))
        below = above
    draw_shares(drawing, box, y, [0, 0.25, 0.5, 0.75, 1], "share of prompt tokens")
    for place, each in enumerate(bins):
        drawing.rect(
            Box(edges[place], box.top, edges[place + 1], box.bottom), "hover", _tooltip(each, layers, place)
        )
    _draw_time(drawing, box, edges, bins)
    draw_labels(drawing, box.right, box, labels)
    return drawing.markup()


def _steps(edges: Sequence[float], heights: Sequence[float]) -> list[Point]:
    """The outline of bars that touch."""
    points = []
    for place, height in enumerate(heights):
        points += [(edges[place], height), (edges[place + 1], height)]
    return points


def _tooltip(each: TimeBin, layers: Sequence[_Layer], place: int) -> str:
    when = "" if each.start_s is None else f" ({clock(each.start_s)})"
    lines = [f"requests {count(each.first + 1)} to {count(each.last + 1)}{when}"]
    lines += [f"{layer.words}: {percent(layer.shares[place])}" for layer in layers if layer.shares[place]]
    return "\n".join(lines)


def _draw_time(drawing: Drawing, box: Box, edges: Sequence[float], bins: Sequence[TimeBin]) -> None:
    """Request numbers, and below them the time since the trace began."""
    has_times = bins[0].start_s is not None
    free = float("-inf")
    for place in _places(len(bins)):
        is_end = place == len(bins)
        number = bins[-1].last + 1 if is_end else bins[place].first + 1
        words = count(number)
        half = text_width(words) / 2
        if edges[place] - half < free:
            continue
        free = edges[place] + half + 10
        drawing.line((edges[place], box.bottom), (edges[place], box.bottom + 4), "base")
        drawing.text((edges[place], box.bottom + 18), words, "tick", "middle")
        seconds = bins[-1].end_s if is_end else bins[place].start_s
        if seconds is not None:
            drawing.text((edges[place], box.bottom + 33), clock(seconds), "tick faint", "middle")
    caption = "request number; time since the trace began" if has_times else "request number"
    drawing.text(((box.left + box.right) / 2, drawing.height - 6), caption, "caption", "middle")


def _places(num_bins: int) -> list[int]:
    """Where ticks go: the first and the last edge, and some between."""
    parts = min(num_bins, 5)
    return sorted({round(num_bins * part / parts) for part in range(parts + 1)})
