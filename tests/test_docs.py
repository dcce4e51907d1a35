"""Documentation is tested: what it names exists, and what it tells people to type works."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from headstart.cli import app

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md")])


def shell_lines() -> list[tuple[str, str]]:
    """Every command in a fenced shell block or indented block: (page, command)."""
    found = []
    for page in PAGES:
        text = page.read_text()
        blocks = re.findall(r"^```(?:sh|bash|console)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        for block in blocks:
            lines = block.replace("\\\n", " ").splitlines()
            found += [(page.name, line.split(" #")[0].strip()) for line in lines if line.strip()]
        indented = re.findall(r"^    ((?:make|headstart|python) .*)$", text, re.MULTILINE)
        found += [(page.name, line.split(" #")[0].strip()) for line in indented]
    return found


COMMANDS = shell_lines()


def test_the_readme_shows_its_two_commands() -> None:
    commands = {command for page, command in COMMANDS if page == "README.md"}
    assert {"make serve", "make test"} <= commands


@pytest.mark.parametrize(
    "command", sorted({c for _, c in COMMANDS if c.startswith("make ")}), ids=lambda command: command
)
def test_make_targets_exist(command: str) -> None:
    words = shlex.split(command)
    done = subprocess.run([words[0], "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "command", sorted({c for _, c in COMMANDS if c.startswith("headstart ")}), ids=lambda command: command
)
def test_headstart_commands_take_the_options_shown(command: str) -> None:
    _, name, *words = shlex.split(command)
    subcommand = get_command(app).commands[name]  # type: ignore[attr-defined]
    subcommand.make_context(name, words, resilient_parsing=False).close()


@pytest.mark.parametrize(
    "command", sorted({c for _, c in COMMANDS if c.startswith("python ")}), ids=lambda command: command
)
def test_scripts_exist_and_take_the_options_shown(command: str) -> None:
    _, *words = shlex.split(command)
    script = words[:2] if words[0] == "-m" else words[:1]
    assert (ROOT / f"{script[-1].removesuffix('.py').replace('.', '/')}.py").is_file()
    done = subprocess.run(
        [sys.executable, *script, "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for word in words:
        if word.startswith("--"):
            assert word.split("=")[0] in done.stdout


def test_no_command_goes_untested() -> None:
    known = ("make ", "headstart ", "python ", "pip install ", "git clone ", "curl ", "cd ")
    assert [c for _, c in COMMANDS if not c.startswith(known)] == []


def test_every_subcommand_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    for name in get_command(app).commands:  # type: ignore[attr-defined]
        assert f"headstart {name}" in readme


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_walkthrough_names_what_exists() -> None:
    text = (ROOT / "docs/walkthrough.md").read_text()
    references = re.findall(r"`([a-z_/]+)\.py:(\w+)`", text)
    assert len(references) > 20
    for path, name in references:
        module = importlib.import_module("headstart." + path.replace("/", "."))
        assert hasattr(module, name), f"{path}.py has no {name}"
    for path in re.findall(r"`([a-z_/]+\.py)`", text):
        assert (ROOT / "src/headstart" / path).exists(), path


EXAMPLES = {"README.md": "cached", "docs/structured-outputs.md": "(123) 456-7890"}


@pytest.mark.parametrize(("page", "shows"), EXAMPLES.items())
def test_python_examples_run(smollm2: object, page: str, shows: str) -> None:
    examples = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert len(examples) == 1
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", examples[0]], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert shows in done.stdout


def test_json_in_curl_lines_is_json() -> None:
    for _, command in COMMANDS:
        if command.startswith("curl ") and "-d" in shlex.split(command):
            words = shlex.split(command)
            json.loads(words[words.index("-d") + 1])
