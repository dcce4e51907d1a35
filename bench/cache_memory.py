"""The cache core's memory: a million distinct prompts through a pool of 10,000 blocks.

Nothing that was evicted may leave anything behind.  Each index gets a process of its own; every prompt is
new, a tenth of them come with a salt that nobody else uses, and the resident memory is read as they go.  The
goal: after the first tenth it stays within 5 %.

    python bench/cache_memory.py                       # print the table; some minutes
    python bench/cache_memory.py --prompts 100000      # a shorter look
    python bench/cache_memory.py --write               # and put it into docs/benchmarks.md and bench/results/

Exits with 1 if the goal is missed.  Reads /proc, so it needs Linux.
"""

from __future__ import annotations

import multiprocessing
import os
import random
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Annotated, get_args

import typer
from rich.console import Console
from rich.progress import Progress

from headstart.cache import CacheConfig, CacheRequest, KVCacheManager, Namespace
from headstart.config import PrefixIndexName
from headstart.lab.load.machine import describe_machine
from headstart.lab.load.publish import record
from headstart.lab.load.report import markdown_table

GROWTH_GOAL = 0.05
NUM_BLOCKS = 10_000
VOCABULARY = range(50_000)
STRETCHES = 10  # the run is told in so many parts
SAMPLES = 20  # of the memory, in each part
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Figures:
    """Resident MiB with one index: the median of each part of the run."""

    index: str
    stretches_mib: list[float]

    @property
    def growth(self) -> float:
        """By which share the memory moved furthest from that of the first part."""
        first = self.stretches_mib[0]
        return max((part / first - 1 for part in self.stretches_mib), key=abs)

    @property
    def reached(self) -> bool:
        """Whether the goal was."""
        return abs(self.growth) <= GROWTH_GOAL


def distinct_prompt(number: int, chance: random.Random) -> CacheRequest:
    """40 to 100 tokens that no other number gets."""
    tokens = [*divmod(number, len(VOCABULARY)), *chance.choices(VOCABULARY, k=chance.randint(38, 98))]
    namespace = Namespace(salt=f"tenant {number}") if number % 10 == 0 else Namespace()
    return CacheRequest(f"request-{number}", tokens, namespace=namespace)


def send_memory(index: PrefixIndexName, prompts: int, samples: Connection) -> None:
    """Admit and free the prompts, eight at a time; send the resident MiB as they go."""
    manager = KVCacheManager(CacheConfig(num_blocks=NUM_BLOCKS, block_size=16, index=index))
    chance, running = random.Random(0), list[CacheRequest]()
    sent = 0
    for number in range(prompts):
        request = distinct_prompt(number, chance)
        hit = manager.get_computed_blocks(request)
        assert manager.allocate_slots(request, request.num_tokens - hit.num_tokens, hit) is not None
        manager.commit_step()
        running.append(request)
        if len(running) == 8:
            manager.free(running.pop(chance.randrange(8)))
        if (number + 1) * STRETCHES * SAMPLES // prompts > sent:
            samples.send(resident_mib())
            sent += 1


def resident_mib() -> float:
    """What the process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure(index: PrefixIndexName, prompts: int, progress: Progress) -> Figures:
    """One index, in a process of its own."""
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    process = spawn.Process(target=send_memory, args=(index, prompts, sender))
    process.start()
    sender.close()
    samples: list[float] = [
        receiver.recv() for _ in progress.track(range(STRETCHES * SAMPLES), description=index)
    ]
    process.join()
    parts = [samples[start : start + SAMPLES] for start in range(0, len(samples), SAMPLES)]
    return Figures(index, [median(part) for part in parts])


def markdown(found: list[Figures], prompts: int, date: datetime) -> str:
    """The table, and what it is about."""
    rows = [
        [
            f"up to {(number + 1) * prompts // STRETCHES:,} prompts",
            *(
                text
                for each in found
                for mib in [each.stretches_mib[number]]
                for text in (f"{mib:,.1f}", f"{100 * (mib / each.stretches_mib[0] - 1):+.1f}")
            ),
        ]
        for number in range(STRETCHES)
    ]
    headers = ["", *(text for each in found for text in (f"{each.index} MiB", "%"))]
    return (
        f"{markdown_table(headers, rows)}\n\nResident memory of a process with nothing but the cache core, "
        f"medians of each part; % of the first part. {prompts:,} distinct prompts of 40 to 100 tokens, "
        f"a tenth of them under a salt of their own; {NUM_BLOCKS:,} blocks of 16. "
        f"{describe_machine()}; {date:%Y-%m-%d}."
    )


def main(
    write: Annotated[bool, typer.Option("--write", help="Write the figures into the documents.")] = False,
    prompts: Annotated[int, typer.Option(help="How many prompts.", min=STRETCHES * SAMPLES)] = 1_000_000,
) -> None:
    """Measure the cache core's memory."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        found = [measure(index, prompts, progress) for index in get_args(PrefixIndexName)]
    date = datetime.now(UTC)
    text = markdown(found, prompts, date)
    print(text)
    reached = all(each.reached for each in found)
    print(
        f"\nGoal: within {GROWTH_GOAL:.0%} of the first part. {'Reached' if reached else 'MISSED'}: "
        f"{', '.join(f'{each.index} {each.growth:+.1%}' for each in found)}."
    )
    if write:
        fields = {
            "date": date.isoformat(timespec="seconds"),
            "machine": asdict(describe_machine()),
            "prompts": prompts,
            "goal": {"growth": GROWTH_GOAL, "reached": reached},
            "figures": [{**asdict(each), "growth": each.growth} for each in found],
        }
        console.print(record(ROOT, "cache-memory", text, fields))
    raise typer.Exit(0 if reached else 1)


if __name__ == "__main__":
    typer.run(main)
