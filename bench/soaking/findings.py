"""What came of a soak: counts, figures, faults, and the words for them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from headstart.lab.load.machine import describe_machine
from headstart.lab.load.report import markdown_table

MAX_FAULTS = 50


@dataclass(slots=True)
class Findings:
    """What came of it; ``faults`` are sentences, and there should be none."""

    minutes: float
    visitors: int
    tenants: int
    requests: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    left: int = 0
    broken: int = 0
    kills: int = 0
    twins: int = 0
    twins_with_hits: int = 0
    memory_mib: tuple[float, float] = (0.0, 0.0)
    processes: tuple[int, int] = (0, 0)
    descriptors: tuple[int, int] = (0, 0)
    seconds_to_end: float = 0.0
    faults: list[str] = field(default_factory=list)

    def demand(self, condition: bool, fault: str) -> None:
        """Note the fault, once, unless the condition holds."""
        if not condition and fault not in self.faults and len(self.faults) < MAX_FAULTS:
            self.faults.append(fault)

    @property
    def growth(self) -> float:
        """Of the memory, over the second half."""
        before, after = self.memory_mib
        return after / before - 1

    def plain(self) -> dict[str, Any]:
        """Everything, in JSON's types."""
        told = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in told.items()}

    def markdown(self, model: str, date: datetime) -> str:
        """The table, and what it is about."""
        kinds = [[kind, f"{count:,}"] for kind, count in sorted(self.requests.items())]
        statuses = ", ".join(f"{status} ({count:,})" for status, count in sorted(self.statuses.items()))
        first, last = self.memory_mib
        return (
            f"{markdown_table(['what was sent', 'times'], kinds)}\n\n"
            f"{self.minutes:g} minutes, {sum(self.requests.values()):,} requests by {self.visitors} at once, "
            f"{self.tenants} tenants; {self.left:,} clients left early; the engine was killed {self.kills} "
            f"times, amid {self.broken:,} streams.  Answers by status: {statuses}.  Afterwards: "
            f"the pool free, {self.processes[1]} processes "
            f"(before: {self.processes[0]}), {self.descriptors[1]} open files and sockets (before: "
            f"{self.descriptors[0]}), resident memory over the second half {first:,.0f} to {last:,.0f} MiB "
            f"({self.growth:+.1%}); {self.twins} sampled answers, {self.twins_with_hits} of them from the "
            f"cache, equal their cold twins; it ended {self.seconds_to_end:.1f} s after SIGTERM.  "
            f"{'No fault.' if not self.faults else f'{len(self.faults)} FAULTS.'}  {model}; "
            f"{describe_machine(['headstart', 'torch'])}; {date:%Y-%m-%d}."
        )
