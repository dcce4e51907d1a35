"""What a long cold prompt does to those who are decoding, with --max-num-batched-tokens auto.

Starts headstart with SmolLM2-135M.  Streams decode undisturbed for a while, then a cold prompt of 6,000
tokens arrives.  The gaps between a stream's tokens until the prompt's first token are compared with the
gaps before.  The goal: the 99th percentile is at most three times as long.

    python bench/auto_budget.py            # print the table
    python bench/auto_budget.py --write    # and put it into docs/benchmarks.md and bench/results/
    python bench/auto_budget.py --max-num-batched-tokens 2048    # what a fixed budget would do

Exits with 1 if the goal is missed.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from headstart.errors import ConfigError, HeadstartError
from headstart.lab.load.client import Server, connect
from headstart.lab.load.figures import Spread
from headstart.lab.load.local import running_server, serve_command
from headstart.lab.load.machine import Machine, describe_machine
from headstart.lab.load.progress import collect
from headstart.lab.load.prompts import PromptSource
from headstart.lab.load.publish import record
from headstart.lab.load.report import markdown_table
from headstart.lab.load.timing import Timing

GOAL = 3.0
MODEL = "smollm2-135m"
VOCAB = range(1000, 20_000)
STREAM_TOKENS = 32  # of the prompt of a stream that decodes
SMALLEST_CHUNK = 16  # of a prompt; so the streams get no more tokens than this allows while it is computed
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Round:
    """Gaps between a stream's tokens in milliseconds, and how long the prompt's first token took."""

    idle_ms: list[float]
    loaded_ms: list[float]
    prompt_ms: float


async def disturb(
    server: Server, prompts: PromptSource, *, streams: int, prompt_tokens: int, idle: float, rounds: int
) -> AsyncIterator[Round]:
    """Streams that decode for ``idle`` seconds alone, then beside a prompt, so many ``rounds``."""
    trial = await together(server, prompts, streams, 64)
    rate = max(timing.rate or 0.0 for timing in trial)
    alone = idle + 2 * max(timing.first_token for timing in trial)  # until all have begun, and idle
    length = math.ceil(1.5 * rate * alone) + prompt_tokens // SMALLEST_CHUNK
    for _ in range(rounds):
        decoding = asyncio.create_task(together(server, prompts, streams, length))
        await asyncio.sleep(alone)
        cold = await server.complete(prompts.prefix(prompt_tokens), 1)
        yield split(await decoding, cold)


async def together(server: Server, prompts: PromptSource, streams: int, length: int) -> list[Timing]:
    """Streams that share nothing, all at once."""
    texts = [prompts.prefix(STREAM_TOKENS) for _ in range(streams)]
    return list(await asyncio.gather(*(server.complete(text, length) for text in texts)))


def split(decoding: Sequence[Timing], cold: Timing) -> Round:
    """The gaps that ended before the prompt was sent, and those of which it was computed in any part.

    Raises ``ConfigError`` unless the streams decoded before it, and until it had its first token.
    """
    begun, sent, done = max(timing.arrivals[0] for timing in decoding), cold.sent, cold.arrivals[0]
    gaps = [gap for timing in decoding for gap in pairwise(timing.arrivals)]
    idle = [1000 * (after - before) for before, after in gaps if begun <= before and after <= sent]
    loaded = [1000 * (after - before) for before, after in gaps if sent < after and before < done]
    if not idle or min(timing.end for timing in decoding) < done:
        raise ConfigError("the streams did not decode before and beside the prompt: choose another --idle")
    return Round(idle, loaded, 1000 * cold.first_token)


@dataclass(frozen=True)
class Outcome:
    """All rounds; ``ratio`` is of the 99th percentiles."""

    budget: str
    streams: int
    prompt_tokens: int
    machine: Machine
    date: str
    rounds: list[Round]

    @property
    def idle(self) -> Spread:
        """The gaps while nothing else was computed, of all rounds."""
        return Spread.of(gap for each in self.rounds for gap in each.idle_ms)

    @property
    def loaded(self) -> Spread:
        """The gaps while the prompt was computed, of all rounds."""
        return Spread.of(gap for each in self.rounds for gap in each.loaded_ms)

    @property
    def ratio(self) -> float:
        """How many times as long the 99th percentile gets."""
        return self.loaded.p99 / self.idle.p99

    def markdown(self) -> str:
        """The figures, for a document."""
        rows = [
            [name, *(f"{value:,.1f}" for value in (gaps.median, gaps.p95, gaps.p99, gaps.maximum))]
            for name, gaps in {"undisturbed": self.idle, "beside the prompt": self.loaded}.items()
        ]
        prompt_ms = Spread.of(each.prompt_ms for each in self.rounds).median
        return (
            f"{markdown_table(['token gap, ms', 'median', 'p95', 'p99', 'longest'], rows)}\n\n"
            f"p99, beside / undisturbed: {self.ratio:.2f}. {MODEL}, --max-num-batched-tokens {self.budget}, "
            f"{self.streams} streams, {self.prompt_tokens:,} tokens in the prompt, whose first token took "
            f"{prompt_ms:,.0f} ms, {len(self.rounds)} rounds; {self.machine}; {self.date}."
        )

    def fields(self) -> dict[str, Any]:
        """Everything, in JSON's types."""
        goal = {"p99_ratio": GOAL, "reached": self.ratio <= GOAL}
        return {"goal": goal, "ratio": self.ratio, **msgspec.to_builtins(self)}


