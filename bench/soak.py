"""Soak: a server under everything at once for ten minutes, and whether all of it is clean afterwards.

Starts headstart with a pool that is too small and a short queue, several tenants with keys of their own, and
sends it what people, programs and attackers send: chats and completions, whole and streamed, with tools,
schemas, several choices and salts, in OpenAI's and Anthropic's words; clients that leave before, amid and
after the prompt, that read slowly, that send nonsense; operators that look and reset.  In its first half the
engine is killed (SIGKILL) four times.  Afterwards:

* every answer was a 200 or one of the refusals that are meant for it, and no request hung;
* nothing runs or waits, and the pool is exactly free;
* the server has the processes, sockets and files that it had before;
* over the second half its memory stayed within 5 %;
* a sample of the answers, many of them from the cache, equals what a cold run answers to the same prompt;
* it ends within its time when it is told to.

    python -m bench.soak                 # ten minutes
    python -m bench.soak --minutes 1     # the form that runs among the tests
    python -m bench.soak --write         # and put it into docs/benchmarks.md and bench/results/

Exits with 1 if anything of this does not hold.  Reads /proc, so it needs Linux.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench.soaking.crowd import Crowd
from bench.soaking.findings import Findings
from bench.soaking.watching import (
    PATIENCE_S,
    Outages,
    descriptors,
    kill_engines,
    resident_mib,
    until_quiet,
)
from headstart.lab.load.family import family
from headstart.lab.load.local import running, serve_command
from headstart.lab.load.machine import describe_machine
from headstart.lab.load.publish import record

ROOT = Path(__file__).resolve().parent.parent
GROWTH_GOAL = 0.05
VISITORS = 24
TENANTS = 3
NAME = "soaked"
NARROW = (
    *("--dtype", "float32", "--num-blocks", "160", "--max-model-len", "1024"),
    *("--max-num-seqs", "12", "--max-queue", "8", "--max-num-batched-tokens", "256"),
    *("--isolate-by", "api-key", "--no-access-log"),
)
"""A pool and a queue that are too small for the crowd."""

Told = Callable[[float], object]


async def soak(
    server: int,
    base_url: str,
    keys: list[str],
    admin: Mapping[str, str],
    findings: Findings,
    kills: int,
    seed: int,
    told: Told,
) -> None:
    """Let the crowd in, and look at what it leaves behind in the process ``server``.

    ``told`` hears how many seconds have passed.
    """
    loop = asyncio.get_running_loop()
    outages, seconds = Outages(), findings.minutes * 60
    once = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=base_url, timeout=PATIENCE_S, limits=once, trust_env=False) as http:
        before = len(family(server)), descriptors(server)
        begun = loop.time()
        crowd = Crowd(http, keys, admin, findings, outages, model=NAME, seed=seed)
        visitors = [asyncio.create_task(crowd.visitor(begun + seconds)) for _ in range(findings.visitors)]
        killer = asyncio.create_task(kill_engines(server, kills, seconds / 2, findings, outages, http))
        half = 0.0
        while (passed := loop.time() - begun) < seconds:
            await asyncio.sleep(0.5)
            told(passed)
            if not half and killer.done() and passed > seconds * 0.6:
                half = resident_mib(server)
        last = resident_mib(server)
        await killer
        await asyncio.gather(*visitors)
        findings.demand(await until_quiet(http, admin), "afterwards something ran, or held blocks")
        await crowd.compare()
        findings.demand(await until_quiet(http, admin), "after the twins something ran, or held blocks")
    await asyncio.sleep(1)  # for the last sockets to be closed
    after = len(family(server)), descriptors(server)
    findings.memory_mib = (half or last, last)
    findings.processes, findings.descriptors = (before[0], after[0]), (before[1].total(), after[1].total())
    findings.demand(before[0] == after[0], f"{before[0]} processes before, {after[0]} after")
    findings.demand(
        not after[1] - before[1], f"descriptors that were not there before: {after[1] - before[1]}"
    )
    # A minute is for finding faults, not for memory.
    grown = findings.growth if findings.minutes >= 5 else 0.0
    findings.demand(grown <= GROWTH_GOAL, f"memory grew by {grown:.1%}")
    findings.demand(findings.twins_with_hits > 0, "no sampled answer was from the cache")


def ended(server: int, findings: Findings) -> None:
    """Tell the process ``server`` to end, and see that it does, with all that it started."""
    begun = time.monotonic()
    members = family(server)
    os.kill(server, signal.SIGTERM)
    status = os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
    findings.seconds_to_end = time.monotonic() - begun
    code = None if status is None else status.si_status
    findings.demand(code == 0, f"the server ended with {code}")
    left = [each for each in members if Path(f"/proc/{each.pid}").exists() and each.pid != server]
    findings.demand(not left, f"{len(left)} processes outlived the server")


def read_log(log: str, findings: Findings) -> None:
    """Errors are for the engine's deaths alone."""
    unexpected = [
        line
        for line in log.splitlines()
        if line.startswith(("Traceback", "ERROR")) and "killed by signal 9" not in line
    ]
    findings.demand(not unexpected, f"{len(unexpected)} errors in the log, the first: {unexpected[:1]}")


