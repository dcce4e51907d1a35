"""What an eviction costs, and whether that grows with the pool.

A pool is filled with prompts of 8 blocks that have nothing in common, a third of which are used again; then
further ones come in, each of which takes 8 blocks from others.  Measured is all that a manager does for them:
allocate (which evicts), commit, free; per block, for pools of 10,000 and 100,000 blocks in turn, every policy
and both indexes.  The goal: ten times as many blocks, at most 1.3 times as much per block.

    python bench/eviction_cost.py            # print the table
    python bench/eviction_cost.py --write    # and put it into docs/benchmarks.md and bench/results/

Exits with 1 if the goal is missed.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Annotated, get_args

import typer
from rich.console import Console
from rich.progress import Progress

from headstart.cache import CacheConfig, CacheRequest, KVCacheManager
from headstart.config import PolicyName, PrefixIndexName
from headstart.lab.load.machine import describe_machine
from headstart.lab.load.publish import record
from headstart.lab.load.report import markdown_table

GOAL = 1.3
POOLS = (10_000, 100_000)
BLOCK_SIZE, PROMPT_BLOCKS = 4, 8
PROMPTS_PER_ROUND = 250
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Figure:
    """Median microseconds per evicted block, for each pool, and the median of their ratios by rounds."""

    index: str
    policy: str
    per_block_us: list[float]
    ratio: float


class Turnover:
    """A full pool, and an endless supply of prompts that it has never seen."""

    def __init__(self, num_blocks: int, index: PrefixIndexName, policy: PolicyName) -> None:
        config = CacheConfig(num_blocks, BLOCK_SIZE, index=index, policy=policy, explain_misses=False)
        self._manager = KVCacheManager(config)
        self._count = 0
        for number in range(num_blocks // PROMPT_BLOCKS + 100):
            request = self._new()
            self._serve(request)
            if number % 3 == 0:
                again = CacheRequest("again", request.run(0, request.num_tokens))
                self._serve(again)

    def _new(self) -> CacheRequest:
        self._count += 1
        first = self._count * BLOCK_SIZE * PROMPT_BLOCKS
        return CacheRequest(f"r{self._count}", range(first, first + BLOCK_SIZE * PROMPT_BLOCKS))

    def _serve(self, request: CacheRequest) -> None:
        manager = self._manager
        manager.begin_step(float(self._count))
        hit = manager.get_computed_blocks(request)
        grant = manager.allocate_slots(request, request.num_tokens - hit.num_tokens, hit)
        assert grant is not None, "nobody holds anything"
        manager.commit_step()
        manager.free(request)

    def round(self) -> float:
        """Seconds per block taken, nearly all of which are evicted."""
        manager = self._manager
        requests = [self._new() for _ in range(PROMPTS_PER_ROUND)]
        # The digests are computed here, and are no part of the figure.
        hits = [manager.get_computed_blocks(request).num_tokens for request in requests]
        before, spent = manager.num_evicted_blocks, 0.0
        for request in requests:
            self._count += 1
            started = perf_counter()
            manager.begin_step(float(self._count))
            manager.allocate_slots(request, request.num_tokens)
            manager.commit_step()
            manager.free(request)
            spent += perf_counter() - started
        assert not any(hits)
        taken = PROMPTS_PER_ROUND * PROMPT_BLOCKS
        assert manager.num_evicted_blocks - before > 0.9 * taken  # `hash` with lru keeps some without a hash
        return spent / taken


def figure(index: PrefixIndexName, policy: PolicyName, rounds: int) -> Figure:
    """Measure one policy, both pools in turn.  Without the garbage collector: its time is the heap's."""
    pools = [Turnover(num_blocks, index, policy) for num_blocks in POOLS]
    gc.collect()
    gc.disable()
    try:
        for pool in pools:
            pool.round()
        times = [[pool.round() for pool in pools] for _ in range(rounds)]
    finally:
        gc.enable()
    small, large = zip(*times, strict=True)
    ratio = statistics.median(b / a for a, b in times)
    return Figure(index, policy, [1e6 * statistics.median(small), 1e6 * statistics.median(large)], ratio)


def figures(rounds: int, progress: Progress) -> Iterator[Figure]:
    """All policies in both indexes."""
    kinds = [(index, policy) for index in get_args(PrefixIndexName) for policy in get_args(PolicyName)]
    for index, policy in progress.track(kinds, description="eviction"):
        yield figure(index, policy, rounds)


def markdown(found: Sequence[Figure], rounds: int, date: datetime) -> str:
    """The figures as a table, in microseconds."""
    headers = ["index, policy", *(f"{pool:,} blocks, µs" for pool in POOLS), "ratio"]
    rows = [
        [f"{each.index}, {each.policy}", *(f"{time:.2f}" for time in each.per_block_us), f"{each.ratio:.2f}"]
        for each in found
    ]
    return (
        f"{markdown_table(headers, rows)}\n\nPer evicted block, medians of {rounds} rounds of "
        f"{PROMPTS_PER_ROUND * PROMPT_BLOCKS:,} evictions; goal: a ratio of at most {GOAL}. "
        f"{describe_machine()}; {date:%Y-%m-%d}."
    )


def main(
    write: Annotated[bool, typer.Option("--write", help="Write the figures into the documents.")] = False,
    rounds: Annotated[int, typer.Option(help="How often to measure each policy.", min=3)] = 15,
) -> None:
    """Measure evictions."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        found = list(figures(rounds, progress))
    date = datetime.now(UTC)
    text = markdown(found, rounds, date)
    worst = max(found, key=lambda each: each.ratio)
    reached = worst.ratio <= GOAL
    print(text)
    print(f"\n{'Reached' if reached else 'MISSED'}: {worst.ratio:.2f} with {worst.index}, {worst.policy}.")
    if write:
        fields = {
            "date": date.isoformat(timespec="seconds"),
            "machine": asdict(describe_machine()),
            "rounds": rounds,
            "goal": {"ratio": GOAL, "reached": reached},
            "figures": [asdict(each) for each in found],
        }
        console.print(record(ROOT, "eviction-cost", text, fields))
    raise typer.Exit(0 if reached else 1)


if __name__ == "__main__":
    typer.run(main)
