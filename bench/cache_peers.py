"""The cache core against vLLM's `KVCacheManager` and SGLang's `RadixCache`: what an admission costs.

An admission goes from tokens to blocks and back: request, lookup, allocation, commit, free.  It hits all
but the last 8 tokens, or misses with room to spare, or misses while the pool is full of cached blocks.  Every
contender runs in a process of its own (bench/peers/) and gets the same tokens; they take turns, round by
round.  Counted is processor time, so that whatever else runs disturbs little; the garbage collector stays on.

    python bench/cache_peers.py --vllm PYTHON --sglang 'env PYTHONPATH=DIR PYTHON' --write

PYTHON is an interpreter that can import the project; docs/benchmarks.md says how to set them up.  Either may
be left out.  Exits with 1 if a goal is missed, and says which.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from headstart.errors import ConfigError
from headstart.lab.load.machine import describe_machine
from headstart.lab.load.publish import record
from headstart.lab.load.report import markdown_table

CASES = ("hit", "miss", "evict")
LENGTHS = (1024, 8192, 32_768, 131_072)
BLOCK_SIZE = 16
NUM_BLOCKS = 100_000
GROWTH = 10  # by which factor pools differ where costs must not
GROWTH_GOAL = 1.3
GROWTH_LENGTH = 1024
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Entry:
    """A contender and where its tokens come from: one column of the table."""

    name: str
    source: str = "list"

    def __str__(self) -> str:
        return self.name if self.source == "list" else f"{self.name}, {self.source}"


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of admission: the fastest in microseconds, and the tokens hit."""

    case: str
    num_tokens: int
    micros: dict[Entry, float]
    hit_tokens: dict[Entry, int]


@dataclass(frozen=True, slots=True)
class Goal:
    """``slower`` takes at least ``factor`` times as long as ``faster``, in the rows of ``where``."""

    faster: Entry
    slower: Entry
    factor: float
    where: tuple[str, int] | None = None  # all rows

    def applies(self, row: Row) -> bool:
        """Whether the row is one of its own, and both took part."""
        took_part = self.faster in row.micros and self.slower in row.micros
        return took_part and self.where in (None, (row.case, row.num_tokens))

    def ratio(self, row: Row) -> float:
        """How many times as long the slower one takes."""
        return row.micros[self.slower] / row.micros[self.faster]


RADIX, RADIX_BUFFER = Entry("radix"), Entry("radix", "buffer")
HASH = {"sha256_cbor": Entry("hash"), "sha256": Entry("hash sha256")}
VLLM = {algorithm: Entry(f"vLLM {algorithm}") for algorithm in ("sha256", "sha256_cbor")}
SGLANG = [Entry(f"SGLang page {size}") for size in (1, 16)]
LONG_HIT = ("hit", LENGTHS[-1])
GOALS = [
    Goal(RADIX, VLLM["sha256"], 6, LONG_HIT),
    Goal(RADIX_BUFFER, VLLM["sha256"], 50, LONG_HIT),
    *(Goal(HASH[algorithm], VLLM[algorithm], 1.5) for algorithm in VLLM),
    *(Goal(RADIX, peer, 1) for peer in SGLANG),
    *(Goal(RADIX_BUFFER, Entry(peer.name, "buffer"), 1) for peer in SGLANG),
]
RATIOS = [(RADIX, VLLM["sha256"]), *((HASH[algorithm], VLLM[algorithm]) for algorithm in VLLM)]
"""Ratios with a column of their own, whatever the goals are."""


