import os
import platform
from importlib.metadata import version
from pathlib import Path

from headstart.lab.load.machine import Machine, cpu_model, describe_machine


def test_this_machine() -> None:
    machine = describe_machine(["headstart", "httpx"])
    assert machine.cpu
    assert machine.cores == len(os.sched_getaffinity(0))
    assert machine.memory_gib > 0
    assert machine.versions == {
        "Python": platform.python_version(),
        "headstart": version("headstart"),
        "httpx": version("httpx"),
    }


def test_in_words() -> None:
    machine = Machine("Abacus 3", 2, 16, "Linux x86_64", {"Python": "3.11.7", "torch": "2.13.0"})
    assert str(machine) == "Abacus 3, 2 cores, 16 GiB, Linux x86_64, Python 3.11.7, torch 2.13.0"
    assert str(Machine("Abacus 1", 1, 1, "Linux", {})).startswith("Abacus 1, 1 core, 1 GiB, Linux")


def test_the_processors_name(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    assert cpu_model(cpuinfo) == platform.machine()
    cpuinfo.write_text("processor\t: 0\nBogoMIPS\t: 50.00\n")
    assert cpu_model(cpuinfo) == platform.machine()
    cpuinfo.write_text("processor\t: 0\nmodel\t\t: 167\nmodel name\t: Abacus: 3\nmodel name\t: other\n")
    assert cpu_model(cpuinfo) == "Abacus: 3"
