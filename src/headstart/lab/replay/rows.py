"""The table of all that was replayed: a row for each outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headstart.cache.reasons import MissReason
from headstart.lab.replay.analysis import Result
from headstart.lab.replay.outcome import OPTIMAL, Bounds
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
    """All rows, in the order of the sweep.  ``common`` are settings that all of them have: name and value."""

    headers: list[str]
    rows: list[Row]
    common: list[tuple[str, str]]


_POLICY = "policy"
_NONE = "—"
_Make = Callable[[Result], Cell]


def table_of(results: Sequence[Result], baseline: Result, bounds: Mapping[int, Bounds]) -> Table:
    """The table.  Settings that all have in common, and counts that all have none of, get no column."""
    settings = _settings(results, bounds)
    values = {name: {make(one).words for one in results} - {_NONE} for name, make in settings.items()}
    common = {name: found.pop() for name, found in values.items() if name != _POLICY and len(found) == 1}
    columns = {name: make for name, make in settings.items() if name not in common}
    columns |= {**_rates(), **_counts(results)}
    rows = [Row([make(one) for make in columns.values()], one is baseline) for one in results]
    return Table(list(columns), rows, list(common.items()))


def _settings(results: Sequence[Result], bounds: Mapping[int, Bounds]) -> dict[str, _Make]:
    columns: dict[str, _Make] = {
        _POLICY: lambda one: Cell(policy_name(one.setting.policy)),
        "index": lambda one: Cell(_NONE if one.setting.policy == OPTIMAL else one.setting.prefix_index),
        "block size": lambda one: _number(one.setting.block_size),
        "capacity, blocks": lambda one: _limit(one.setting.capacity_blocks, "never evicts"),
        "capacity, tokens": lambda one: _limit(_tokens(one), "never evicts"),
    }
    if bounds:
        columns["U / C"] = lambda one: _pressure(one, bounds)
    if any(one.setting.max_num_seqs is not None for one in results):
        columns["at once"] = lambda one: _limit(one.setting.max_num_seqs, "one at a time")
    if any(one.setting.replicas > 1 for one in results):
        columns["replicas"] = lambda one: _number(one.setting.replicas)
        columns["routing"] = lambda one: Cell(one.setting.routing if one.setting.replicas > 1 else _NONE)
    return columns


def _rates() -> dict[str, _Make]:
    return {
        "token rate": lambda one: _share(one.rates.token_hit_rate, is_drawn=True),
        "full hits": lambda one: _share(one.rates.request_full_hit_rate),
        "any hit": lambda one: _share(one.rates.request_any_hit_rate),
        "block rate": lambda one: _share(one.rates.block_hit_rate),
    }


def _counts(results: Sequence[Result]) -> dict[str, _Make]:
    columns = {
        REASON_WORDS[reason]: _missed(reason)
        for reason in MissReason
        if any(one.misses.get(reason) for one in results)
    }
    columns["blocks evicted"] = lambda one: _number(one.outcome.num_evicted_blocks)
    if any(one.outcome.num_preemptions for one in results):
        columns["preemptions"] = lambda one: _number(one.outcome.num_preemptions)
    if any(one.outcome.refused for one in results):
        columns["do not fit"] = lambda one: _number(one.outcome.refused)
    return columns


def _missed(reason: MissReason) -> _Make:
    def cell(one: Result) -> Cell:
        tokens = one.rates.num_prompt_tokens
        return _share(one.misses.get(reason, 0) / tokens if tokens else 0.0)

    return cell


def _tokens(one: Result) -> int | None:
    blocks = one.setting.capacity_blocks
    return None if blocks is None else blocks * one.setting.block_size


def _pressure(one: Result, bounds: Mapping[int, Bounds]) -> Cell:
    blocks, of_size = one.setting.capacity_blocks, bounds.get(one.setting.block_size)
    if blocks is None or of_size is None:
        return Cell(_NONE, 0.0)
    return Cell(f"{of_size.pressure(blocks):.2f}", of_size.pressure(blocks))


def _share(value: float, *, is_drawn: bool = False) -> Cell:
    return Cell(percent(value), value, value if is_drawn else None)


def _number(value: int) -> Cell:
    return Cell(count(value), float(value))


def _limit(value: int | None, unlimited: str) -> Cell:
    """A number, or the word for none: sorted as the largest."""
    return Cell(unlimited, float("inf")) if value is None else _number(value)
