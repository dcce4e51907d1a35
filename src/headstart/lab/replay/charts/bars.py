"""Hit rates side by side, where a sweep has no capacities to draw a curve over."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from headstart.lab.replay.analysis import Result
from headstart.lab.replay.charts.axes import NARROW, WIDE, Chart, Numbers
from headstart.lab.replay.charts.svg import Box, Drawing, Scale
from headstart.lab.replay.outcome import Bounds
from headstart.lab.replay.wording import SettingNames, percent

_ROW = 44.0
_MOST = 24


def rate_bars(results: Sequence[Result], baseline: Result, bounds: Bounds | None) -> Chart:
    """A bar for each outcome (the best ones, if there are many), and one for a cache that never evicts."""
    names = SettingNames(one.setting for one in results)
    bars = [
        (names.full(one.setting), one.rates.token_hit_rate, "own" if one is baseline else "c4")
        for one in results
    ]
    bars = sorted(bars, key=lambda bar: -bar[1])[:_MOST]
    if bounds is not None:
        bars.append(("a cache that never evicts", bounds.unbounded.token_hit_rate, "unbounded"))
        bars.append(("(N − U) / N, blocks", bounds.reuse_bound, "bound"))  # noqa: RUF001  # a minus
    rows = [[name, percent(rate)] for name, rate, _ in bars]
    return Chart(
        _draw("bars-w", WIDE, bars),
        _draw("bars-n", NARROW, bars),
        Numbers(["setting", "token hit rate"], rows),
    )


def _draw(key: str, width: float, bars: Sequence[tuple[str, float, str]]) -> Markup:
    height = 24 + _ROW * len(bars)
    what = f"{len(bars)} bars: {bars[0][0]} {percent(bars[0][1])}, and more in the table below."
    drawing = Drawing(key, width, height, "Token hit rates", what)
    drawing.text((0, 13), "hit tokens of all prompt tokens; the whole width is 100 %", "caption")
    x = Scale(0, 1, 0, width - 70)
    for place, (name, rate, style) in enumerate(bars):
        top = 28 + _ROW * place
        drawing.text((0, top + 12), name, f"label {'own strong' if style == 'own' else 'ink'}")
        drawing.rect(Box(0, top + 18, x.stop, top + 30), "track")
        drawing.rect(Box(0, top + 18, x(rate), top + 30), f"bar {style}", f"{name}: {percent(rate)}")
        drawing.text((width, top + 29), percent(rate), "label ink", "end")
    return drawing.markup()