class Contender:
    """A process that answers the orders of bench/peers/admission.py."""

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        self._process = process
        self._name = name

    def order(self, **order: Any) -> dict[str, Any]:
        """Its answer.  Raises ``ConfigError`` if it has ended: it said why on standard error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(json.dumps(order), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            line = ""
        else:
            line = self._process.stdout.readline()
        if not line:
            raise ConfigError(f"{self._name} has ended, with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def running(name: str, command: Sequence[str], script: str, *arguments: object) -> Iterator[Contender]:
    """A contender, until the context ends."""
    path = ROOT / "bench" / "peers" / script
    words = [*command, str(path), *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # it is processor time that counts
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
    except OSError as error:
        raise ConfigError(f"{name} cannot be started: {error}") from error
    try:
        yield Contender(process, name)
    finally:
        process.kill()
        process.communicate()  # closes its pipes, also where an order was left in one


def measure(contenders: dict[Entry, Contender], case: str, num_tokens: int, rounds: int, passes: int) -> Row:
    """One row: in each round, everybody in turn.

    The fastest admission counts, since whatever else disturbs a processor only ever adds to it.
    """
    for contender in dict.fromkeys(contenders.values()):
        contender.order(case=case, tokens=num_tokens)
    seconds: dict[Entry, list[float]] = {entry: [] for entry in contenders}
    hits: dict[Entry, int] = {}
    sources = sorted({entry.source for entry in contenders})
    for number in range(rounds):
        for entry, contender in contenders.items():
            seed = number * len(sources) + sources.index(entry.source)
            answer = contender.order(source=entry.source, seed=seed, passes=1 + passes)
            seconds[entry] += answer["seconds"][1:]  # the first finds cold caches
            hits[entry] = min(answer["hit_tokens"], hits.get(entry, num_tokens))
    return Row(case, num_tokens, {entry: 1e6 * min(each) for entry, each in seconds.items()}, hits)


def passes(num_tokens: int) -> int:
    """How many admissions a turn has: short ones are cheap to repeat, and are what noise disturbs most."""
    return max(3, 65_536 // num_tokens)


def compare(
    vllm: list[str] | None, sglang: list[str] | None, rounds: int, progress: Progress
) -> Iterator[Row]:
    """All rows, with whoever takes part."""
    ours = [sys.executable]
    with ExitStack() as stack:

        def start(name: str, command: list[str], script: str, variant: object) -> Contender:
            return stack.enter_context(running(name, command, script, variant, NUM_BLOCKS, BLOCK_SIZE))

        contenders: dict[Entry, Contender] = {}
        for entry in (RADIX, *HASH.values()):
            process = start(entry.name, ours, "run_headstart.py", entry.name)
            contenders |= {entry: process, Entry(entry.name, "buffer"): process}
        for algorithm, entry in VLLM.items() if vllm else ():
            contenders[entry] = start(entry.name, vllm or [], "run_vllm.py", algorithm)
        for entry in SGLANG if sglang else ():
            process = start(entry.name, sglang or [], "run_sglang.py", entry.name.rpartition(" ")[2])
            contenders |= {entry: process, Entry(entry.name, "buffer"): process}
        kinds = [(case, num_tokens) for case in CASES for num_tokens in LENGTHS]
        for case, num_tokens in progress.track(kinds, description="against others"):
            yield measure(contenders, case, num_tokens, rounds, passes=passes(num_tokens))


def grow(rounds: int, progress: Progress) -> Iterator[Row]:
    """Our own costs with pools of two sizes."""
    with ExitStack() as stack:
        contenders = {
            pool_entry(index, num_blocks): stack.enter_context(
                running(index, [sys.executable], "run_headstart.py", index, num_blocks, BLOCK_SIZE)
            )
            for index in ("radix", "hash")
            for num_blocks in (NUM_BLOCKS, GROWTH * NUM_BLOCKS)
        }
        for case in progress.track(CASES, description="larger pools"):
            yield measure(contenders, case, GROWTH_LENGTH, rounds, passes=20)


def pool_entry(index: str, num_blocks: int) -> Entry:
    """The column of an index with a pool of that size."""
    return Entry(f"{index}, {num_blocks:,} blocks")


def growth(row: Row, index: str) -> float:
    """How many times as long an admission takes with the larger pool."""
    small, large = (row.micros[pool_entry(index, size)] for size in (NUM_BLOCKS, GROWTH * NUM_BLOCKS))
    return large / small


def missed(rows: Sequence[Row], pools: Sequence[Row]) -> list[str]:
    """What was not reached, in words."""
    words = [
        f"{row.case} of {row.num_tokens:,} tokens: {goal.slower} / {goal.faster} is {goal.ratio(row):.2f}, "
        f"the goal {goal.factor:g}"
        for row in rows
        for goal in GOALS
        if goal.applies(row) and goal.ratio(row) < goal.factor
    ]
    words += [
        f"{row.case}, {index}: {GROWTH} times the blocks take {growth(row, index):.2f} times as long, "
        f"the goal is below {GROWTH_GOAL}"
        for row in pools
        for index in ("radix", "hash")
        if growth(row, index) >= GROWTH_GOAL
    ]
    return words


def markdown(rows: Sequence[Row], pools: Sequence[Row], rounds: int, date: datetime) -> str:
    """The tables, in microseconds."""
    entries = list(rows[0].micros)
    ratios = [pair for pair in RATIOS if pair[1] in entries]
    headers = ["", *map(str, entries), *(f"{slower} / {faster}" for faster, slower in ratios)]
    table = [
        [
            f"{row.case}, {row.num_tokens:,}",
            *(f"{row.micros[entry]:,.0f}" for entry in entries),
            *(f"{row.micros[slower] / row.micros[faster]:.2f}" for faster, slower in ratios),
        ]
        for row in rows
    ]
    pool_headers = ["", *map(str, pools[0].micros), "radix ratio", "hash ratio"]
    pool_table = [
        [
            f"{row.case}, {row.num_tokens:,}",
            *(f"{micros:,.0f}" for micros in row.micros.values()),
            *(f"{growth(row, index):.2f}" for index in ("radix", "hash")),
        ]
        for row in pools
    ]
    return (
        f"{markdown_table(headers, table)}\n\n"
        f"{markdown_table(pool_headers, pool_table)}\n\n"
        f"Microseconds of processor time for one admission, the fastest of {rounds} turns; "
        f"{NUM_BLOCKS:,} blocks of {BLOCK_SIZE} unless said otherwise. {describe_machine()}; {date:%Y-%m-%d}."
    )


def results(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows as plain data."""
    return [
        {
            "case": row.case,
            "tokens": row.num_tokens,
            "us": {str(entry): micros for entry, micros in row.micros.items()},
            "hit_tokens": {str(entry): hit for entry, hit in row.hit_tokens.items()},
        }
        for row in rows
    ]


