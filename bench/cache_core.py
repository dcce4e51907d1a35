"""The cache core alone: what a hit costs before any tensor is touched.

A prompt that hits all but its last 8 tokens goes through the manager's door: request, lookup, allocate,
commit, free; for both indexes and prompts up to 131,072 tokens, from a list of ints and from a buffer of
32-bit integers, as prompts reach the engine.  Medians over repeats with fresh random tails; the garbage
collector stays on.  The goal: at most 0.3 ms for 131,072 tokens from a buffer with the radix index.

    python bench/cache_core.py            # print the table
    python bench/cache_core.py --write    # and put it into docs/benchmarks.md and bench/results/
    python bench/cache_core.py --estimate-hit-rates    # with the estimates that a server makes on the side

Exits with 1 if the goal is missed.
"""

from __future__ import annotations

import random
import statistics
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Annotated, get_args

import typer
from rich.console import Console
from rich.progress import Progress

from headstart.cache import CacheConfig, CacheRequest, KVCacheManager
from headstart.cache.whatif import WhatIf
from headstart.config import PrefixIndexName
from headstart.lab.load.machine import describe_machine
from headstart.lab.load.publish import record
from headstart.lab.load.report import markdown_table

GOAL_MS = 0.3
LENGTHS = (1024, 8192, 32_768, 131_072)
SOURCES: dict[str, Callable[[list[int]], list[int] | bytes]] = {
    "list": list,
    "buffer": lambda tokens: array("i", tokens).tobytes(),
}
PHASES = ("request", "lookup", "allocate", "commit", "free")
FRESH_TOKENS = 8
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Figure:
    """Median microseconds of each phase, and of all together, for one kind of prompt."""

    index: str
    source: str
    prompt_tokens: int
    hit_tokens: int
    phases_us: dict[str, float]
    total_us: float


def one_pass(manager: KVCacheManager, name: str, tokens: list[int] | bytes) -> tuple[list[float], int]:
    """Seconds of each phase, and the tokens hit, of one prompt through the whole door."""
    times = [perf_counter()]
    request = CacheRequest(name, tokens)
    times.append(perf_counter())
    hit = manager.get_computed_blocks(request)
    times.append(perf_counter())
    grant = manager.allocate_slots(request, request.num_tokens - hit.num_tokens, hit)
    times.append(perf_counter())
    manager.commit_step()
    times.append(perf_counter())
    manager.free(request)
    times.append(perf_counter())
    assert grant is not None, "the pool is large enough"
    return [end - start for start, end in pairwise(times)], hit.num_tokens


def figure(index: PrefixIndexName, source: str, length: int, repeats: int, *, watched: bool) -> Figure:
    """Measure one kind of prompt with a manager of its own."""
    draw = random.Random(0)
    what_if = WhatIf(100_000, 16) if watched else None
    config = CacheConfig(num_blocks=100_000, block_size=16, index=index, explain_misses=False)
    manager = KVCacheManager(config, what_if=what_if)
    base = [draw.randrange(50_000) for _ in range(length)]
    passes = []
    for repeat in range(repeats + 3):
        tail = [draw.randrange(50_000) for _ in range(FRESH_TOKENS)]
        passes.append(one_pass(manager, f"{length}-{repeat}", SOURCES[source](base[:-FRESH_TOKENS] + tail)))
    measured = passes[3:]  # the first fills the cache, the next two warm the code
    return Figure(
        index=index,
        source=source,
        prompt_tokens=length,
        hit_tokens=min(hit for _, hit in measured),
        phases_us={
            phase: 1e6 * statistics.median(times[at] for times, _ in measured)
            for at, phase in enumerate(PHASES)
        },
        total_us=1e6 * statistics.median(sum(times) for times, _ in measured),
    )


def figures(repeats: int, progress: Progress, *, watched: bool) -> Iterator[Figure]:
    """All kinds of prompts."""
    kinds = [
        (index, source, length)
        for index in get_args(PrefixIndexName)
        for source in SOURCES
        for length in LENGTHS
    ]
    for index, source, length in progress.track(kinds, description="cache core"):
        yield figure(index, source, length, repeats, watched=watched)


def markdown(found: Sequence[Figure], repeats: int, date: datetime) -> str:
    """The figures as a table, in microseconds."""
    headers = ["index, tokens from", "prompt tokens", "hit tokens", *PHASES, "total µs"]
    rows = [
        [
            f"{each.index}, {each.source}",
            f"{each.prompt_tokens:,}",
            f"{each.hit_tokens:,}",
            *(f"{each.phases_us[phase]:,.1f}" for phase in PHASES),
            f"{each.total_us:,.1f}",
        ]
        for each in found
    ]
    return (
        f"{markdown_table(headers, rows)}\n\nMicroseconds, medians of {repeats}; 100,000 blocks of 16. "
        f"{describe_machine()}; {date:%Y-%m-%d}."
    )


def main(
    write: Annotated[bool, typer.Option("--write", help="Write the figures into the documents.")] = False,
    repeats: Annotated[int, typer.Option(help="How often to measure each kind of prompt.", min=20)] = 50,
    estimate_hit_rates: Annotated[
        bool, typer.Option("--estimate-hit-rates", help="Let `WhatIf` watch, as in a server.")
    ] = False,
) -> None:
    """Measure the cache core."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        found = list(figures(repeats, progress, watched=estimate_hit_rates))
    date = datetime.now(UTC)
    text = markdown(found, repeats, date)
    longest = next(
        each
        for each in found
        if (each.index, each.source, each.prompt_tokens) == ("radix", "buffer", LENGTHS[-1])
    )
    reached = longest.total_us <= 1000 * GOAL_MS
    print(text)
    print(
        f"\nGoal: radix, {LENGTHS[-1]:,} tokens from a buffer, at most {GOAL_MS} ms. "
        f"{'Reached' if reached else 'MISSED'}: {longest.total_us / 1000:.3f} ms."
    )
    if write:
        fields = {
            "date": date.isoformat(timespec="seconds"),
            "machine": asdict(describe_machine()),
            "repeats": repeats,
            "goal": {"total_ms": GOAL_MS, "reached": reached},
            "figures": [asdict(each) for each in found],
        }
        console.print(record(ROOT, "cache-core", text, fields))
    raise typer.Exit(0 if reached else 1)


if __name__ == "__main__":
    typer.run(main)
