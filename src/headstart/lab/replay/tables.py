"""A replay's report for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from headstart.cache.reasons import MissReason
from headstart.lab.replay.outcome import OPTIMAL, Bounds, Outcome, ReplayReport, Setting


def print_report(report: ReplayReport, console: Console) -> None:
    """Rates of all settings, where the other tokens went, the bounds, and what all of it means."""
    console.print(_heading(report))
    console.print(_rates_table(report))
    _print_misses(report, console)
    console.print()
    for bounds in report.bounds.values():
        console.print(_bounds_line(bounds))
    _print_sentences(console, "What is counted", report.definitions)
    _print_sentences(console, "To know", report.notes)


def _heading(report: ReplayReport) -> str:
    skipped = f", {report.num_skipped:,} lines skipped" if report.num_skipped else ""
    warmup = f", the first {report.num_warmup:,} as warm-up" if report.num_warmup else ""
    requests = f"{report.num_requests:,} requests{warmup}{skipped}"
    return f"[bold]{escape(report.trace_name)}[/] ({report.trace_format}): {requests}"


def _rates_table(report: ReplayReport) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="bold")
    varies = _Varies(report)
    for name in varies.names:
        table.add_column(name, no_wrap=True)
    headers = ("capacity", "of U", "U/C", "tokens", "full", "any", "blocks", "evicted")
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True)
    for outcome in report.outcomes:
        setting = outcome.setting
        bounds = report.bounds[setting.block_size]
        table.add_row(*varies.cells(setting), *_capacity(setting, bounds), *_rates(outcome))
    return table


class _Varies:
    """The columns that say which setting it is; those of load and replicas only where they are used."""

    def __init__(self, report: ReplayReport) -> None:
        settings = [outcome.setting for outcome in report.outcomes]
        self.names = ["policy", "index", "block"]
        self._with_seqs = any(each.max_num_seqs is not None for each in settings)
        self._with_replicas = any(each.replicas > 1 for each in settings)
        self.names += ["at once"] * self._with_seqs + ["replicas"] * self._with_replicas

    def cells(self, setting: Setting) -> list[str]:
        index = "(blocks)" if setting.policy == OPTIMAL else setting.prefix_index
        cells = [setting.policy, index, str(setting.block_size)]
        if self._with_seqs:
            cells.append("1" if setting.max_num_seqs is None else f"{setting.max_num_seqs:,}")
        if self._with_replicas:
            cells.append(f"{setting.replicas}, {setting.routing}")
        return cells


def _capacity(setting: Setting, bounds: Bounds) -> tuple[str, str, str]:
    capacity = setting.capacity_blocks
    if capacity is None:
        return _blocks(setting), "", ""
    share = f"{capacity / bounds.num_unique_blocks:.1%}" if bounds.num_unique_blocks else ""
    return _blocks(setting), share, f"{bounds.pressure(capacity):,.2f}"


def _blocks(setting: Setting) -> str:
    return "unbounded" if setting.capacity_blocks is None else f"{setting.capacity_blocks:,}"


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%"


def _rates(outcome: Outcome) -> Iterator[str]:
    rates = outcome.rates
    yield _percent(rates.token_hit_rate)
    yield _percent(rates.request_full_hit_rate)
    yield _percent(rates.request_any_hit_rate)
    yield _percent(rates.block_hit_rate)
    yield f"{outcome.num_evicted_blocks:,}"


def _print_misses(report: ReplayReport, console: Console) -> None:
    """Of the first policy that knows no future: prompt tokens by what became of them."""
    outcomes = list(_first_series(report))
    if not outcomes:
        return
    setting = outcomes[0].setting
    console.print(
        f"\nWhat became of prompt tokens: {setting.policy}, {setting.prefix_index} index, blocks of "
        f"{setting.block_size}"
    )
    reasons = [reason for reason in MissReason if any(reason in outcome.misses for outcome in outcomes)]
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for header in ("capacity", "hit", *(reason.replace("_", " ") for reason in reasons)):
        table.add_column(header, justify="right", no_wrap=True)
    for outcome in outcomes:
        tokens, misses = outcome.rates.num_prompt_tokens, outcome.misses
        shares = [misses.get(reason, 0) / tokens if tokens else 0.0 for reason in reasons]
        table.add_row(_blocks(outcome.setting), *map(_percent, (outcome.rates.token_hit_rate, *shares)))
    console.print(table)


def _first_series(report: ReplayReport) -> Iterator[Outcome]:
    online = [outcome for outcome in report.outcomes if outcome.setting.policy != OPTIMAL]
    for outcome in online:
        first, setting = online[0].setting, outcome.setting
        alike = (first.policy, first.prefix_index, first.block_size)
        if (setting.policy, setting.prefix_index, setting.block_size) == alike:
            yield outcome


def _bounds_line(bounds: Bounds) -> str:
    rates = bounds.unbounded
    return (
        f"Bounds in blocks of {bounds.block_size}: N {bounds.num_blocks:,}, U {bounds.num_unique_blocks:,}, "
        f"(N - U)/N {bounds.reuse_bound:.2%}. Unbounded: token rate {rates.token_hit_rate:.2%}, full hits "
        f"{rates.request_full_hit_rate:.2%}, any hit {rates.request_any_hit_rate:.2%}, block rate "
        f"{rates.block_hit_rate:.2%}."
    )


def _print_sentences(console: Console, title: str, sentences: list[str]) -> None:
    if sentences:
        console.print(f"\n[bold]{title}[/]")
    for sentence in sentences:
        console.print(Padding(escape(sentence), (0, 0, 0, 2)))