def main(
    vllm: Annotated[str, typer.Option(help="A command that runs Python scripts where vLLM is.")] = "",
    sglang: Annotated[str, typer.Option(help="The same for SGLang.")] = "",
    write: Annotated[bool, typer.Option("--write", help="Write the figures into the documents.")] = False,
    rounds: Annotated[int, typer.Option(help="How often everybody has a turn in each row.", min=1)] = 9,
) -> None:
    """Measure the cache core against others."""
    console = Console(stderr=True)
    peers = [shlex.split(command) or None for command in (vllm, sglang)]
    try:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            rows = list(compare(*peers, rounds, progress))
            pools = list(grow(rounds, progress))
    except ConfigError as error:
        console.print(f"error: {error}", markup=False)
        raise typer.Exit(1) from error
    date = datetime.now(UTC)
    failures = missed(rows, pools)
    goals = "\n".join(["Goals missed:", "", *(f"* {failure}" for failure in failures)])
    text = f"{markdown(rows, pools, rounds, date)}\n\n{goals if failures else 'All goals are reached.'}"
    print(text)
    if write:
        fields = {
            "date": date.isoformat(timespec="seconds"),
            "machine": asdict(describe_machine()),
            "rounds": rounds,
            "missed": failures,
            "figures": results(rows),
            "pools": results(pools),
        }
        console.print(record(ROOT, "cache-peers", text, fields))
    raise typer.Exit(1 if failures else 0)


if __name__ == "__main__":
    typer.run(main)
