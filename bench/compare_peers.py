"""Headstart against other servers, on this machine: the same model, the same token ids, in turn.

Every server is started here, one after the other, and stopped (SIGSTOP) while another is measured, so
that each has the machine to itself.  A server is NAME=COMMAND, with {port} where the command wants the
port to listen on, or NAME=URL for one that runs already and cannot be stopped.  The first one is
compared with each of the others.

    python bench/compare_peers.py --server 'vLLM=vllm serve MODEL_DIR --port {port}'
    python bench/compare_peers.py --server 'llama.cpp=http://127.0.0.1:9003' --write

docs/benchmarks.md says how to set up others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headstart.errors import ConfigError, HeadstartError
from headstart.lab.load.figures import Group
from headstart.lab.load.peers import Entrant, taking_part
from headstart.lab.load.publish import record
from headstart.lab.load.race import GREETING_TOKENS, Event, Figure, comparison, measure
from headstart.lab.load.report import Report
from headstart.lab.load.scenarios import Kind, Scenario, Workload

VOCAB = range(1000, 20_000)
GREETING = [VOCAB.stop] * GREETING_TOKENS  # begins with a token that no prompt holds
OURS = Entrant("headstart", (sys.executable, "-m", "headstart", "serve", "--port", "{port}"))
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Line:
    """What is read off an event: of the rounds of one kind, one figure."""

    label: str
    event: str
    kind: Kind
    read: Callable[[Group], float | None]


def programme(rounds: int, streams: int) -> dict[str, Event]:
    """What all servers run.  First tokens are quick to measure, so there are more of them."""
    return {
        "first token": Event(Scenario.FIRST_TOKEN, Workload(repeats=3 * rounds)),
        "decode, 1 stream": Event(Scenario.DECODE, Workload(output_tokens=128, repeats=rounds)),
        f"decode, {streams} streams": Event(
            Scenario.DECODE, Workload(output_tokens=128, concurrency=streams, repeats=rounds)
        ),
        "unshared": Event(
            Scenario.UNSHARED,
            Workload(shared_tokens=0, output_tokens=64, concurrency=streams, repeats=rounds),
        ),
    }


def lines(streams: int) -> list[Line]:
    """The table, from top to bottom."""
    prompt = Workload().prompt_tokens
    many = f"decode, {streams} streams"
    return [
        Line("cold prefill, tokens/s ↑", "first token", "cold", lambda g: 1000 * prompt / g.ttft_ms.median),
        Line("first token, cold, ms ↓", "first token", "cold", lambda g: g.ttft_ms.median),
        Line("first token on a hit, ms ↓", "first token", "warm", lambda g: g.ttft_ms.median),
        Line("decode, 1 stream, tokens/s ↑", "decode, 1 stream", "warm", decode_rate),
        Line(f"{many} behind one prefix, tokens/s ↑", many, "warm", decode_rate),
        Line(f"{streams} unshared prompts, s ↓", "unshared", "unshared", lambda g: g.seconds.median),
    ]


def decode_rate(group: Group) -> float | None:
    """Tokens per second while all streams decode, ``None`` if they never did."""
    rate = group.decode_tokens_per_second
    return None if rate is None else rate.median


def markdown(reports: dict[str, dict[str, Report]], streams: int, unstoppable: Sequence[str]) -> str:
    """The table, and what was run to make it."""
    figures = [
        Figure(
            line.label,
            {name: line.read(each.groups[line.kind]) for name, each in reports[line.event].items()},
        )
        for line in lines(streams)
    ]
    one = next(iter(reports["first token"].values()))
    loads = "; ".join(f"{name}: {next(iter(each.values())).setup.workload}" for name, each in reports.items())
    awake = f" {', '.join(unstoppable)} ran all the time." if unstoppable else ""
    return (
        f"{comparison(figures)}\n\n↑ more is better, ↓ less is better; medians. {loads}.{awake} "
        f"{one.setup.machine}; {one.date:%Y-%m-%d}."
    )


def main(
    server: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=COMMAND|NAME=URL",
            help="One that takes part, as often as you like; {port} in a command is replaced by a free one. "
            "If none is called headstart, our own goes first.",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(help="How often to measure, after a warm-up.", min=1)] = 3,
    streams: Annotated[int, typer.Option(help="Requests sent at once where there are several.", min=2)] = 16,
    write: Annotated[bool, typer.Option("--write", help="Write the figures into the documents.")] = False,
) -> None:
    """Measure servers against each other, in turn."""
    console = Console(stderr=True)
    try:
        entrants = [Entrant.parse(text) for text in server or ()]
        if OURS.name not in [entrant.name for entrant in entrants]:
            entrants.insert(0, OURS)
        if len({entrant.name for entrant in entrants}) < len(entrants):
            raise ConfigError("every server needs a name of its own")
        with ExitStack() as stack:
            peers = []
            for entrant in entrants:
                with console.status(f"starting {entrant.name} …"):
                    peers.append(stack.enter_context(taking_part(entrant, GREETING)))
            reports = {}
            for name, event in programme(rounds, streams).items():
                console.print(f"{name}: {', '.join(peer.name for peer in peers)}", markup=False)
                reports[name] = measure(event, peers, VOCAB, label=name, console=console)
    except HeadstartError as error:
        console.print(f"compare_peers: {error}", markup=False)
        raise typer.Exit(1) from error
    text = markdown(reports, streams, [peer.name for peer in peers if not peer.can_pause])
    print(text)
    for event, each in reports.items():
        for name, report in each.items():
            for warning in report.warnings:
                console.print(f"warning: {event}, {name}: {warning}", markup=False)
    if write:
        fields = {
            event: {name: one.fields() for name, one in each.items()} for event, each in reports.items()
        }
        console.print(record(ROOT, "compare-peers", text, fields, also_in=["README.md"]))


if __name__ == "__main__":
    typer.run(main)
