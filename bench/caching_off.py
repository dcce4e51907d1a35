"""Prefix caching on against off: what it brings where prompts share, what it costs where they do not.

Starts headstart with SmolLM2-135M twice, with prefix caching and with --no-enable-prefix-caching, and
sends both the same rounds in turn, while the other is stopped.  Two workloads: streams with a prefix
never seen (cold), then as many others with the same one (warm); and streams that share nothing.

    python bench/caching_off.py            # print the table
    python bench/caching_off.py --write    # and put it into docs/benchmarks.md and bench/results/

Goals: a warm round brings twice the tokens per second and its first tokens in 30 % of the time;
streams that share nothing take at most 2 % longer.  Exits with 1 if one is missed.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headstart.lab.load.figures import Group
from headstart.lab.load.peers import Entrant, taking_part
from headstart.lab.load.publish import record
from headstart.lab.load.race import GREETING_TOKENS, Event, measure
from headstart.lab.load.report import Report, markdown_table
from headstart.lab.load.scenarios import Kind, Scenario, Workload

MODEL = "smollm2-135m"
VOCAB = range(1000, 20_000)
GREETING = [VOCAB.stop] * GREETING_TOKENS  # begins with a token that no prompt holds
ON, OFF = "caching on", "caching off"
ROOT = Path(__file__).resolve().parent.parent

THROUGHPUT_GOAL = 2.0
FIRST_TOKEN_GOAL = 0.3
UNSHARED_GOAL = 1.02


def entrant(name: str, *options: str) -> Entrant:
    """A server with memory enough for all streams even where they share nothing."""
    serve = (sys.executable, "-m", "headstart", "serve", MODEL, "--port", "{port}")
    return Entrant(name, (*serve, "--kv-cache-memory-bytes", "1GiB", *options))


@dataclass(frozen=True)
class Verdict:
    """The medians of the ratios, on / off, of rounds that were measured right after each other."""

    throughput: float
    first_token: float
    unshared: float
    unshared_spread: tuple[float, float]

    @classmethod
    def of(cls, shared: dict[str, Report], unshared: dict[str, Report]) -> Verdict:
        """What both workloads say."""
        seconds = ratios(unshared, "unshared", lambda group: group.seconds.median)
        return cls(
            statistics.median(ratios(shared, "warm", lambda group: group.tokens_per_second.median)),
            statistics.median(ratios(shared, "warm", lambda group: group.ttft_ms.median)),
            statistics.median(seconds),
            (min(seconds), max(seconds)),
        )

    @property
    def reached(self) -> bool:
        """Whether all goals are."""
        return (
            self.throughput >= THROUGHPUT_GOAL
            and self.first_token <= FIRST_TOKEN_GOAL
            and self.unshared <= UNSHARED_GOAL
        )

    def __str__(self) -> str:
        low, high = self.unshared_spread
        return (
            f"Caching on / off: warm streams bring {self.throughput:.2f} times the tokens per second (goal: "
            f"{THROUGHPUT_GOAL:g}) and take {self.first_token:.2f} of the time to their first token (goal: "
            f"{FIRST_TOKEN_GOAL:g}); streams that share nothing take {self.unshared:.3f} of the time (goal: "
            f"{UNSHARED_GOAL:g}; single rounds {low:.3f} to {high:.3f})"
        )


def ratios(reports: dict[str, Report], kind: Kind, read: Callable[[Group], float]) -> list[float]:
    """``read`` of a round with caching, divided by the same without, for each repeat."""
    on, off = (
        [Group.of([each]) for each in reports[name].rounds if each.kind == kind and not each.is_warmup]
        for name in (ON, OFF)
    )
    return [read(mine) / read(theirs) for mine, theirs in zip(on, off, strict=True)]


def markdown(shared: dict[str, Report], unshared: dict[str, Report]) -> str:
    """All reports in one table, and the verdict."""
    rows = []
    for reports in (shared, unshared):
        for name, report in reports.items():
            headers, cells = report.cells()
            rows += [[f"{name}, {row[0]}", *row[1:]] for row in cells]
    verdict = Verdict.of(shared, unshared)
    return (
        f"{markdown_table(headers, rows)}\n\nMedians. {verdict}. {MODEL}, {shared[ON].setup.workload}; "
        f"unshared: {unshared[ON].setup.workload}; {shared[ON].setup.machine}; {shared[ON].date:%Y-%m-%d}."
    )


def main(
    write: Annotated[bool, typer.Option("--write", help="Write the figures into the documents.")] = False,
    concurrency: Annotated[int, typer.Option(help="Streams at once.", min=1)] = 8,
    repeats: Annotated[
        int, typer.Option(help="How often to measure; what shares nothing three times as often.", min=1)
    ] = 3,
) -> None:
    """Measure streams that share and streams that do not, with caching and without."""
    console = Console(stderr=True)
    load = Workload(output_tokens=32, concurrency=concurrency, repeats=repeats)
    apart = Workload(shared_tokens=0, output_tokens=32, concurrency=concurrency, repeats=3 * repeats)
    with ExitStack() as stack:
        peers = []
        for one in (entrant(ON), entrant(OFF, "--no-enable-prefix-caching")):
            with console.status(f"starting {MODEL}, {one.name} …"):
                peers.append(stack.enter_context(taking_part(one, GREETING)))
        label = "one prefix: caching on, then off"
        shared = measure(Event(Scenario.SHARED_PREFIX, load), peers, VOCAB, label=label, console=console)
        label = "nothing shared: caching on, then off"
        unshared = measure(Event(Scenario.UNSHARED, apart), peers, VOCAB, label=label, console=console)
    print(markdown(shared, unshared))
    reached = Verdict.of(shared, unshared).reached
    print(f"\n{'Reached' if reached else 'MISSED'}.")
    if write:
        fields = {
            "reached": reached,
            "shared": {name: report.fields() for name, report in shared.items()},
            "unshared": {name: report.fields() for name, report in unshared.items()},
        }
        console.print(record(ROOT, "caching-off", markdown(shared, unshared), fields))
    raise typer.Exit(0 if reached else 1)


if __name__ == "__main__":
    typer.run(main)
