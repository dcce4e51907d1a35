"""Memory: what an idle server needs, and whether it grows over 10,000 requests of which many are given up.

Starts headstart with SmolLM2-135M and a pool of 256 MiB, and sends it short requests, 64 at once: streamed
or whole, with shared prefixes, stop strings, log-probabilities, mistakes; many are given up while they
wait, in their prompt or in their answer.  Meanwhile the resident memory of each of the server's processes is
read every few requests.  The goals: after the first tenth it stays within 5 %; afterwards the pool is
exactly free; and an idle server needs at most 900 MiB beyond the model's weights and the pool.

    python bench/memory.py                    # print the table; a few minutes
    python bench/memory.py --requests 1500    # a shorter look
    python bench/memory.py --write            # and put it into docs/benchmarks.md and bench/results/

Exits with 1 if a goal is missed.  Reads /proc, so it needs Linux.
"""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from headstart.config import EngineConfig
from headstart.engine.client import EngineClient
from headstart.lab.load.local import running_server, serve_command
from headstart.lab.load.machine import describe_machine
from headstart.lab.load.publish import record
from headstart.lab.load.report import markdown_table

GROWTH_GOAL = 0.05
IDLE_GOAL_MIB = 900
MODEL = "smollm2-135m"
POOL_MIB = 256
CONCURRENCY = 64
VOCAB = range(1000, 20_000)
STRETCHES = 10  # the run is told in so many parts
SAMPLES = 20  # of the memory, in each part
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident MiB of the server's processes; pages that they share count in each."""

    front: float
    engine: float

    @property
    def together(self) -> float:
        """Both."""
        return self.front + self.engine

    @classmethod
    def of(cls, front: int, engine: int) -> Memory:
        """As of now, by process id."""
        return cls(resident_mib(front), resident_mib(engine))


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run brought: the memory before it, in each part of it (medians), and after it."""

    requests: int
    given_up: int
    fixed_mib: float  # weights and pool
    before: Memory
    stretches: list[Memory]
    after: Memory
    pool_is_free: bool

    @property
    def growth(self) -> float:
        """By which share the memory of all processes together moved furthest from that of the first part."""
        first = self.stretches[0].together
        return max((part.together / first - 1 for part in self.stretches), key=abs)

    @property
    def idle_mib(self) -> float:
        """Beyond weights and pool, of an idle server: before or after the load, whichever is more."""
        return max(self.before.together, self.after.together) - self.fixed_mib

    @property
    def reached(self) -> bool:
        """Whether all goals were."""
        return abs(self.growth) <= GROWTH_GOAL and self.pool_is_free and self.idle_mib <= IDLE_GOAL_MIB

    def markdown(self, date: datetime) -> str:
        """The table, and what it is about."""
        first = self.stretches[0].together
        named = {"idle, before": self.before}
        for number, part in enumerate(self.stretches, start=1):
            named[f"up to {number * self.requests // STRETCHES:,} requests"] = part
        named["idle, after"] = self.after
        rows = [
            [
                name,
                *(f"{mib:,.1f}" for mib in (each.front, each.engine, each.together)),
                f"{each.together - self.fixed_mib:,.1f}",
                f"{100 * (each.together / first - 1):+.1f}",
            ]
            for name, each in named.items()
        ]
        headers = ["", "front MiB", "engine MiB", "together", "beyond weights and pool", "%"]
        return (
            f"{markdown_table(headers, rows)}\n\nResident memory, medians of each part; % of the first part. "
            f"{MODEL}, {self.fixed_mib:,.0f} MiB of weights and pool; {self.requests:,} requests, "
            f"{self.given_up:,} of them given up, {CONCURRENCY} at once; afterwards the pool was "
            f"{'exactly free' if self.pool_is_free else 'NOT FREE'}. "
            f"{describe_machine(['headstart', 'torch'])}; {date:%Y-%m-%d}."
        )


def resident_mib(pid: int) -> float:
    """A process's resident memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def only_child(pid: int) -> int:
    """The one process that ``pid`` has started and that still runs."""
    (child,) = [int(stat.parent.name) for stat in Path("/proc").glob("[0-9]*/stat") if parent_of(stat) == pid]
    return child


def parent_of(stat: Path) -> int | None:
    """Whose child it is, by its /proc/PID/stat; None if it has just ended."""
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


async def fixed_bytes() -> int:
    """The bytes of weights and pool, as an engine of the same configuration tells them."""
    config = EngineConfig.from_options(model=MODEL, kv_cache_memory_bytes=POOL_MIB << 20)
    engine = EngineClient(config)
    info = await engine.start()
    await engine.shutdown()
    return info.weights_bytes + info.kv_pool_bytes


