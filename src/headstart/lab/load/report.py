"""A finished run of one scenario: everything that went into its figures, as JSON, table or Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.table import Table

from headstart.lab.load.figures import Group, Spread, doubts, summarise
from headstart.lab.load.machine import Machine
from headstart.lab.load.scenarios import Kind, Round, Scenario, Workload


@dataclass(frozen=True, slots=True)
class Setup:
    """What was run, against whom, from where."""

    scenario: Scenario
    base_url: str
    model: str
    workload: Workload
    seed: int
    machine: Machine


@dataclass(frozen=True, slots=True)
class Report:
    """One run.  ``warm_over_cold`` is the ratio of the median times to the first token."""

    setup: Setup
    date: datetime
    groups: dict[Kind, Group]
    warm_over_cold: float | None
    warnings: list[str]
    rounds: tuple[Round, ...]

    @classmethod
    def of(cls, setup: Setup, rounds: Sequence[Round]) -> Report:
        """The report on ``rounds``, dated now."""
        groups = summarise(rounds)
        ratio = None
        if "cold" in groups and "warm" in groups:
            ratio = groups["warm"].ttft_ms.median / groups["cold"].ttft_ms.median
        now = datetime.now(UTC).replace(microsecond=0)
        warnings = doubts(setup.scenario, rounds, shared_tokens=setup.workload.shared_tokens)
        return cls(setup, now, groups, ratio, warnings, tuple(rounds))

    def fields(self) -> dict[str, Any]:
        """Everything, in JSON's types.  A request's times count from its sending."""
        return {
            "setup": msgspec.to_builtins(self.setup),
            "date": self.date.isoformat(),
            "groups": msgspec.to_builtins(self.groups),
            "warm_over_cold": self.warm_over_cold,
            "warnings": self.warnings,
            "rounds": [_round_fields(each) for each in self.rounds],
        }

    def table(self) -> Table:
        """The figures, for people."""
        headers, rows = self.cells()
        setup = self.setup
        table = Table(
            title=f"{setup.scenario}: {setup.model} at {setup.base_url}, {setup.workload}",
            caption=f"Medians{self._conclusion()}. Measured from {setup.machine}; seed {setup.seed}.",
            title_justify="left",
            caption_justify="left",
        )
        for header in headers:
            table.add_column(header, justify="right" if header else "left")
        for row in rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        """The figures, for a document."""
        setup = self.setup
        return (
            f"{markdown_table(*self.cells())}\n\nMedians{self._conclusion()}. "
            f"{setup.model}, {setup.workload}; {setup.machine}; {self.date:%Y-%m-%d}."
        )

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Column headers, and a row of figures for each kind of round."""
        columns = _COLUMNS[self.setup.scenario]
        rows = [[kind, *(show(group) for show in columns.values())] for kind, group in self.groups.items()]
        return ["", *columns], rows

    def _conclusion(self) -> str:
        if self.warm_over_cold is None:
            return ""
        return f"; first token, warm / cold: {self.warm_over_cold:.3f}"


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown: words in the first column, figures in the others."""
    lines = [headers, ["---", *["---:"] * (len(headers) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _round_fields(each: Round) -> dict[str, Any]:
    return {
        "kind": each.kind,
        "repeat": each.repeat,
        "warmup": each.is_warmup,
        "requests": [
            {
                "ttft_ms": 1000 * timing.first_token,
                "total_ms": 1000 * (timing.end - timing.sent),
                "sent_prompt_tokens": timing.num_sent,
                "prompt_tokens": timing.usage.prompt_tokens,
                "cached_tokens": timing.usage.cached_tokens,
                "output_tokens": timing.num_tokens,
                "output_events": len(timing.arrivals),
            }
            for timing in each.timings
        ],
    }


def _figure(value: float | None) -> str:
    return "n/a" if value is None else f"{value:,.1f}"


def _median(spread: Spread | None) -> str:
    return _figure(None if spread is None else spread.median)


def _p95(spread: Spread | None) -> str:
    return _figure(None if spread is None else spread.p95)


def _p99(spread: Spread | None) -> str:
    return _figure(None if spread is None else spread.p99)


def _count(spread: Spread | None) -> str:
    """One number where all requests agree, else from … to."""
    if spread is None:
        return "n/a"
    low, high = f"{spread.minimum:,.0f}", f"{spread.maximum:,.0f}"
    return low if low == high else f"{low} to {high}"


# Column header → what it shows of a group; medians unless the header says otherwise.
_Columns = dict[str, Callable[[Group], str]]
_WHOLE: _Columns = {
    "first token ms": lambda group: _median(group.ttft_ms),
    "p95": lambda group: _p95(group.ttft_ms),
    "total s": lambda group: f"{group.seconds.median:,.2f}",
    "tokens/s": lambda group: _median(group.tokens_per_second),
    "prompt tokens": lambda group: _count(group.prompt_tokens),
    "cached tokens": lambda group: _count(group.cached_tokens),
}
_COLUMNS: dict[Scenario, _Columns] = {
    Scenario.FIRST_TOKEN: {
        "first token ms": lambda group: _median(group.ttft_ms),
        "p95": lambda group: _p95(group.ttft_ms),
        "prompt tokens": lambda group: _count(group.prompt_tokens),
        "cached tokens": lambda group: _count(group.cached_tokens),
    },
    Scenario.DECODE: {
        "tokens/s": lambda group: _median(group.decode_tokens_per_second),
        "per stream": lambda group: _median(group.stream_tokens_per_second),
        "token gap ms": lambda group: _median(group.itl_ms),
        "p95": lambda group: _p95(group.itl_ms),
        "p99": lambda group: _p99(group.itl_ms),
        "first token ms": lambda group: _median(group.ttft_ms),
        "output tokens": lambda group: _count(group.output_tokens),
    },
    Scenario.SHARED_PREFIX: _WHOLE,
    Scenario.UNSHARED: _WHOLE,
}
