"""How long a replay takes on one core, and how much memory.

Each trace is read, and replayed at one capacity: with the least recently used policy and both indexes, and as
the optimum.  Times are of the processor, the best of some runs: a replay uses one core and waits for nothing.
Memory is what a replay of a quarter, a half and all of the requests takes at its peak, with a cache that
never evicts, and without the trace itself: it should grow with the blocks that differ.

    python bench/replay.py TRACE…            # print the table
    python bench/replay.py TRACE… --write    # and put it into docs/benchmarks.md and bench/results/

Mooncake's traces are at https://github.com/kvcache-ai/Mooncake (FAST25-release/traces).  Goals for its
conversation trace: reading in 0.5 s, and with the radix index 1.5 s for reading and replaying.  Exits with 1
if one is missed, with any trace.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from time import process_time
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.progress import Progress

from headstart.lab.load.machine import describe_machine
from headstart.lab.load.publish import record
from headstart.lab.load.report import markdown_table
from headstart.lab.replay.chains import Chains, symbols_of
from headstart.lab.replay.outcome import OPTIMAL, Setting
from headstart.lab.replay.point import replay_point
from headstart.lab.traces.read import read_traces
from headstart.lab.traces.trace import Trace

READ_GOAL, WHOLE_GOAL = 0.5, 1.5
"""Seconds."""
PARTS = (4, 2, 1)
"""Memory is taken of one in so many of the requests, from the first on."""
ROOT = Path(__file__).resolve().parent.parent
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Figure:
    """Seconds of the processor, and bytes at the peak by the number of unique blocks."""

    trace: str
    num_requests: int
    capacity_blocks: int
    read_s: float
    radix_s: float
    hash_s: float
    optimal_s: float
    memory: dict[int, int]

    @property
    def bytes_per_block(self) -> list[float]:
        """Of each part."""
        return [size / blocks for blocks, size in self.memory.items()]


def best(repeats: int, work: Callable[[], T]) -> tuple[float, T]:
    """The least processor time of some runs, and what the last one gave."""
    times = []
    for _ in range(repeats):
        gc.collect()
        started = process_time()
        found = work()
        times.append(process_time() - started)
    return min(times), found


def memory(trace: Trace, block_size: int) -> tuple[int, int]:
    """The unique blocks of a trace, and the most bytes that an unbounded replay of it takes."""
    num_unique = Chains.of(trace, symbols_of(block_size, trace)).num_unique
    gc.collect()
    tracemalloc.start()
    replay_point(trace, Setting("lru", "radix", block_size, None))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return num_unique, peak


def figure(path: Path, capacity: int, repeats: int, progress: Progress) -> Figure:
    """That of one trace."""
    task = progress.add_task(path.stem, total=4 + len(PARTS))
    read_s, trace = best(repeats, lambda: read_traces([str(path)]))
    progress.advance(task)
    size = trace.tokens_per_symbol if trace.tokens_per_symbol > 1 else 16
    seconds = []
    for policy, index in (("lru", "radix"), ("lru", "hash"), (OPTIMAL, "hash")):
        setting = Setting(policy, index, size, capacity)
        seconds.append(best(repeats, lambda setting=setting: replay_point(trace, setting))[0])  # type: ignore[misc]
        progress.advance(task)
    measured = {}
    for part in PARTS:
        shorter = replace(trace, requests=trace.requests[: len(trace.requests) // part])
        blocks, peak = memory(shorter, size)
        measured[blocks] = peak
        progress.advance(task)
    return Figure(path.stem, len(trace.requests), capacity, read_s, *seconds, measured)


def markdown(found: Sequence[Figure], repeats: int, date: datetime) -> str:
    """The figures as two tables, and a line on what they are."""
    times = markdown_table(
        ["trace", "requests", "capacity, blocks", "read s", "LRU radix s", "LRU hash s", "optimum s"],
        [
            [
                each.trace,
                f"{each.num_requests:,}",
                f"{each.capacity_blocks:,}",
                *(f"{part:.2f}" for part in (each.read_s, each.radix_s, each.hash_s, each.optimal_s)),
            ]
            for each in found
        ],
    )
    sizes = markdown_table(
        ["trace, unbounded", "unique blocks", "peak MiB", "bytes a block"],
        [
            [each.trace, f"{blocks:,}", f"{size / 2**20:.1f}", f"{size / blocks:,.0f}"]
            for each in found
            for blocks, size in each.memory.items()
        ],
    )
    return (
        f"{times}\n\n{sizes}\n\nSeconds of one core, the best of {repeats}; goals: reading in {READ_GOAL} s, "
        f"with the radix replay {WHOLE_GOAL} s. Peaks of a quarter, a half and all of the requests, without "
        f"the trace itself. {describe_machine()}; {date:%Y-%m-%d}."
    )


def main(
    traces: Annotated[list[Path], typer.Argument(help="Traces of any format.", exists=True, dir_okay=False)],
    write: Annotated[bool, typer.Option("--write", help="Write the figures into the documents.")] = False,
    capacity: Annotated[int, typer.Option(help="Blocks of the cache.", min=1)] = 8192,
    repeats: Annotated[int, typer.Option(help="How often each is timed.", min=1)] = 3,
) -> None:
    """Time replays, and take their memory."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        found = [figure(path, capacity, repeats, progress) for path in traces]
    date = datetime.now(UTC)
    text = markdown(found, repeats, date)
    reached = all(each.read_s <= READ_GOAL and each.read_s + each.radix_s <= WHOLE_GOAL for each in found)
    print(text)
    print(f"\nGoals {'reached' if reached else 'MISSED'}.")
    if write:
        fields = {
            "date": date.isoformat(timespec="seconds"),
            "machine": asdict(describe_machine()),
            "goal": {"read_s": READ_GOAL, "read_and_replay_s": WHOLE_GOAL, "reached": reached},
            "figures": [asdict(each) for each in found],
        }
        console.print(record(ROOT, "replay", text, fields))
    raise typer.Exit(0 if reached else 1)


if __name__ == "__main__":
    typer.run(main)
