"""The machine that a figure was measured on, in words."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Machine:
    """What a reader needs to judge a figure.  ``cores`` are those this process may use."""

    cpu: str
    cores: int
    memory_gib: int
    system: str
    versions: dict[str, str]

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        cores = f"{self.cores} core{'s' if self.cores > 1 else ''}"
        return f"{self.cpu}, {cores}, {self.memory_gib} GiB, {self.system}, {versions}"


def describe_machine(packages: Sequence[str] = ("headstart",)) -> Machine:
    """The machine we run on, with the versions of Python and ``packages``; none of them is imported."""
    versions = {name: importlib.metadata.version(name) for name in packages}
    return Machine(
        cpu=cpu_model(Path("/proc/cpuinfo")),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        system=f"{platform.system()} {platform.machine()}",
        versions={"Python": platform.python_version(), **versions},
    )


def cpu_model(cpuinfo: Path) -> str:
    """The processor's trade name where the kernel tells it (on ARM it mostly does not), else its kind."""
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.machine()