def soaked(model: str, findings: Findings, *, kills: int, seed: int, told: Told) -> None:
    """A server of ``model`` for the crowd, from its start to its end."""
    keys = [secrets.token_urlsafe(24) for _ in range(findings.tenants)]
    admin = secrets.token_urlsafe(24)
    with tempfile.TemporaryDirectory() as directory:
        key_file, admin_file, log = (Path(directory, name) for name in ("keys", "admin", "log"))
        key_file.write_text("\n".join(keys))
        admin_file.write_text(admin)
        files = ("--api-key-file", str(key_file), "--admin-api-key-file", str(admin_file))
        command = serve_command(model, "--served-model-name", NAME, *NARROW, *files)
        # The shell becomes the server, whose log is to be read.
        with running(["sh", "-c", 'exec "$@" 2>"$0"', str(log), *command]) as server:
            base_url = server.address(600.0)
            bearer = {"Authorization": f"Bearer {admin}"}
            asyncio.run(soak(server.pid, base_url, keys, bearer, findings, kills, seed, told))
            ended(server.pid, findings)
        read_log(log.read_text(), findings)


def main(
    write: Annotated[bool, typer.Option("--write", help="Write the figures into the documents.")] = False,
    minutes: Annotated[float, typer.Option(help="How long.", min=0.1)] = 10.0,
    kills: Annotated[
        int | None,
        typer.Option(help="How often the engine is killed.", show_default="4 in ten minutes", min=0, max=4),
    ] = None,
    model: Annotated[str, typer.Option(help="What to serve.")] = "smollm2-135m",
    seed: Annotated[int, typer.Option(help="Of the crowd.")] = 0,
) -> None:
    """Everything at once, and whether all of it is clean afterwards."""
    console = Console(stderr=True)
    console.print(f"starting a server with {model} …")
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    kills = max(1, min(round(minutes * 0.4), 4)) if kills is None else kills
    found = Findings(minutes, VISITORS, TENANTS)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("soaking", total=minutes * 60)
        soaked(
            model, found, kills=kills, seed=seed, told=lambda passed: progress.update(task, completed=passed)
        )
    date = datetime.now(UTC)
    print(found.markdown(model, date))
    for fault in found.faults:
        print(f"FAULT: {fault}")
    if write:
        fields = {
            "date": date.isoformat(timespec="seconds"),
            "machine": asdict(describe_machine(["headstart", "torch"])),
            **found.plain(),
        }
        console.print(record(ROOT, "soak", found.markdown(model, date), fields))
    raise typer.Exit(1 if found.faults else 0)


if __name__ == "__main__":
    typer.run(main)
