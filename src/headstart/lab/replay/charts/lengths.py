"""What share of a prompt was hit, by the prompt's length, next to the token rate."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from markupsafe import Markup

from headstart.lab.replay.analysis import LengthBucket, by_prompt_length, hit_shares
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
from headstart.lab.replay.charts.svg import Box, Drawing, Scale
from headstart.lab.replay.outcome import Outcome
from headstart.lab.replay.wording import compact, count, percent


def hits_by_length(outcome: Outcome) -> Chart | None:
    """Boxes of the requests' hit shares, one for each doubling of the prompt; None without prompts."""
    buckets = by_prompt_length(outcome.served)
    if not buckets:
        return None
    rows = [
        [
            f"{count(each.low)} to {count(each.high - 1)}",
            *(count(each.num_requests), percent(each.full_hit_rate), percent(each.token_rate)),
            *(percent(value) for value in each.quantiles),
        ]
        for each in buckets
    ]
    headers = ["prompt tokens", "requests", "full hits", "token rate", "p10", "p25", "median", "p75", "p90"]
    return Chart(
        _draw("lengths-w", WIDE, buckets, outcome),
        _draw("lengths-n", NARROW, buckets, outcome),
        Numbers(headers, rows),
    )


def _draw(key: str, width: float, buckets: Sequence[LengthBucket], outcome: Outcome) -> Markup:
    height = 370.0
    rate, middle = outcome.rates.token_hit_rate, median(hit_shares(outcome.served))
    words = [f"token rate {percent(rate)}", f"median {percent(middle)}"]
    box = Box(52, 34, width - labels_width(words, width), height - 108)
    what = f"Over all requests: {words[0]}, {words[1]}. The buckets' figures are in the table below."
    drawing = Drawing(key, width, height, "Share of each prompt that was hit, by prompt length", what)
    y = Scale(0, 1, box.bottom, box.top)
    draw_shares(drawing, box, y, [0, 0.25, 0.5, 0.75, 1], "share of a prompt's tokens that hit")
    styles = ("token-rate", "median-line")
    labels = [
        Label(y(one), word, style) for one, word, style in zip((rate, middle), words, styles, strict=True)
    ]
    for label in labels:
        drawing.line((box.left, label.y), (box.right, label.y), f"line level {label.style}")
    slot = min(box.width / len(buckets), 150)
    strip = Scale(0, max(each.num_requests for each in buckets), height - 34, height - 66)
    for place, each in enumerate(buckets):
        x = box.left + slot * (place + 0.5)
        _draw_bucket(drawing, each, x, min(slot * 0.56, 44), y)
        wide = min(slot * 0.8, 60) / 2
        tooltip = f"{count(each.num_requests)} requests, {percent(each.num_requests / len(outcome.served))}"
        drawing.rect(Box(x - wide, strip(each.num_requests), x + wide, strip.start), "bar none", tooltip)
        if width > NARROW or place % 2 == 0:
            drawing.text((x, box.bottom + 18), f"≥{compact(each.low)}", "tick", "middle")
    drawing.line((box.left, strip.start), (box.right, strip.start), "base")
    drawing.text((box.right + 8, strip.start - 8), "requests", "tick")
    drawing.text(((box.left + box.right) / 2, height - 10), "prompt tokens, doubling", "caption", "middle")
    draw_labels(drawing, box.right, box, labels)
    return drawing.markup()


def _draw_bucket(drawing: Drawing, each: LengthBucket, x: float, width: float, y: Scale) -> None:
    p10, p25, p50, p75, p90 = each.quantiles
    half = width / 2
    tooltip = (
        f"{count(each.low)} to {count(each.high - 1)} prompt tokens, {count(each.num_requests)} requests\n"
        f"median {percent(p50)}, middle half {percent(p25)} to {percent(p75)}, "
        f"10th to 90th percentile {percent(p10)} to {percent(p90)}\n"
        f"token rate {percent(each.token_rate)}, full hits {percent(each.full_hit_rate)}"
    )
    drawing.line((x, y(p10)), (x, y(p90)), "whisker")
    drawing.rect(Box(x - half, y(p75), x + half, y(p25)), "box", tooltip)
    drawing.line((x - half, y(p50)), (x + half, y(p50)), "median")
    drawing.diamond((x, y(each.token_rate)), 5, "dot token-rate", f"token rate {percent(each.token_rate)}")
