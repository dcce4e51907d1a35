from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headstart.errors import ConfigError
from headstart.model import device as device_module
from headstart.model.device import free_memory, resolve_device, resolve_dtype

CPU = torch.device("cpu")


def test_cpu_by_name() -> None:
    assert resolve_device("cpu") == CPU


def test_auto_is_the_accelerator_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_device("auto") == (torch.accelerator.current_accelerator(check_available=True) or CPU)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    assert resolve_device("auto") == CPU


@pytest.mark.parametrize("name", ["gpu please", "cpu:x", ""])
def test_a_name_torch_does_not_know(name: str) -> None:
    with pytest.raises(ConfigError, match="device must be auto, cpu or an accelerator"):
        resolve_device(name)


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    with pytest.raises(ConfigError, match="'cuda' is not there; this machine has cpu"):
        resolve_device("cuda")


def test_an_index_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda")
    )
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    assert resolve_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ConfigError, match="'cuda:2' is not there"):
        resolve_device("cuda:2")


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ({"avx2": True, "avx512_f": True, "avx512_bf16": False}, torch.float32),
        ({"avx512_bf16": True}, torch.bfloat16),
        ({"amx_bf16": True}, torch.bfloat16),
        ({"architecture": "arm64", "neon": True}, torch.float32),
        ({"architecture": "arm64", "bf16": True}, torch.bfloat16),
    ],
)
def test_auto_dtype_follows_what_the_cpu_can_do(
    monkeypatch: pytest.MonkeyPatch, features: dict[str, bool], expected: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features)
    assert resolve_dtype("auto", CPU) == expected
    assert resolve_dtype("float32", CPU) == torch.float32
    assert resolve_dtype("bfloat16", CPU) == torch.bfloat16


def test_an_unknown_dtype() -> None:
    with pytest.raises(ConfigError, match="dtype must be auto, bfloat16, float16, float32, not 'int3'"):
        resolve_dtype("int3", CPU)


def test_free_memory_of_this_machine() -> None:
    assert 0 < free_memory(CPU) < 1 << 50


def test_a_control_group_of_version_2_and_those_above_it(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("0::/slice/unit\n")
    write_group(tmp_path / "slice", {"memory.max": "5000", "memory.current": "4000"}, "inactive_file 700")
    write_group(tmp_path / "slice" / "unit", {"memory.max": "max", "memory.current": "3000"}, "")
    assert device_module._control_group_room(membership, tmp_path) == [1700]


def test_a_control_group_of_version_1(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("8:pids:/\n4:cpu,memory:/box\n")
    files = {"memory.limit_in_bytes": "1000", "memory.usage_in_bytes": "900"}
    write_group(tmp_path / "memory" / "box", files, "inactive_file 1\ntotal_inactive_file 50")
    assert device_module._control_group_room(membership, tmp_path) == [150]


def test_a_container_that_sees_its_own_group_at_the_root(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("0::/host/only/path\n")
    write_group(tmp_path, {"memory.max": "100", "memory.current": "300"}, "")
    assert device_module._control_group_room(membership, tmp_path) == [0]


def test_without_control_groups(tmp_path: Path) -> None:
    assert device_module._control_group_room(tmp_path / "nothing", tmp_path) == []


def test_available_host_memory(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       200 kB\nMemAvailable:     30 kB\nHugePages_Total:  0\n")
    assert device_module._available_host_memory(meminfo) == 30 * 1024
    assert device_module._available_host_memory(tmp_path / "nothing") > 0


def write_group(directory: Path, files: dict[str, str], stat: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in (files | {"memory.stat": stat}).items():
        (directory / name).write_text(text + "\n" if text else "")