async def measure(
    base_url: str, *, streams: int, prompt_tokens: int, idle: float, rounds: int, console: Console
) -> list[Round]:
    """``rounds`` rounds, after a warm-up of the same shape."""
    async with connect(base_url, ignore_eos=True) as server:
        prompts = PromptSource(VOCAB, secrets.randbits(32))
        load = {"streams": streams, "prompt_tokens": prompt_tokens, "rounds": rounds + 1}
        disturbed = disturb(server, prompts, idle=idle, **load)
        label = "streams, then a prompt"
        return (await collect(disturbed, total=rounds + 1, label=label, console=console))[1:]


def main(
    write: Annotated[bool, typer.Option("--write", help="Write the figures into the documents.")] = False,
    max_num_batched_tokens: Annotated[str, typer.Option(help="As `headstart serve` takes it.")] = "auto",
    streams: Annotated[int, typer.Option(help="Requests that decode.", min=1)] = 8,
    prompt_tokens: Annotated[int, typer.Option(help="Length of the cold prompt.", min=1)] = 6000,
    idle: Annotated[float, typer.Option(help="Seconds undisturbed before it arrives.", min=0.1)] = 4.0,
    rounds: Annotated[int, typer.Option(help="How often to measure, after a warm-up.", min=1)] = 5,
) -> None:
    """Measure the gaps between tokens, undisturbed and beside a long prompt."""
    console = Console(stderr=True)
    console.print(f"starting a server with {MODEL} …")
    command = serve_command(MODEL, "--max-num-batched-tokens", max_num_batched_tokens)
    try:
        with running_server(command) as base_url:
            measured = asyncio.run(
                measure(
                    base_url,
                    streams=streams,
                    prompt_tokens=prompt_tokens,
                    idle=idle,
                    rounds=rounds,
                    console=console,
                )
            )
    except HeadstartError as error:
        console.print(f"auto_budget: {error}", markup=False)
        raise typer.Exit(1) from error
    machine, today = describe_machine(["headstart", "torch"]), f"{datetime.now(UTC):%Y-%m-%d}"
    outcome = Outcome(max_num_batched_tokens, streams, prompt_tokens, machine, today, measured)
    reached = outcome.ratio <= GOAL
    print(outcome.markdown())
    print(f"\nGoal: at most {GOAL:g}. {'Reached' if reached else 'MISSED'}: {outcome.ratio:.2f}.")
    if write:
        console.print(record(ROOT, "auto-budget", outcome.markdown(), outcome.fields()))
    raise typer.Exit(0 if reached else 1)


if __name__ == "__main__":
    typer.run(main)
