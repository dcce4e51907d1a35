"""The cache core's state machines, for as long as you like, on all cores.

    python -m bench.fuzz --minutes 10            # print what was run, by configuration
    python -m bench.fuzz --minutes 10 --write    # and put it into docs/benchmarks.md and bench/results/
    python -m bench.fuzz --seed 4711 --bouts 1   # one bout again

Work comes in *bouts* of a few dozen examples.  Each has a seed of its own, which alone says what the bout
does: which machine runs, over which index and policy, and which rules with which arguments.  Seeds count up
from ``--seed``.  The first bout that fails ends the run, is named with its seed, run again and shrunk; exits
with 1 then.  An *operation* is one rule of a machine, after which all laws are proved and all that can be
seen is compared with an oracle.
"""

from __future__ import annotations

import json
import multiprocessing
import secrets
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import takewhile
from os import cpu_count
from pathlib import Path
from typing import Annotated

import typer
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, run_state_machine_as_test

from headstart.lab.load.machine import describe_machine
from headstart.lab.load.publish import publish
from headstart.lab.load.report import markdown_table
from tests.machines.test_cache_machine import INDEXES, POLICIES, cache_machine
from tests.machines.test_miss_machine import miss_machine
from tests.machines.test_share_machine import share_machine

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES, STEPS = 40, 40
REPORT_EVERY_S = 20.0
GOAL = 1_000_000
MACHINES = (
    *(f"{index}" for index in INDEXES),
    "hash, front",
    "hash, collisions",
    *(f"{index}, reasons" for index in INDEXES),
    *(f"{index}, shares" for index in INDEXES),
)
CONFIGURATIONS = sorted(  # the same seeds stand for the same bouts as before there were shares
    ((name, policy) for policy in POLICIES for name in MACHINES if name != "hash, front" or policy == "lru"),
    key=lambda one: one[0].endswith("shares"),
)


@dataclass(frozen=True, slots=True)
class Bout:
    """What became of one seed; ``failure`` is the whole report, None if all went well."""

    seed: int
    machine: str
    policy: str
    operations: int
    seconds: float
    failure: str | None


def machine_of(name: str, policy: str) -> type[RuleBasedStateMachine]:
    """The state machine that a configuration names."""
    index, _, variant = name.partition(", ")
    if variant == "reasons":
        return miss_machine(index, policy)
    if variant == "shares":
        return share_machine(index, policy, 0.3)
    order = "unhashed_first" if variant == "front" else "reverse"
    return cache_machine(index, policy, order, variant == "collisions")


def run_bout(number: int, *, shrink: bool = False) -> Bout:
    """Everything that the seed ``number`` stands for."""
    name, policy = CONFIGURATIONS[number % len(CONFIGURATIONS)]
    operations = 0

    class Counted(machine_of(name, policy)):  # type: ignore[misc]  # made on the fly
        def __init__(self) -> None:
            nonlocal operations
            super().__init__()
            operations -= 1  # `make` is none

        @invariant()
        def counts(self) -> None:
            nonlocal operations
            operations += 1

    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]
    began, failure = time.monotonic(), None
    try:
        run_state_machine_as_test(
            seed(number)(Counted),
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=STEPS,
                phases=phases,
                deadline=None,
                database=None,
                derandomize=False,
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
            ),
        )
    except Exception:  # noqa: BLE001  # whatever it is, it is a finding
        laws = {f"state.{name}()" for name in dir(Counted) if _is_law(getattr(Counted, name))}
        lines = traceback.format_exc().splitlines()
        failure = "\n".join(
            line for line in lines if line.strip(" |") not in laws
        )  # they all run after each rule
    return Bout(number, name, policy, operations, time.monotonic() - began, failure)


def _is_law(member: object) -> bool:
    return hasattr(member, "hypothesis_stateful_invariant")


def bouts(first: int, *, seconds: float, most: int | None, processes: int) -> Iterator[Bout]:
    """Bouts from the seed ``first`` on, as they end; no new ones when time is over."""
    end = time.monotonic() + seconds
    numbers = iter(range(first, first + most if most is not None else 2**63))
    if processes == 1:
        yield from (run_bout(n) for n in takewhile(lambda _: time.monotonic() < end, numbers))
        return
    context = multiprocessing.get_context("spawn")  # a process of its own, whatever this one has loaded
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        running: set[Future[Bout]] = set()
        while True:
            while len(running) < processes and time.monotonic() < end:
                number = next(numbers, None)
                if number is None:
                    break
                running.add(pool.submit(run_bout, number))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()


