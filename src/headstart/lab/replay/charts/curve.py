"""Hit rate against capacity: a line for each policy, the optimum, and what no cache can beat."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from headstart.lab.replay.analysis import Result, Series, capacity_series
from headstart.lab.replay.charts.axes import (
    NARROW,
    WIDE,
    Chart,
    Label,
    Numbers,
    draw_labels,
    draw_shares,
    draw_ticks,
    labels_width,
    share_scale,
)
from headstart.lab.replay.charts.svg import Box, Drawing, Scale, text_width
from headstart.lab.replay.outcome import OPTIMAL, Bounds, Setting
from headstart.lab.replay.wording import SettingNames, count, percent, series_of

_NUM_COLOURS = 6


def capacity_curve(results: Sequence[Result], baseline: Result, bounds: Bounds | None) -> Chart | None:
    """The curve; None where fewer than two capacities were tried.

    ``baseline`` is the result that the report's headline is about: it is ringed.
    """
    series = [line for line in capacity_series(results) if line.capacities]
    if len({blocks for line in series for blocks in line.capacities}) < 2:
        return None
    own = series_of(baseline.setting)
    series.sort(key=lambda line: line.setting == own)  # the headline's line is drawn last, on top
    names = SettingNames(one.setting for one in results)
    curve = _Curve(series, baseline, bounds, names, _styles(series, own))
    numbers = Numbers(
        ["setting", "capacity, blocks", "token hit rate"],
        [
            [names.series(line.setting), count(blocks), percent(rate)]
            for line in series
            for blocks, rate in zip(line.capacities, line.rates, strict=True)
        ],
    )
    return Chart(curve.draw("curve-w", WIDE, 400), curve.draw("curve-n", NARROW, 340), numbers)


def _styles(series: Sequence[Series], own: Setting) -> dict[Setting, str]:
    """A colour for each line; when there are more lines than colours, the worst are grey."""
    styles, used = {}, 0
    for line in sorted(series, key=lambda line: -max(line.rates)):
        if line.setting == own:
            styles[line.setting] = "own"
        elif line.setting.policy == OPTIMAL:
            styles[line.setting] = "optimum"
        else:
            used += 1
            styles[line.setting] = f"c{used}" if used <= _NUM_COLOURS else "other"
    return styles


class _Curve:
    def __init__(
        self,
        series: Sequence[Series],
        baseline: Result,
        bounds: Bounds | None,
        names: SettingNames,
        styles: dict[Setting, str],
    ) -> None:
        self._series, self._baseline, self._bounds = series, baseline, bounds
        self._names, self._styles = names, styles
        sizes = {line.setting.block_size for line in series}
        self._is_in_tokens = len(sizes) > 1
        self._unit = "tokens" if self._is_in_tokens else f"blocks of {count(min(sizes))} tokens"

    def draw(self, key: str, width: float, height: float) -> Markup:
        """The chart in one width."""
        levels = self._levels()
        words = [self._names.series(line.setting) for line in self._series] + [word for word, _, _ in levels]
        box = Box(52, 34, width - labels_width(words, width), height - 48)
        drawing = Drawing(key, width, height, "Token hit rate against capacity", self._description())
        rates = [rate for line in self._series for rate in line.rates] + [rate for _, rate, _ in levels]
        y, ticks = share_scale(box, max(rates) * 1.04)
        draw_shares(drawing, box, y, ticks, "hit tokens of all prompt tokens")
        sizes = sorted({self._size(line, blocks) for line in self._series for blocks in line.capacities})
        x = Scale(sizes[0], sizes[-1], box.left + 10, box.right - 2, is_log=True)
        draw_ticks(drawing, x, box.bottom, sizes)
        drawing.text(
            ((box.left + box.right) / 2, height - 6),
            f"capacity, {self._unit} (log scale)",
            "caption",
            "middle",
        )
        labels = []
        for word, rate, style in levels:
            drawing.line((box.left, y(rate)), (box.right, y(rate)), f"line {style}")
            labels.append(Label(y(rate), word, style))
        self._draw_unique(drawing, box, x)
        labels += [self._draw_line(drawing, line, x, y) for line in self._series]
        draw_labels(drawing, box.right, box, labels)
        return drawing.markup()

    def _levels(self) -> list[tuple[str, float, str]]:
        """Horizontal lines: words, rate, style."""
        if self._bounds is None:
            return []
        rate, bound = self._bounds.unbounded.token_hit_rate, self._bounds.reuse_bound
        return [
            (f"never evicts {percent(rate)}", rate, "unbounded"),
            (f"(N − U) / N {percent(bound)}", bound, "bound"),  # noqa: RUF001  # a minus
        ]

    def _size(self, line: Series, blocks: int) -> int:
        return blocks * line.setting.block_size if self._is_in_tokens else blocks

    def _draw_unique(self, drawing: Drawing, box: Box, x: Scale) -> None:
        """Where the capacity holds all that the trace has."""
        if self._bounds is None:
            return
        unique = self._bounds.num_unique_blocks * (self._bounds.block_size if self._is_in_tokens else 1)
        if x.low < unique < x.high:
            drawing.line((x(unique), box.top), (x(unique), box.bottom), "mark")
            words = f"U = {count(unique)}"
            fits = x(unique) - box.left > text_width(words) + 8
            drawing.text(
                (x(unique) + (-6 if fits else 6), box.bottom - 8), words, "tick", "end" if fits else "start"
            )

    def _draw_line(self, drawing: Drawing, line: Series, x: Scale, y: Scale) -> Label:
        style, name = self._styles[line.setting], self._names.series(line.setting)
        places = [
            (x(self._size(line, blocks)), y(rate))
            for blocks, rate in zip(line.capacities, line.rates, strict=True)
        ]
        if len(places) > 1:
            drawing.path(places, f"line {style}")
        for place, blocks, rate in zip(places, line.capacities, line.rates, strict=True):
            is_own = style == "own" and blocks == self._baseline.setting.capacity_blocks
            if is_own:
                drawing.circle(place, 9, "ring")
                drawing.text((place[0] + 12, place[1] + 16), percent(rate), "label own strong halo")
            drawing.circle(place, 3.5, f"dot {style}", f"{name}, {count(blocks)} blocks: {percent(rate)}")
        return Label(places[-1][1], name, style, is_strong=style == "own")

    def _description(self) -> str:
        own = self._baseline
        said = f"{self._names.full(own.setting)} hits {percent(own.rates.token_hit_rate)}."
        return f"{len(self._series)} lines, one for each setting. {said} The figures are in the table below."
