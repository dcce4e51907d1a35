"""Axes and labels, as all charts have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from markupsafe import Markup

from headstart.lab.replay.charts.svg import LINE_HEIGHT, Box, Drawing, Scale, text_width
from headstart.lab.replay.wording import compact, count

WIDE, NARROW = 840.0, 360.0
"""The widths in pixels that each chart is drawn for."""
_MANY = 1_000_000


@dataclass(frozen=True, slots=True)
class Numbers:
    """A table: what a chart shows, for those who cannot see it or want the figures."""

    headers: list[str]
    rows: list[list[str]]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart in both widths, and its figures."""

    wide: Markup
    narrow: Markup
    numbers: Numbers


@dataclass(frozen=True, slots=True)
class Label:
    """Words that belong to a height ``y``, in the colour of ``style``."""

    y: float
    words: str
    style: str
    is_strong: bool = False


def share_scale(box: Box, highest: float) -> tuple[Scale, list[float]]:
    """A scale of shares from 0 to a round number above ``highest`` (at most 1), and its ticks."""
    highest = min(max(highest, 0.001), 1.0)
    steps = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.25]
    step = next((step for step in steps if highest / step <= 5), 0.25)
    num_ticks = ceil(round(highest / step, 9))
    top = num_ticks * step
    return Scale(0, top, box.bottom, box.top), [step * tick for tick in range(num_ticks + 1)]


def draw_shares(drawing: Drawing, box: Box, scale: Scale, ticks: Sequence[float], caption: str) -> None:
    """The y axis of shares: grid, labels in per cent, and above it what is shown."""
    digits = 0 if all(abs(100 * tick - round(100 * tick)) < 1e-6 for tick in ticks) else 1
    for tick in ticks:
        y = scale(tick)
        drawing.line((box.left, y), (box.right, y), "base" if tick == 0 else "grid")
        drawing.text(
            (box.left - 8, y + 4), f"{100 * tick:.{digits}f}\N{NARROW NO-BREAK SPACE}%", "tick", "end"
        )
    drawing.text((0, 13), caption, "caption")


def draw_ticks(
    drawing: Drawing, scale: Scale, y: float, values: Sequence[float], *, marks: bool = True
) -> None:
    """Numbers below an axis; those that would touch the one before them are left out."""
    free = float("-inf")
    for value in values:
        words = compact(value) if value >= _MANY else count(value)
        x, half = scale(value), text_width(words) / 2
        if marks:
            drawing.line((x, y), (x, y + 4), "base")
        if x - half >= free:
            drawing.text((x, y + 18), words, "tick", "middle")
            free = x + half + 8


def labels_width(labels: Sequence[str], width: float) -> float:
    """The margin that labels at the right need: at most two fifths of the picture."""
    return min(max((text_width(words) for words in labels), default=0) + 22, width * 0.4)


def draw_labels(drawing: Drawing, x: float, box: Box, labels: Sequence[Label]) -> None:
    """Labels at the right of lines or areas, moved apart where they would touch."""
    ordered = sorted(labels, key=lambda label: label.y)
    places: list[float] = []
    for label in ordered:
        places.append(max(label.y, places[-1] + LINE_HEIGHT if places else label.y))
    floor = box.bottom
    for index in range(len(places) - 1, -1, -1):
        places[index] = min(places[index], floor)
        floor = places[index] - LINE_HEIGHT
    room = int((drawing.width - x - 16) / text_width("x"))
    for label, y in zip(ordered, places, strict=True):
        drawing.path([(x + 2, label.y), (x + 8, y), (x + 12, y)], f"leader {label.style}")
        words = label.words if len(label.words) <= room else label.words[: room - 1].rstrip(" ,") + "…"
        drawing.text((x + 16, y + 4), words, f"label {label.style}{' strong' if label.is_strong else ''}")