class Crowd:
    """Requests of all kinds, and clients that lose patience."""

    def __init__(self, http: httpx.AsyncClient, count: int, seed: int) -> None:
        self.given_up = 0
        self._http = http
        self._chance = random.Random(seed)
        self._left = iter(range(count))
        self._prefixes = [self._chance.choices(VOCAB, k=80) for _ in range(8)]

    def _request(self) -> tuple[str, dict[str, Any]]:
        chance = self._chance
        body: dict[str, Any] = {
            "model": MODEL if chance.random() < 0.98 else "another",
            "max_tokens": chance.randint(1, 10),
            "stream": chance.random() < 0.7,
            "temperature": chance.choice((0, 0.8)),
        }
        if chance.random() < 0.2:
            body["stop"] = ["e", "."]
        if chance.random() < 0.1:
            body["cache_salt"] = f"{chance.random()}"
        asks = chance.random() < 0.1
        if chance.random() < 0.3:
            asked = {"logprobs": True, "top_logprobs": 5} if asks else {}
            text = " ".join(str(chance.randrange(10_000)) for _ in range(chance.randint(1, 25)))
            return "/v1/chat/completions", body | asked | {"messages": [{"role": "user", "content": text}]}
        prefix = chance.choice(([], *self._prefixes))[: chance.randint(1, 80)]
        prompt = prefix + chance.choices(VOCAB, k=chance.randint(1, 60))
        return "/v1/completions", body | ({"logprobs": 5} if asks else {}) | {"prompt": prompt}

    async def visit(self) -> None:
        """Ask, and read all of the answer, a part of it, or nothing."""
        chance, (path, body) = self._chance, self._request()
        patience = chance.random() if chance.random() < 0.2 else None
        events_wanted = chance.randint(0, 6) if chance.random() < 0.2 else None
        try:
            async with asyncio.timeout(patience), self._http.stream("POST", path, json=body) as response:
                lines = 0
                async for line in response.aiter_lines():
                    lines += bool(line)
                    if lines == events_wanted and line != "data: [DONE]":
                        self.given_up += 1
                        return
        except TimeoutError:
            self.given_up += 1

    async def visitor(self, done: asyncio.Queue[None]) -> None:
        """One visit after another, until all are made."""
        for _ in self._left:
            await self.visit()
            done.put_nowait(None)


async def until_quiet(http: httpx.AsyncClient) -> bool:
    """Wait until nothing runs; whether the pool is exactly free then."""
    gauges = tuple(f"vllm:num_requests_{state}{{" for state in ("running", "waiting"))
    quiet = False
    while not quiet:
        await asyncio.sleep(0.05)
        lines = (await http.get("/metrics")).text.splitlines()
        quiet = all(line.endswith(" 0.0") for line in lines if line.startswith(gauges))
    reply = await http.post("/reset_prefix_cache")  # refused while a single block is in use
    return reply.is_success


async def measure(base_url: str, requests: int, progress: Progress) -> Figures:
    """Let the crowd in and watch the memory."""
    front = only_child(os.getpid())
    engine = only_child(front)
    fixed = await fixed_bytes()
    before = Memory.of(front, engine)
    samples: list[Memory] = []
    # A connection for each request: the server may close a kept one just as it is used again.
    once = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=base_url, timeout=300, limits=once, trust_env=False) as http:
        crowd, done = Crowd(http, requests, seed=0), asyncio.Queue[None]()
        visitors = [asyncio.create_task(crowd.visitor(done)) for _ in range(CONCURRENCY)]
        task = progress.add_task("requests", total=requests)
        for number in range(1, requests + 1):
            await done.get()
            progress.advance(task)
            if number * STRETCHES * SAMPLES // requests > len(samples):
                samples.append(Memory.of(front, engine))
        await asyncio.gather(*visitors)
        pool_is_free = await until_quiet(http)
    parts = [samples[i * SAMPLES : (i + 1) * SAMPLES] for i in range(STRETCHES)]
    return Figures(
        requests,
        crowd.given_up,
        fixed / 2**20,
        before,
        [Memory(median(one.front for one in part), median(one.engine for one in part)) for part in parts],
        Memory.of(front, engine),
        pool_is_free,
    )


def main(
    write: Annotated[bool, typer.Option("--write", help="Write the figures into the documents.")] = False,
    requests: Annotated[int, typer.Option(help="How many requests.", min=STRETCHES * SAMPLES)] = 10_000,
) -> None:
    """Measure the server's memory, idle and under requests that come and go."""
    console = Console(stderr=True)
    console.print(f"starting a server with {MODEL} …")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    command = serve_command(MODEL, "--kv-cache-memory-bytes", f"{POOL_MIB}MiB")
    with (
        running_server(command) as base_url,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        found = asyncio.run(measure(base_url, requests, progress))
    date = datetime.now(UTC)
    print(found.markdown(date))
    print(
        f"\nGoals: within {GROWTH_GOAL:.0%} of the first part, the pool free afterwards, idle at most "
        f"{IDLE_GOAL_MIB} MiB. {'Reached' if found.reached else 'MISSED'}: {found.growth:+.1%}, "
        f"{'free' if found.pool_is_free else 'not free'}, {found.idle_mib:,.0f} MiB."
    )
    if write:
        fields = {
            "date": date.isoformat(timespec="seconds"),
            "machine": asdict(describe_machine(["headstart", "torch"])),
            "goal": {"growth": GROWTH_GOAL, "idle_mib": IDLE_GOAL_MIB, "reached": found.reached},
            "growth": found.growth,
            "idle_mib": found.idle_mib,
            **asdict(found),
        }
        console.print(record(ROOT, "memory", found.markdown(date), fields))
    raise typer.Exit(0 if found.reached else 1)


if __name__ == "__main__":
    typer.run(main)
