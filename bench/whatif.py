"""How near the live estimates of other capacities' hit rates come to exact replays.

Each trace is replayed with the estimator watching a pool of 2, 5, 10 and 20 % of the trace's blocks, and
then without it at half, twice and four times each of these, with the same `KVCacheManager`.  A trace is
Mooncake's JSON lines; of each request only its ``hash_ids`` are used, one symbol for one block of 512
tokens: the replay has a block size of 1 and takes ids for tokens.  The last id of a prompt stands for its
last, partly filled block, and is no more readable here than the last token is there.  So the replay and
the estimate see the same prompts, the same hits and the same blocks; a hit rate is in blocks, all of equal
weight.

    python bench/whatif.py TRACE…            # print the table
    python bench/whatif.py TRACE… --write    # and put it into docs/benchmarks.md and bench/results/

The traces are at https://github.com/kvcache-ai/Mooncake (FAST25-release/traces).  Goals: a mean error of
at most 1.5 points, the worst at most 3, where 1x is left out: it is measured, not estimated.  Exits with 1
if one is missed.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from headstart.cache import CacheConfig, CacheRequest, KVCacheManager
from headstart.cache.whatif import CAPACITIES, SAMPLE_SIZE, WhatIf
from headstart.lab.load.machine import describe_machine
from headstart.lab.load.publish import record
from headstart.lab.load.report import markdown_table

MEAN_GOAL, WORST_GOAL = 1.5, 3.0
SHARES = (2, 5, 10, 20)
"""Capacities in per cent of a trace's distinct blocks."""
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Figure:
    """Hit rates in per cent at each of `CAPACITIES`: exact, and estimated with each seed."""

    trace: str
    share: int
    num_blocks: int
    exact: list[float]
    estimates: list[list[float]]

    def errors(self) -> list[float]:
        """Points between estimate and truth, of all seeds, where something was estimated."""
        return [
            abs(guess - truth)
            for estimate in self.estimates
            for times, truth, guess in zip(CAPACITIES, self.exact, estimate, strict=True)
            if times != 1
        ]


def read_prompts(path: Path) -> list[bytes]:
    """The requests' ids as runs of int32.  Raises ``typer.BadParameter`` for anything but such a trace."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        prompts = [array("i", json.loads(line)["hash_ids"]).tobytes() for line in lines if line.strip()]
    except (OSError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise typer.BadParameter(f"{path} is not a trace with hash_ids in each line: {error!r}") from error
    if not any(prompts):
        raise typer.BadParameter(f"{path} has no prompts")
    return [prompt for prompt in prompts if prompt]


def replay(prompts: Sequence[bytes], num_blocks: int, what_if: WhatIf | None = None) -> float:
    """The exact hit rate, in per cent, of one request after the other; what does not fit hits nothing."""
    manager = KVCacheManager(CacheConfig(num_blocks, block_size=1, explain_misses=False), what_if=what_if)
    queries = 0
    for number, prompt in enumerate(prompts):
        request = CacheRequest(str(number), prompt)
        queries += request.num_tokens
        hit = manager.get_computed_blocks(request)
        if manager.allocate_slots(request, request.num_tokens - hit.num_tokens, hit) is not None:
            manager.commit_step()
            manager.free(request)
    return 100 * manager.stats.hits / queries


def figures(path: Path, seeds: int, progress: Progress) -> list[Figure]:
    """One for each of `SHARES`."""
    prompts = read_prompts(path)
    num_distinct = len({block for prompt in prompts for block in array("i", prompt)})
    bases = [max(1, num_distinct * share // 100) for share in SHARES]
    task = progress.add_task(path.stem, total=len(bases) * (len(CAPACITIES) + seeds))
    exact: dict[int, float] = {}

    def exactly(num_blocks: int) -> float:
        if num_blocks not in exact:
            exact[num_blocks] = replay(prompts, num_blocks) if num_blocks else 0.0
        progress.advance(task)
        return exact[num_blocks]

    def estimated(num_blocks: int, seed: int) -> list[float]:
        what_if = WhatIf(num_blocks, block_size=1, window=None, seed=seed)
        replay(prompts, num_blocks, what_if)
        progress.advance(task)
        return [100 * rate for rate in what_if.rates().values()]

    return [
        Figure(
            trace=path.stem,
            share=share,
            num_blocks=base,
            exact=[exactly(int(times * base)) for times in CAPACITIES],
            estimates=[estimated(base, seed) for seed in range(seeds)],
        )
        for share, base in zip(SHARES, bases, strict=True)
    ]


def markdown(found: Sequence[Figure], errors: Sequence[float], seeds: int, date: datetime) -> str:
    """The figures as a table, and a line on the errors."""
    headers = ["trace, capacity", "blocks", *(f"{times:g}x" for times in CAPACITIES), "largest error, points"]
    rows = [
        [
            f"{each.trace}, {each.share} %",
            f"{each.num_blocks:,}",
            *(
                f"{guess:.1f} ({truth:.1f})"
                for truth, guess in zip(each.exact, each.estimates[0], strict=True)
            ),
            f"{max(each.errors()):.2f}",
        ]
        for each in found
    ]
    return (
        f"{markdown_table(headers, rows)}\n\n"
        "Hit rates in per cent: estimate (exact replay); at 1x it is measured. "
        f"Error over {len(errors)} estimates ({seeds} samples of at most {SAMPLE_SIZE:,} blocks each): "
        f"mean {sum(errors) / len(errors):.2f} points (goal: {MEAN_GOAL}), worst {max(errors):.2f} "
        f"(goal: {WORST_GOAL:g}). {date:%Y-%m-%d}."
    )


def main(
    traces: Annotated[
        list[Path], typer.Argument(help="Mooncake traces, JSON lines.", exists=True, dir_okay=False)
    ],
    write: Annotated[bool, typer.Option("--write", help="Write the figures into the documents.")] = False,
    seeds: Annotated[int, typer.Option(help="How many samples to draw.", min=1)] = 3,
) -> None:
    """Compare estimates with exact replays."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        found = [figure for path in traces for figure in figures(path, seeds, progress)]
    errors = [error for each in found for error in each.errors()]
    date = datetime.now(UTC)
    text = markdown(found, errors, seeds, date)
    reached = sum(errors) / len(errors) <= MEAN_GOAL and max(errors) <= WORST_GOAL
    print(text)
    print(f"\nGoals {'reached' if reached else 'MISSED'}.")
    if write:
        fields = {
            "date": date.isoformat(timespec="seconds"),
            "machine": asdict(describe_machine()),
            "sample_size": SAMPLE_SIZE,
            "capacities": CAPACITIES,
            "goal": {"mean": MEAN_GOAL, "worst": WORST_GOAL, "reached": reached},
            "figures": [asdict(each) for each in found],
        }
        console.print(record(ROOT, "whatif", text, fields))
    raise typer.Exit(0 if reached else 1)


if __name__ == "__main__":
    typer.run(main)
