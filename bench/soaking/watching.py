"""The server of a soak, seen from outside, and what is done to its engine."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import httpx

from bench.soaking.findings import Findings
from headstart.lab.load.family import family

PATIENCE_S = 300.0  # in which every answer must have come, on any machine


def engine_pid(server: int) -> int | None:
    """The process that has the model; None while there is none."""
    return next((member.pid for member in family(server)[1:]), None)


def descriptors(pid: int) -> Counter[str]:
    """Open files and sockets: how many of each kind, or of each file."""
    kinds: Counter[str] = Counter()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            kinds[os.readlink(link).partition(":[")[0]] += 1
    return kinds


def resident_mib(server: int) -> float:
    """Of all its processes together."""
    pages = 0
    for member in family(server):
        with suppress(FileNotFoundError, ProcessLookupError):
            pages += int(Path(f"/proc/{member.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Outages:
    """When there was no engine: from each kill until the next one served."""

    def __init__(self) -> None:
        self._ended = -float("inf")
        self._is_on = False

    def begin(self) -> None:
        """The engine was killed just now."""
        self._is_on = True

    def end(self) -> None:
        """An engine serves again."""
        self._is_on, self._ended = False, time.monotonic()

    def excuse(self, began: float) -> bool:
        """Whether a request that began then (``time.monotonic``), and has ended now, may have met one."""
        return self._is_on or began <= self._ended


async def until_quiet(http: httpx.AsyncClient, admin: Mapping[str, str]) -> bool:
    """Wait until nothing runs or waits; whether the pool is exactly free then."""
    deadline = time.monotonic() + PATIENCE_S
    gauges = ("vllm:num_requests_running{", "vllm:num_requests_waiting{", "vllm:kv_cache_usage_perc{")
    while time.monotonic() < deadline:
        text = (await http.get("/metrics", headers=admin)).text
        values = [line for line in text.splitlines() if line.startswith(gauges)]
        if len(values) == len(gauges) and all(line.endswith(" 0.0") for line in values):
            # Refused while a single block is in use.
            return (await http.post("/reset_prefix_cache", headers=admin)).is_success
        await asyncio.sleep(0.1)
    return False


async def kill_engines(
    server: int, kills: int, seconds: float, findings: Findings, outages: Outages, http: httpx.AsyncClient
) -> None:
    """SIGKILL for the engine, so many times and spread over ``seconds``."""
    for _ in range(kills):
        await asyncio.sleep(seconds / (kills + 1))
        engine = engine_pid(server)
        if engine is None:
            findings.demand(False, "there was no engine, though nobody had killed it")
            return
        outages.begin()
        os.kill(engine, signal.SIGKILL)
        findings.kills += 1
        findings.demand(
            await _back(server, engine, http), f"no engine served within {PATIENCE_S:g} s of a kill"
        )
        outages.end()


async def _back(server: int, killed: int, http: httpx.AsyncClient) -> bool:
    """Wait until another engine than the one that was killed serves; whether one does."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        now = engine_pid(server)
        if now not in (None, killed) and (await http.get("/health")).status_code == 200:
            return True
        await asyncio.sleep(0.1)
    return False
