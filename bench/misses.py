"""What it costs to say why prompt tokens missed, and that a hit pays nothing.

Streams of distinct prompts run through the manager's door, each in a step of its own, with reports and
without; the difference is the cost, all of it: what is copied while steps run, and what is hashed and looked
up after them, where the server has already sent its tokens.  Four kinds of prompts: new ones, with and
without evictions; ones that differ from a cached text in their first token; ones that another namespace has.
Processor time, which neighbours on a shared machine disturb less than the clock's; medians over prompts.  The
goal is at most 0.3 ms for 1,000 missed tokens, with blocks of 16.

    python bench/misses.py            # print the table
    python bench/misses.py --write    # and put it into docs/benchmarks.md and bench/results/

Exits with 1 if the goal is missed.
"""

from __future__ import annotations

import random
import statistics
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import thread_time
from typing import Annotated, get_args

import typer
from rich.console import Console
from rich.progress import Progress

from headstart.cache import CacheConfig, CacheRequest, KVCacheManager, MissReason, Namespace
from headstart.config import PrefixIndexName
from headstart.lab.load.machine import describe_machine
from headstart.lab.load.publish import record
from headstart.lab.load.report import markdown_table

GOAL_MS = 0.3
BLOCK_SIZE = 16
NUM_BLOCKS = 50_000
KINDS = {
    "new": MissReason.COLD,
    "new, pool full": MissReason.COLD,
    "one token in front": MissReason.DIVERGED,
    "another namespace": MissReason.ISOLATED,
}
LENGTHS = (1_000, 8_000)
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Figure:
    """Median microseconds for one prompt: in its step, and afterwards; the former also without reports."""

    index: str
    kind: str
    prompt_tokens: int
    plain_us: float
    steps_us: float
    afterwards_us: float

    @property
    def ms_per_1000(self) -> float:
        """What reports cost for 1,000 missed tokens."""
        return (self.steps_us - self.plain_us + self.afterwards_us) / self.prompt_tokens


def one_pass(manager: KVCacheManager, request: CacheRequest, reason: MissReason) -> tuple[float, float]:
    """Seconds in the prompt's step, and for its report, which must give ``reason`` for most tokens."""
    began = thread_time()
    hit = manager.get_computed_blocks(request)
    grant = manager.allocate_slots(request, request.num_tokens - hit.num_tokens, hit)
    manager.commit_step()
    manager.free(request)
    sent = thread_time()
    reports = manager.explain_misses([request])
    done = thread_time()
    assert grant is not None, "the pool is large enough"
    for report in reports:
        assert report.tokens[reason] > 0.9 * request.num_tokens, report
    return sent - began, done - sent


def figure(index: PrefixIndexName, kind: str, length: int, repeats: int) -> Figure:
    """Measure one kind of prompt, with reports and without, in managers of their own, turn by turn."""
    draw = random.Random(0)
    blocks = NUM_BLOCKS if "full" not in kind else 2 * length // BLOCK_SIZE
    managers = [
        KVCacheManager(CacheConfig(blocks, BLOCK_SIZE, index=index, explain_misses=explained))
        for explained in (False, True)
    ]
    base = [draw.randrange(50_000) for _ in range(length)]
    times: list[list[tuple[float, float]]] = [[], []]
    for repeat in range(repeats + 4):
        tokens, salt = [draw.randrange(50_000) for _ in range(length)], None
        if kind == "one token in front":
            tokens = [100_000 + repeat, *base[1:]]
        elif kind == "another namespace":
            tokens, salt = base, f"tenant {repeat}"
        reason = KINDS[kind] if repeat else MissReason.COLD
        turn = list(zip(managers, times, strict=True))
        for manager, found in turn if repeat % 2 else reversed(turn):  # who comes first finds cold caches
            source = array("i", tokens).tobytes()
            request = CacheRequest(f"{repeat}", source, namespace=Namespace(salt=salt))
            found.append(one_pass(manager, request, reason))
    plain, explained = ([one[4:] for one in times][at] for at in (0, 1))  # the first ones warm the code
    return Figure(
        index=index,
        kind=kind,
        prompt_tokens=length,
        plain_us=1e6 * statistics.median(steps for steps, _ in plain),
        steps_us=1e6 * statistics.median(steps for steps, _ in explained),
        afterwards_us=1e6 * statistics.median(after for _, after in explained),
    )


def figures(repeats: int, progress: Progress) -> Iterator[Figure]:
    """All kinds of prompts."""
    kinds = [
        (index, kind, length) for index in get_args(PrefixIndexName) for kind in KINDS for length in LENGTHS
    ]
    for index, kind, length in progress.track(kinds, description="misses"):
        yield figure(index, kind, length, repeats)


def markdown(found: Sequence[Figure], repeats: int, date: datetime) -> str:
    """The figures as a table, in microseconds."""
    headers = [
        *("index, prompts", "prompt tokens", "step without reports", "step", "afterwards"),
        "ms for 1,000 missed tokens",
    ]
    rows = [
        [
            f"{each.index}, {each.kind}",
            f"{each.prompt_tokens:,}",
            f"{each.plain_us:,.0f}",
            f"{each.steps_us:,.0f}",
            f"{each.afterwards_us:,.0f}",
            f"{each.ms_per_1000:.2f}",
        ]
        for each in found
    ]
    return (
        f"{markdown_table(headers, rows)}\n\nMicroseconds, medians of {repeats}; {NUM_BLOCKS:,} blocks of "
        f"{BLOCK_SIZE}. {describe_machine()}; {date:%Y-%m-%d}."
    )


def main(
    write: Annotated[bool, typer.Option("--write", help="Write the figures into the documents.")] = False,
    repeats: Annotated[int, typer.Option(help="How often to measure each kind of prompt.", min=20)] = 50,
) -> None:
    """Measure what reports of misses cost."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        found = list(figures(repeats, progress))
    date = datetime.now(UTC)
    text = markdown(found, repeats, date)
    worst = max(found, key=lambda each: each.ms_per_1000)
    reached = worst.ms_per_1000 <= GOAL_MS
    print(text)
    print(
        f"\nGoal: at most {GOAL_MS} ms for 1,000 missed tokens. "
        f"{'Reached' if reached else 'MISSED'}: {worst.ms_per_1000:.3f} ms ({worst.index}, {worst.kind})."
    )
    if write:
        fields = {
            "date": date.isoformat(timespec="seconds"),
            "machine": asdict(describe_machine()),
            "repeats": repeats,
            "goal": {"ms_per_1000_tokens": GOAL_MS, "reached": reached},
            "figures": [asdict(each) | {"ms_per_1000": each.ms_per_1000} for each in found],
        }
        console.print(record(ROOT, "misses", text, fields))
    raise typer.Exit(0 if reached else 1)


if __name__ == "__main__":
    typer.run(main)
