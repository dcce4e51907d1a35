"""A replay's report as one HTML file that needs nothing else: no network; its script only sorts tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from headstart.cache.reasons import MissReason
from headstart.cache.tokens import TOKEN_BYTES, ints_of
from headstart.lab.replay.analysis import Result, baseline_of, over_time
from headstart.lab.replay.charts.axes import Chart
from headstart.lab.replay.charts.bars import rate_bars
from headstart.lab.replay.charts.curve import capacity_curve
from headstart.lab.replay.charts.histograms import prefix_lengths, reuse_distances
from headstart.lab.replay.charts.lengths import hits_by_length
from headstart.lab.replay.charts.misses import misses_over_time
from headstart.lab.replay.headline import headline
from headstart.lab.replay.outcome import OPTIMAL, Bounds, ReplayReport, Setting
from headstart.lab.replay.prefixes import PrefixTree, ReuseDistances, ValuablePrefix, valuable_prefixes
from headstart.lab.replay.rows import table_of
from headstart.lab.replay.wording import REASON_WORDS, SettingNames, count, percent, points, series_of
from headstart.lab.traces.trace import Trace

ShowText = Callable[[Sequence[int]], str]
"""Token ids as text."""

_MOST_STACKS = 8
_TEXT_TOKENS, _TEXT_CHARACTERS = 32, 90


@dataclass(frozen=True, slots=True)
class _Stack:
    """Misses over time of one outcome."""

    name: str
    chart: Chart
    is_baseline: bool


def render(
    report: ReplayReport,
    trace: Trace,
    *,
    show_text: ShowText | None = None,
    baseline: Setting | None = None,
) -> str:
    """The page.

    No prompt's text is in it unless ``show_text`` makes it of token ids; a trace of hash ids has none.
    ``baseline`` is the setting that stands for the present state, which all else is compared with; by default
    one is chosen, see `baseline_of`.  ``trace`` must be the one that the report is of.
    """
    results = [Result.of(outcome) for outcome in report.outcomes]
    chosen = next((one for one in results if one.setting == baseline), None) or baseline_of(results)
    environment = Environment(
        loader=PackageLoader("headstart.lab.replay", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "count": count, "points": points}
    content = {} if chosen is None else _content(report, trace, results, chosen, show_text)
    page = environment.get_template("report.html.j2").render(
        report=report,
        num_counted=report.num_requests - report.num_warmup,
        num_prompt_tokens=trace.num_prompt_tokens,
        definitions=[_term(sentence) for sentence in report.definitions],
        baseline=chosen,
        **content,
    )
    return page.rstrip() + "\n"


def _content(
    report: ReplayReport,
    trace: Trace,
    results: Sequence[Result],
    baseline: Result,
    show_text: ShowText | None,
) -> dict[str, Any]:
    size = baseline.setting.block_size
    bounds = report.bounds.get(size)
    names = SettingNames(one.setting for one in results)
    tree = PrefixTree.of(trace, size)
    reuse = ReuseDistances.of(tree)
    capacities = sorted(
        {one.setting.capacity_blocks or 0 for one in results if one.setting.block_size == size} - {0}
    )
    valuable = valuable_prefixes(tree, baseline.outcome)
    return {
        "headline": headline(baseline, results, bounds),
        "facts": _facts(baseline, results, bounds, names.full(baseline.setting)),
        "baseline_name": names.full(baseline.setting),
        "curve": capacity_curve(results, baseline, bounds),
        "bars": rate_bars(results, baseline, bounds),
        "table": table_of(results, baseline, report.bounds),
        "stacks": _stacks(baseline, results, trace, names),
        "reasons": [reason for reason in MissReason if any(one.misses.get(reason) for one in results)],
        "reason_words": REASON_WORDS,
        "shared": prefix_lengths(tree),
        "reuse": reuse,
        "reuse_chart": reuse_distances(reuse, capacities),
        "prefixes": valuable,
        "prefix_places": _places(valuable, trace),
        "prefix_texts": _texts(valuable, trace, show_text),
        "num_hit_tokens": baseline.rates.num_hit_tokens,
        "lengths": hits_by_length(baseline.outcome),
        "rates": baseline.rates,
    }


def _facts(
    baseline: Result, results: Sequence[Result], bounds: Bounds | None, name: str
) -> list[tuple[str, str]]:
    """The figures on top: what each is, and the figure."""
    setting = baseline.setting
    facts = [(f"of prompt tokens hit with {name}", percent(baseline.rates.token_hit_rate))]
    best = next(
        (one for one in results if one.setting == replace(_as_optimal(one, setting), policy=OPTIMAL)), None
    )
    if best is not None:
        facts.append(("the most any policy could, at this capacity", percent(best.rates.token_hit_rate)))
    if bounds is not None:
        facts.append(("a cache that never evicts", percent(bounds.unbounded.token_hit_rate)))
        if setting.capacity_blocks is not None:
            facts.append(
                ("U / C: different blocks over capacity", f"{bounds.pressure(setting.capacity_blocks):.2g}")
            )
    return facts


def _as_optimal(one: Result, setting: Setting) -> Setting:
    """``setting`` with what the optimum does not depend on as ``one`` has it."""
    return replace(setting, prefix_index=one.setting.prefix_index, max_num_seqs=one.setting.max_num_seqs)


def _stacks(baseline: Result, results: Sequence[Result], trace: Trace, names: SettingNames) -> list[_Stack]:
    """The baseline's misses over time, and its neighbours': other capacities before other policies."""
    own = baseline.setting
    alike = [one for one in results if series_of(one.setting) == series_of(own)]
    others = [one for one in results if one.setting.capacity_blocks == own.capacity_blocks]
    chosen: dict[Setting, Result] = {own: baseline}
    chosen |= {one.setting: one for one in [*alike, *others] if one is not baseline}
    stacks = []
    few = list(chosen)[:_MOST_STACKS]
    for number, one in enumerate(one for one in results if one.setting in few):
        bins = over_time(one.outcome, trace)
        if bins:
            name = names.full(one.setting)
            stacks.append(_Stack(name, misses_over_time(f"stack{number}", bins, name), one is baseline))
    return stacks


def _places(prefixes: Sequence[ValuablePrefix], trace: Trace) -> list[str]:
    """Where each was first seen: the line, or the request's number where the trace has no lines."""
    requests = [trace.requests[one.request] for one in prefixes]
    has_files = len({request.file for request in trace.requests}) > 1
    return [
        f"{request.file + ':' if has_files else ''}{count(request.line or one.request + 1)}"
        for one, request in zip(prefixes, requests, strict=True)
    ]


def _texts(prefixes: Sequence[ValuablePrefix], trace: Trace, show_text: ShowText | None) -> list[str] | None:
    """How each prefix's own part begins; None where no text may be shown, or there is none."""
    if show_text is None or trace.tokens_per_symbol > 1:
        return None
    texts = []
    for one in prefixes:
        start = one.num_tokens - one.num_own_tokens
        stop = min(one.num_tokens, start + _TEXT_TOKENS)
        run = trace.requests[one.request].symbols[start * TOKEN_BYTES : stop * TOKEN_BYTES]
        words = " ".join(show_text(ints_of(run)).split())
        is_whole = stop == one.num_tokens and len(words) <= _TEXT_CHARACTERS
        texts.append(words if is_whole else f"{words[:_TEXT_CHARACTERS]}…")
    return texts


def _term(sentence: str) -> tuple[str, str]:
    """A definition's word and its meaning; without a colon near the beginning it is all meaning."""
    word, colon, meaning = sentence.partition(": ")
    return (word, meaning[:1].upper() + meaning[1:]) if colon and len(word) <= 40 else ("", sentence)
