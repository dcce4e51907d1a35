"""The table of all that was replayed: a row for each outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headstart.cache.reasons import MissReason
from headstart.lab.replay.outcome import OPTIMAL, Bounds, Outcome, Rates
from headstart.lab.replay.wording import REASON_WORDS, count, percent, policy_name


@dataclass(frozen=True, slots=True)
class Cell:
    """What a cell shows, and the number by which its column is sorted (its text, if that is None).

    ``share`` from 0 to 1 is also drawn as a bar.
    """

    words: str
    value: float | None = None
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One outcome.  ``is_baseline`` marks the one that the headline is about."""

    cells: list[Cell]
    is_baseline: bool


@dataclass(frozen=True, slots=True)
class Table:
    """All rows, in the order of the sweep."""

    headers: list[str]
    rows: list[Row]


_Make = Callable[[Outcome, Rates], Cell]


def table_of(outcomes: Sequence[Outcome], baseline: Outcome, bounds: Mapping[int, Bounds]) -> Table:
    """The table; columns in which all outcomes are alike and empty are left out."""
    columns = {**_settings(outcomes, bounds), **_rates(), **_counts(outcomes)}
    rows = []
    for one in outcomes:
        rates = one.rates
        rows.append(Row([make(one, rates) for make in columns.values()], one is baseline))
    return Table(list(columns), rows)


def _settings(outcomes: Sequence[Outcome], bounds: Mapping[int, Bounds]) -> dict[str, _Make]:
    columns: dict[str, _Make] = {
        "policy": lambda one, _: Cell(policy_name(one.setting.policy)),
        "index": lambda one, _: Cell("—" if one.setting.policy == OPTIMAL else one.setting.prefix_index),
        "block size": lambda one, _: _number(one.setting.block_size),
        "capacity, blocks": lambda one, _: _limit(one.setting.capacity_blocks, "never evicts"),
        "capacity, tokens": lambda one, _: _limit(_tokens(one), "never evicts"),
    }
    if bounds:
        columns["U / C"] = lambda one, _: _pressure(one, bounds)
    if any(one.setting.max_num_seqs is not None for one in outcomes):
        columns["at once"] = lambda one, _: _limit(one.setting.max_num_seqs, "one at a time")
    if any(one.setting.replicas > 1 for one in outcomes):
        columns["replicas"] = lambda one, _: _number(one.setting.replicas)
        columns["routing"] = lambda one, _: Cell(one.setting.routing if one.setting.replicas > 1 else "—")
    return columns


def _rates() -> dict[str, _Make]:
    return {
        "token rate": lambda _, rates: _share(rates.token_hit_rate, is_drawn=True),
        "full hits": lambda _, rates: _share(rates.request_full_hit_rate),
        "any hit": lambda _, rates: _share(rates.request_any_hit_rate),
        "block rate": lambda _, rates: _share(rates.block_hit_rate),
    }


def _counts(outcomes: Sequence[Outcome]) -> dict[str, _Make]:
    columns = {
        REASON_WORDS[reason]: _missed(reason)
        for reason in MissReason
        if any(one.misses.get(reason) for one in outcomes)
    }
    columns["blocks evicted"] = lambda one, _: _number(one.num_evicted_blocks)
    if any(one.num_preemptions for one in outcomes):
        columns["preemptions"] = lambda one, _: _number(one.num_preemptions)
    if any(one.refused for one in outcomes):
        columns["do not fit"] = lambda one, _: _number(one.refused)
    return columns


def _missed(reason: MissReason) -> _Make:
    def cell(one: Outcome, rates: Rates) -> Cell:
        return _share(one.misses.get(reason, 0) / rates.num_prompt_tokens if rates.num_prompt_tokens else 0.0)

    return cell


def _tokens(one: Outcome) -> int | None:
    blocks = one.setting.capacity_blocks
    return None if blocks is None else blocks * one.setting.block_size


def _pressure(one: Outcome, bounds: Mapping[int, Bounds]) -> Cell:
    blocks, of_size = one.setting.capacity_blocks, bounds.get(one.setting.block_size)
    if blocks is None or of_size is None:
        return Cell("—", 0.0)
    return Cell(f"{of_size.pressure(blocks):.2f}", of_size.pressure(blocks))


def _share(value: float, *, is_drawn: bool = False) -> Cell:
    return Cell(percent(value), value, value if is_drawn else None)


def _number(value: int) -> Cell:
    return Cell(count(value), float(value))


def _limit(value: int | None, unlimited: str) -> Cell:
    """A number, or the word for none: sorted as the largest."""
    return Cell(unlimited, float("inf")) if value is None else _number(value)
