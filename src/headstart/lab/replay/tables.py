"""A replay's report for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from headstart.cache.reasons import MissReason
from headstart.lab.replay.outcome import OPTIMAL, Bounds, Outcome, ReplayReport, Setting


def print_report(report: ReplayReport, console: Console) -> None:
    """Rates of all settings, where the other tokens went, the bounds, and what all of it means."""
    console.print(_heading(report))
    _print_whole(_rates_table(report, console), console)
    _print_misses(report, console)
    console.print()
    for bounds in report.bounds.values():
        console.print(_bounds_line(bounds))
    _print_sentences(console, "What is counted", report.definitions)
    _print_sentences(console, "To know", report.notes)


def _heading(report: ReplayReport) -> str:
    sizes = ", ".join(map(str, report.bounds))
    lines = "line" if report.num_skipped == 1 else "lines"
    skipped = f", {report.num_skipped:,} {lines} skipped" if report.num_skipped else ""
    warmup = f", the first {report.num_warmup:,} as warm-up" if report.num_warmup else ""
    requests = f"{report.num_requests:,} requests in blocks of {sizes} tokens{warmup}{skipped}"
    return f"[bold]{escape(report.trace_name)}[/] ({report.trace_format}): {requests}"


_SPARED = ("U/C", "of U", "blocks")
"""Columns that a narrow terminal does without, the first of them first."""


def _rates_table(report: ReplayReport, console: Console) -> Table:
    """With all columns in a file, and in a terminal that is wide enough."""
    words, figures = _words(report), _figures(report)
    table = _rates(report, words, figures)
    for header in _SPARED if console.is_terminal else ():
        if _natural_width(table, console) <= console.width:
            break
        figures.pop(header, None)
        table = _rates(report, words, figures)
    return table


def _rates(report: ReplayReport, words: _Columns, figures: _Columns) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for header in words:
        table.add_column(header, no_wrap=True)
    for header in figures:
        table.add_column(header, justify="right", no_wrap=True)
    for outcome in report.outcomes:
        table.add_row(*(show(outcome) for show in (*words.values(), *figures.values())))
    return table


_Columns = dict[str, Callable[[Outcome], str]]
"""Headers, and what they show of an outcome."""


def _words(report: ReplayReport) -> _Columns:
    """The columns that say which setting it is, those of load and replicas only where they are used."""
    settings = [outcome.setting for outcome in report.outcomes]
    columns: _Columns = {
        "policy": lambda one: one.setting.policy,
        "index": lambda one: "(blocks)" if one.setting.policy == OPTIMAL else one.setting.prefix_index,
    }
    if len(report.bounds) > 1:
        columns["block"] = lambda one: str(one.setting.block_size)
    if any(each.max_num_seqs is not None for each in settings):
        columns["at once"] = lambda one: str(one.setting.max_num_seqs or "none")
    if any(each.replicas > 1 for each in settings):
        columns["replicas"] = lambda one: f"{one.setting.replicas}, {one.setting.routing}"
    return columns


def _figures(report: ReplayReport) -> _Columns:
    columns: _Columns = {
        "capacity": lambda one: _capacity(one.setting),
        "of U": lambda one: _share(one.setting, report.bounds),
        "U/C": lambda one: _pressure(one.setting, report.bounds),
        "tokens": lambda one: _percent(one.rates.token_hit_rate),
        "full": lambda one: _percent(one.rates.request_full_hit_rate),
        "any": lambda one: _percent(one.rates.request_any_hit_rate),
        "blocks": lambda one: _percent(one.rates.block_hit_rate),
        "evicted": lambda one: f"{one.num_evicted_blocks:,}",
    }
    if any(outcome.setting.replicas > 1 for outcome in report.outcomes):
        del columns["U/C"]  # which part of U a replica gets is the router's affair
    return columns


def _capacity(setting: Setting) -> str:
    return "unbounded" if setting.capacity_blocks is None else f"{setting.capacity_blocks:,}"


def _share(setting: Setting, bounds: Mapping[int, Bounds]) -> str:
    unique = bounds[setting.block_size].num_unique_blocks
    capacity = setting.capacity_blocks
    return f"{capacity / unique:.1%}" if capacity is not None and unique else ""


def _pressure(setting: Setting, bounds: Mapping[int, Bounds]) -> str:
    capacity = setting.capacity_blocks
    return "" if capacity is None else f"{bounds[setting.block_size].pressure(capacity):,.2f}"


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%"


def _print_misses(report: ReplayReport, console: Console) -> None:
    """Of the first policy that knows no future: prompt tokens by what became of them."""
    outcomes = list(_first_series(report))
    if not outcomes:
        return
    setting = outcomes[0].setting
    console.print(
        f"\nWhat became of prompt tokens with the first of these: {setting.policy}, "
        f"{setting.prefix_index} index, blocks of {setting.block_size}"
    )
    reasons = [reason for reason in MissReason if any(reason in outcome.misses for outcome in outcomes)]
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for header in ("capacity", "hit", *(reason.replace("_", " ") for reason in reasons)):
        table.add_column(header, justify="right", no_wrap=True)
    for outcome in outcomes:
        tokens, misses = outcome.rates.num_prompt_tokens, outcome.misses
        shares = [misses.get(reason, 0) / tokens if tokens else 0.0 for reason in reasons]
        table.add_row(_capacity(outcome.setting), *map(_percent, (outcome.rates.token_hit_rate, *shares)))
    _print_whole(table, console)


def _first_series(report: ReplayReport) -> Iterator[Outcome]:
    online = [outcome for outcome in report.outcomes if outcome.setting.policy != OPTIMAL]
    for outcome in online:
        first, setting = online[0].setting, outcome.setting
        if replace(setting, capacity_blocks=first.capacity_blocks) == first:
            yield outcome


def _bounds_line(bounds: Bounds) -> str:
    rates = bounds.unbounded
    return (
        f"Bounds in blocks of {bounds.block_size}: N {bounds.num_blocks:,}, U {bounds.num_unique_blocks:,}, "
        f"(N - U)/N {bounds.reuse_bound:.2%}. Unbounded: token rate {rates.token_hit_rate:.2%}, full hits "
        f"{rates.request_full_hit_rate:.2%}, any hit {rates.request_any_hit_rate:.2%}, block rate "
        f"{rates.block_hit_rate:.2%}."
    )


def _natural_width(table: Table, console: Console) -> int:
    return console.measure(table, options=console.options.update_width(_WIDEST)).maximum


def _print_whole(table: Table, console: Console) -> None:
    """A table of figures, none of them cut: where there is no room its lines are longer."""
    table.width = _natural_width(table, console)
    console.print(table, crop=False)


_WIDEST = 1000


def _print_sentences(console: Console, title: str, sentences: list[str]) -> None:
    if sentences:
        console.print(f"\n[bold]{title}[/]")
    for sentence in sentences:
        console.print(Padding(escape(sentence), (0, 0, 0, 2)))