def table(found: Sequence[Bout]) -> str:
    """Operations by machine and policy."""
    counts = Counter[tuple[str, str]]()
    for bout in found:
        counts[bout.policy, bout.machine] += bout.operations
    rows = [
        [policy, *(f"{counts[policy, name]:,}" if counts[policy, name] else "" for name in MACHINES)]
        for policy in POLICIES
    ]
    return markdown_table(["policy", *MACHINES], rows)


def main(
    minutes: Annotated[float, typer.Option(help="How long to go on beginning bouts.", min=0.0)] = 10.0,
    first: Annotated[
        int | None,
        typer.Option(
            "--seed", envvar="HEADSTART_FUZZ_SEED", help="The first bout's; drawn unless given.", min=0
        ),
    ] = None,
    most: Annotated[int | None, typer.Option("--bouts", help="At most so many bouts.", min=1)] = None,
    processes: Annotated[
        int | None, typer.Option(help="How many; one for each core unless given.", min=1)
    ] = None,
    shrink: Annotated[bool, typer.Option(help="Shrink what fails.  Takes up to five minutes.")] = True,
    write: Annotated[bool, typer.Option("--write", help="Write the table into the documents.")] = False,
) -> None:
    """Run the cache core's state machines."""
    first = secrets.randbits(32) if first is None else first
    processes = processes or cpu_count() or 1
    print(f"seeds from {first} on, {len(CONFIGURATIONS)} configurations, {processes} processes", flush=True)
    began = reported = time.monotonic()
    found: list[Bout] = []
    failed: Bout | None = None
    for bout in bouts(first, seconds=60 * minutes, most=most, processes=processes):
        found.append(bout)
        if bout.failure is not None:
            failed = bout
            break
        if time.monotonic() - reported >= REPORT_EVERY_S:
            reported = time.monotonic()
            print(progress(found, reported - began), flush=True)
    seconds = time.monotonic() - began
    print(f"\n{table(found)}\n\n{progress(found, seconds)}", flush=True)
    if failed is not None:
        print(f"\n{failed.machine}, {failed.policy}: FAILED.  To run it again:", flush=True)
        print(f"    python -m bench.fuzz --seed {failed.seed} --bouts 1\n", flush=True)
        again = run_bout(failed.seed, shrink=True) if shrink else failed
        print(again.failure or f"{failed.failure}\nIt did not fail again.")
        raise typer.Exit(1)
    if write:
        write_down(found, first, seconds, processes)


def progress(found: Sequence[Bout], seconds: float) -> str:
    """How far it has come."""
    operations = sum(bout.operations for bout in found)
    rate = operations / seconds
    return f"{operations:,} operations in {len(found):,} bouts and {seconds:,.0f} s: {rate:,.0f} a second"


def write_down(found: Sequence[Bout], first: int, seconds: float, processes: int) -> None:
    """Into the page of figures, and the raw counts beside the others."""
    date, operations = datetime.now(UTC), sum(bout.operations for bout in found)
    text = (
        f"{table(found)}\n\nOperations: {operations:,} in {seconds / 60:.1f} minutes, "
        f"processes: {processes}; seeds {first} to {max(bout.seed for bout in found)}; no law was broken. "
        f"{describe_machine()}; {date:%Y-%m-%d}."
    )
    publish("fuzz", {ROOT / "docs" / "benchmarks.md": text})
    fields = {
        "date": date.isoformat(timespec="seconds"),
        "machine": asdict(describe_machine()),
        "goal": {"operations": GOAL, "reached": operations >= GOAL},
        "seconds": round(seconds, 1),
        "first_seed": first,
        "operations": {
            f"{name}, {policy}": sum(b.operations for b in found if (b.machine, b.policy) == (name, policy))
            for name, policy in CONFIGURATIONS
        },
    }
    (ROOT / "bench" / "results" / "fuzz.json").write_text(json.dumps(fields, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
