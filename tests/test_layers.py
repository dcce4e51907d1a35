"""Imports go one way, and torch stays where the tensors are.

The contracts are in pyproject.toml; here they are run, and what a contract cannot say is added.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]


def test_the_contracts_of_pyproject_are_kept() -> None:
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", program, "pyproject.toml", "--no-cache", "--no-logo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_the_cache_core_needs_the_standard_library_and_two_small_packages_only() -> None:
    graph = grimp.build_graph(
        "headstart",
        include_external_packages=True,
        exclude_type_checking_imports=True,
        cache_dir=None,
    )
    modules = {"headstart.cache"} | graph.find_descendants("headstart.cache")
    imported = set().union(*map(graph.find_modules_directly_imported_by, modules)) - modules
    ours = {"headstart.config", "headstart.errors"}
    assert {name for name in imported if name.startswith("headstart")} <= ours
    libraries = {name.split(".")[0] for name in imported if not name.startswith("headstart")}
    assert libraries - sys.stdlib_module_names == {"sortedcontainers", "xxhash"}
    # no clock, no chance, no I/O: same calls, same decisions
    assert not libraries & {"time", "datetime", "random", "secrets", "uuid", "socket", "pathlib", "threading"}


CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
NO_TORCH = [contract for contract in CONTRACTS if "torch" in contract.get("forbidden_modules", [])]
TORCH_FREE = sorted({name for contract in NO_TORCH for name in contract["source_modules"]})

IMPORT_ALL = """
import importlib, pkgutil, sys
name = sys.argv[1]
package = importlib.import_module(name)
names = [name]
if name != "headstart" and hasattr(package, "__path__"):
    names += [module.name for module in pkgutil.walk_packages(package.__path__, name + ".")]
for name in names:
    importlib.import_module(name)
print(len(names), *sorted({"torch", "transformers"} & sys.modules.keys()))
"""


@pytest.mark.parametrize("name", TORCH_FREE)
def test_a_fresh_interpreter_imports_it_without_torch(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, name], capture_output=True, text=True, check=True
    )
    count, *found = done.stdout.split()
    assert found == []
    assert (int(count) > 1) == (name.split(".")[-1] in {"cache", "cli", "lab", "server", "text"})


def test_what_must_be_free_of_torch_is_under_contract() -> None:
    top = {name for name in TORCH_FREE if name.count(".") < 2}
    packages = {"cache", "cli", "config", "errors", "lab", "server", "text"}
    assert top == {"headstart", *(f"headstart.{name}" for name in packages)}
    pure = {"engine.client", "engine.core", "engine.scheduler", "model.source", "model.spec"}
    assert {f"headstart.{name}" for name in pure} <= set(TORCH_FREE)
