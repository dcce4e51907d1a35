"""First token, cold against warm: what prefix caching saves on this machine.

Starts headstart with SmolLM2-135M, sends prompts of 1,211 random tokens, and after each one that
shares its first 1,200.  The goal: a warm first token takes at most a quarter of a cold one's time.

    python bench/first_token.py            # print the table
    python bench/first_token.py --write    # and put it into README.md, docs/benchmarks.md and bench/results/

Exits with 1 if the goal is missed.
"""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headstart.lab.load.client import connect
from headstart.lab.load.local import running_server, serve_command
from headstart.lab.load.machine import describe_machine
from headstart.lab.load.progress import collect
from headstart.lab.load.prompts import PromptSource
from headstart.lab.load.publish import record
from headstart.lab.load.report import Report, Setup
from headstart.lab.load.scenarios import Scenario, Workload, run

GOAL = 0.25
MODEL = "smollm2-135m"
VOCAB = range(1000, 20_000)
ROOT = Path(__file__).resolve().parent.parent


async def measure(base_url: str, load: Workload, console: Console) -> Report:
    """Run the scenario against the server at ``base_url``."""
    seed = secrets.randbits(32)
    async with connect(base_url) as server:
        rounds = await collect(
            run(Scenario.FIRST_TOKEN, server.complete, PromptSource(VOCAB, seed), load),
            total=Scenario.FIRST_TOKEN.num_rounds(load),
            label="first token",
            console=console,
        )
        machine = describe_machine(["headstart", "torch"])
        return Report.of(Setup(Scenario.FIRST_TOKEN, base_url, server.model, load, seed, machine), rounds)


def main(
    write: Annotated[bool, typer.Option("--write", help="Write the figures into the documents.")] = False,
    repeats: Annotated[int, typer.Option(help="How often to measure.", min=7)] = 15,
) -> None:
    """Measure the first token, cold and warm."""
    console = Console(stderr=True)
    console.print(f"starting a server with {MODEL} …")
    with running_server(serve_command(MODEL)) as base_url:
        report = asyncio.run(measure(base_url, Workload(repeats=repeats), console))
    ratio = report.warm_over_cold
    assert ratio is not None, "the scenario has cold and warm rounds"
    reached = ratio <= GOAL
    print(report.markdown())
    print(f"\nGoal: warm / cold at most {GOAL}. {'Reached' if reached else 'MISSED'}: {ratio:.3f}.")
    for warning in report.warnings:
        console.print(f"warning: {warning}")
    if write:
        fields = {"goal": {"warm_over_cold": GOAL, "reached": reached}, **report.fields()}
        console.print(record(ROOT, "first-token", report.markdown(), fields, also_in=["README.md"]))
    raise typer.Exit(0 if reached else 1)


if __name__ == "__main__":
    typer.run(main)
