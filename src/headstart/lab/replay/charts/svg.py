"""A small pen for SVG: escapes what it writes, leaves colours to the page's style sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

from markupsafe import Markup

Point = tuple[float, float]

LINE_HEIGHT = 15.0
"""Of the charts' text, in pixels."""
_CHARACTER = 6.7
"""About the width of a character, in pixels."""


def text_width(words: str) -> float:
    """About how wide ``words`` will be, in pixels: fonts differ."""
    return len(words) * _CHARACTER


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in pixels; y grows downwards."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def width(self) -> float:
        """From left to right."""
        return self.right - self.left

    @property
    def height(self) -> float:
        """From top to bottom."""
        return self.bottom - self.top


@dataclass(frozen=True, slots=True)
class Scale:
    """Where a value from ``low`` to ``high`` lies between the pixels ``start`` and ``stop``."""

    low: float
    high: float
    start: float
    stop: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of ``value``."""
        low, high = (log2(self.low), log2(self.high)) if self.is_log else (self.low, self.high)
        place = log2(value) if self.is_log else value
        share = (place - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.stop - self.start)


class Drawing:
    """One picture.  ``title`` and ``description`` are for those who do not see it; ``key`` is its id."""

    def __init__(self, key: str, width: float, height: float, title: str, description: str) -> None:
        self.width, self.height = width, height
        self._parts = [
            Markup(
                '<svg viewBox="0 0 {w:g} {h:g}" role="img" aria-labelledby="{k}-t {k}-d" '
                'style="max-width:{m}px">'
                '<title id="{k}-t">{t}</title><desc id="{k}-d">{d}</desc>'
            ).format(w=width, h=height, k=key, t=title, d=description, m=round(width * 1.25))
        ]

    def markup(self) -> Markup:
        """The picture as it stands in a page."""
        return Markup("").join([*self._parts, Markup("</svg>")])

    def line(self, start: Point, end: Point, style: str) -> None:
        """A straight line."""
        self._add(
            f'line x1="{_px(start[0])}" y1="{_px(start[1])}" x2="{_px(end[0])}" y2="{_px(end[1])}"', style
        )

    def rect(self, box: Box, style: str, tooltip: str | None = None) -> None:
        """A rectangle."""
        shape = f'rect x="{_px(box.left)}" y="{_px(box.top)}" width="{_px(max(0.0, box.width))}"'
        self._add(f'{shape} height="{_px(max(0.0, box.height))}"', style, tooltip)

    def circle(self, centre: Point, radius: float, style: str, tooltip: str | None = None) -> None:
        """A circle."""
        self._add(f'circle cx="{_px(centre[0])}" cy="{_px(centre[1])}" r="{radius:g}"', style, tooltip)

    def diamond(self, centre: Point, radius: float, style: str, tooltip: str | None = None) -> None:
        """A square on its corner."""
        x, y = centre
        corners = [(x, y - radius), (x + radius, y), (x, y + radius), (x - radius, y)]
        self.path(corners, style, tooltip, is_closed=True)

    def path(
        self, points: Sequence[Point], style: str, tooltip: str | None = None, *, is_closed: bool = False
    ) -> None:
        """A line through points, or the area within them."""
        steps = " ".join(f"{_px(x)},{_px(y)}" for x, y in points)
        self._add(f'path d="M{steps}{"Z" if is_closed else ""}"', style, tooltip)

    def text(self, place: Point, words: str, style: str = "", anchor: str = "start") -> None:
        """One line of text: ``anchor`` is start, middle or end; ``place`` is on its base line."""
        opening = Markup('<text x="{x}" y="{y}" class="{c}" text-anchor="{a}">{w}</text>')
        self._parts.append(opening.format(x=_px(place[0]), y=_px(place[1]), c=style, a=anchor, w=words))

    def _add(self, shape: str, style: str, tooltip: str | None = None) -> None:
        name = shape.split(" ", 1)[0]
        inside = Markup("/>")
        if tooltip is not None:
            inside = Markup("><title>{}</title></{}>").format(tooltip, name)
        self._parts.append(Markup('<{} class="{}"{}').format(Markup(shape), style, inside))  # noqa: S704  # numbers alone


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
