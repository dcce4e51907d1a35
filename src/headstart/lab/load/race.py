"""Several servers, the same prompts, in turn: A, B, C, A, B, C."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from headstart.lab.load.client import LoadError
from headstart.lab.load.machine import describe_machine
from headstart.lab.load.peers import Peer, awake
from headstart.lab.load.progress import collect
from headstart.lab.load.prompts import PromptSource
from headstart.lab.load.report import Report, Setup, markdown_table
from headstart.lab.load.scenarios import Round, Scenario, Workload, repeat

GREETING_TOKENS = 16
"""How long a prompt is that only asks whether a server is there."""


@dataclass(frozen=True, slots=True)
class Event:
    """One scenario with one workload, which all run."""

    scenario: Scenario
    load: Workload

    def num_rounds(self, num_peers: int) -> int:
        """How many rounds `race` yields."""
        return self.scenario.num_rounds(self.load) * num_peers


async def race(
    event: Event, peers: Sequence[Peer], vocab: range, seed: int
) -> AsyncIterator[tuple[Peer, Round]]:
    """The rounds of ``event``: a repeat of each peer in turn, and only one peer awake at a time.

    Every peer gets the same prompts.  Each turn begins with a greeting that shares nothing with them.
    """
    sources = [PromptSource(vocab, seed) for _ in peers]
    for number in range(event.load.repeats + 1):
        for peer, prompts in zip(peers, sources, strict=True):
            try:
                async with awake(peer, prompts.prefix(GREETING_TOKENS)) as server:
                    async for each in repeat(event.scenario, server.complete, prompts, event.load, number):
                        yield peer, each
            except LoadError as error:
                raise LoadError(f"{peer.name}: {error}") from error


def measure(
    event: Event, peers: Sequence[Peer], vocab: range, *, label: str, console: Console
) -> dict[str, Report]:
    """Hold a race with prompts never used before: a report on each peer, by its name."""
    seed = secrets.randbits(32)
    rounds = asyncio.run(
        collect(
            race(event, peers, vocab, seed), total=event.num_rounds(len(peers)), label=label, console=console
        )
    )
    machine = describe_machine(["headstart", "torch"])
    return {
        peer.name: Report.of(
            Setup(event.scenario, peer.base_url, peer.name, event.load, seed, machine),
            [each for one, each in rounds if one is peer],
        )
        for peer in peers
    }


@dataclass(frozen=True, slots=True)
class Figure:
    """A line of a comparison: the median of each server by its name, ``None`` where there is none."""

    label: str
    values: Mapping[str, float | None]


def comparison(figures: Sequence[Figure]) -> str:
    """A Markdown table: each server's figure, and the first server's as a multiple of each other's."""
    first, *others = figures[0].values
    headers = ["", first, *others, *(f"{first} / {other}" for other in others)]
    rows = []
    for figure in figures:
        ratios = [_ratio(figure.values[first], figure.values[other]) for other in others]
        rows.append([figure.label, *map(_shown, figure.values.values()), *ratios])
    return markdown_table(headers, rows)


def _shown(value: float | None) -> str:
    if value is None:
        return "n/a"
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.1f}"


def _ratio(ours: float | None, theirs: float | None) -> str:
    return f"{ours / theirs:.2f}" if ours is not None and theirs else "n/a"
