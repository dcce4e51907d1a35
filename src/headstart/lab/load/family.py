"""A process and all that it started, found in Linux's ``/proc``."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Member:
    """One process; ``started`` tells it from a later one with its number."""

    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class _Stat:
    parent: int
    session: int
    started: int


def family(leader: int) -> list[Member]:
    """The processes of the session that ``leader`` leads and their descendants, parents first.

    A server's engine may have made a session of its own, so its descent counts; its parent may be gone,
    so the session counts too.
    """
    stats = _all_stats()
    found = [pid for pid, stat in stats.items() if pid == leader or stat.session == leader]
    for pid in found:  # grows while we walk
        found += [child for child, stat in stats.items() if stat.parent == pid and child not in found]
    return [Member(pid, stats[pid].started) for pid in found]


def send(number: signal.Signals, members: Iterable[Member]) -> None:
    """Send a signal to those that still run."""
    for member in members:
        stat = _stat(member.pid)
        if stat is not None and stat.started == member.started:
            with suppress(ProcessLookupError):
                os.kill(member.pid, number)


def _all_stats() -> dict[int, _Stat]:
    pids = sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return {pid: stat for pid in pids if (stat := _stat(pid)) is not None}


def _stat(pid: int) -> _Stat | None:
    """See proc_pid_stat(5): a name in parentheses, which may hold anything, then fields from the third on.

    ``None`` for a process that has ended, whether or not anyone has asked how.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] in "ZX":
        return None
    return _Stat(parent=int(fields[1]), session=int(fields[3]), started=int(fields[19]))
