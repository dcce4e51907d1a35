"""Which device and number format a model runs in, and how much memory the device has left."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from headstart.errors import ConfigError

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_BF16_CPU_FEATURES = ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16")


def resolve_device(name: str) -> torch.device:
    """The device of that name; ``auto`` is the machine's accelerator, or else its CPU.

    Raises ``ConfigError`` for a name that torch does not know or a device that is not there.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if name == "auto":
        return accelerator or torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device must be auto, cpu or an accelerator like cuda:0, not {name!r}") from None
    if device.type != "cpu" and (
        accelerator is None
        or device.type != accelerator.type
        or (device.index or 0) >= torch.accelerator.device_count()
    ):
        raise ConfigError(f"device {name!r} is not there; this machine has {accelerator or 'cpu'}")
    return device


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype of that name; ``auto`` is bfloat16 where the device computes it natively, else float32.

    Raises ``ConfigError`` for an unknown name.
    """
    if name == "auto":
        return torch.bfloat16 if _computes_bfloat16(device) else torch.float32
    if name not in _DTYPES:
        raise ConfigError(f"dtype must be auto, {', '.join(_DTYPES)}, not {name!r}")
    return _DTYPES[name]


def _computes_bfloat16(device: torch.device) -> bool:
    if device.type == "cpu":
        features = torch.cpu.get_capabilities()
        return any(features.get(feature, False) for feature in _BF16_CPU_FEATURES)
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return False  # other accelerators: correct everywhere, and --dtype says otherwise


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on ``device``; on a CPU, within the process's control group too."""
    if device.type == "cpu":
        return min([_available_host_memory(), *_control_group_room(Path("/proc/self/cgroup"))])
    free, _total = torch.accelerator.get_memory_info(device)
    return int(free)


def _available_host_memory(meminfo: Path = Path("/proc/meminfo")) -> int:
    if not meminfo.exists():  # not Linux: half of what is built in, a guess on the safe side
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


def _control_group_room(membership: Path, root: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """Bytes left under each memory limit that this process is subject to: its group's and those above.

    Lines of ``membership`` are ``id:controllers:path`` (cgroups(7)): version 2 has no controllers and
    its files lie under the root, version 1 has a tree per controller.  Page cache that the kernel drops
    when memory is short (``inactive_file``) does not count as used.
    """
    rooms = []
    for line in membership.read_text().splitlines() if membership.exists() else ():
        _id, controllers, path = line.split(":", 2)
        if controllers == "":
            tree, limit, usage = root, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            tree, limit, usage = root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = tree / path.lstrip("/")
        for directory in (group, *group.parents):
            if not directory.is_relative_to(tree):
                break
            # A container may see its own group at the root while `path` names the host's.
            if (directory / limit).exists() and (value := (directory / limit).read_text().strip()) != "max":
                used = int((directory / usage).read_text())
                stat = dict(entry.split() for entry in (directory / "memory.stat").read_text().splitlines())
                reclaimable = int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))
                rooms.append(max(0, int(value) - used + reclaimable))
    return rooms
