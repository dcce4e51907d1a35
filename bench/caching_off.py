"""Prefix caching on against off: many streams behind one long prefix, on this machine.

Starts headstart with SmolLM2-135M twice, with prefix caching and with --no-enable-prefix-caching, and
sends both the same rounds in turn: first streams with a prefix never seen (cold), then as many others
with the same one (warm).

    python bench/caching_off.py            # print the table
    python bench/caching_off.py --write    # and put it into docs/benchmarks.md and bench/results/
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headstart.lab.load.client import connect
from headstart.lab.load.local import running_server, serve_command
from headstart.lab.load.machine import describe_machine
from headstart.lab.load.progress import collect
from headstart.lab.load.prompts import PromptSource
from headstart.lab.load.publish import publish
from headstart.lab.load.report import Report, Setup, markdown_table
from headstart.lab.load.scenarios import Round, Scenario, Workload, shared_prefix

MODEL = "smollm2-135m"
VOCAB = range(1000, 20_000)
MEMORY = ("--kv-cache-memory-bytes", "1GiB")  # enough for all streams even where they share nothing
ROOT = Path(__file__).resolve().parent.parent


async def alternately(
    one: AsyncIterator[Round], other: AsyncIterator[Round]
) -> AsyncIterator[tuple[Round, Round]]:
    """A round of each in turn, never the two at once."""
    async for first in one:
        yield first, await anext(other)


async def measure(on_url: str, off_url: str, load: Workload, console: Console) -> tuple[Report, Report]:
    """Run the scenario against both servers, with the same prompts."""
    seed = secrets.randbits(32)
    async with connect(on_url) as on, connect(off_url) as off:
        rounds_on = shared_prefix(on.complete, PromptSource(VOCAB, seed), load)
        rounds_off = shared_prefix(off.complete, PromptSource(VOCAB, seed), load)
        pairs = await collect(
            alternately(rounds_on, rounds_off),
            total=Scenario.SHARED_PREFIX.num_rounds(load),
            label="caching on, then off",
            console=console,
        )
    machine = describe_machine(["headstart", "torch"])

    def report(base_url: str, rounds: list[Round]) -> Report:
        return Report.of(Setup(Scenario.SHARED_PREFIX, base_url, MODEL, load, seed, machine), rounds)

    return report(on_url, [on for on, _ in pairs]), report(off_url, [off for _, off in pairs])


def markdown(on: Report, off: Report) -> str:
    """Both reports in one table."""
    headers, rows_on = on.cells()
    _, rows_off = off.cells()
    rows = [[f"caching on, {row[0]}", *row[1:]] for row in rows_on]
    rows += [[f"caching off, {row[0]}", *row[1:]] for row in rows_off]
    saved = on.groups["warm"].seconds.median / off.groups["warm"].seconds.median
    return (
        f"{markdown_table(headers, rows)}\n\nMedians; a warm round takes {saved:.2f} of its time without "
        f"caching. {MODEL}, {on.setup.workload}; {on.setup.machine}; {on.date:%Y-%m-%d}."
    )


def main(
    write: Annotated[bool, typer.Option("--write", help="Write the figures into the documents.")] = False,
    concurrency: Annotated[int, typer.Option(help="Streams at once.", min=1)] = 4,
    repeats: Annotated[int, typer.Option(help="How often to measure.", min=1)] = 3,
) -> None:
    """Measure streams behind one prefix, with caching and without."""
    console = Console(stderr=True)
    console.print(f"starting two servers with {MODEL} …")
    load = Workload(output_tokens=32, concurrency=concurrency, repeats=repeats)
    without = serve_command(MODEL, *MEMORY, "--no-enable-prefix-caching")
    with running_server(serve_command(MODEL, *MEMORY)) as on_url, running_server(without) as off_url:
        on, off = asyncio.run(measure(on_url, off_url, load, console))
    print(markdown(on, off))
    if write:
        document = ROOT / "docs" / "benchmarks.md"
        publish("caching-off", {document: markdown(on, off)})
        results = ROOT / "bench" / "results" / "caching_off.json"
        fields = {"caching_on": on.fields(), "caching_off": off.fields()}
        results.parent.mkdir(exist_ok=True)
        results.write_text(json.dumps(fields, indent=2) + "\n")
        console.print(f"written to {document.relative_to(ROOT)} and {results.relative_to(ROOT)}")


if __name__ == "__main__":
    typer.run(main)
