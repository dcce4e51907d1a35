"""The example runs as a user runs it and proves its claims."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "prompt_layout.py"


def test_it_prints_both_layouts_side_by_side() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        capture_output=True,
        text=True,
        check=False,
        env={"COLUMNS": "120", "PYTHONPATH": ":".join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["radix", "16", "500", "/", "524", "1,024", "/", "0", "47.3%", "→", "96.9%"] in lines
    assert ["hash", "16", "496", "/", "528", "1,024", "/", "0", "46.9%", "→", "96.9%"] in lines
    assert "█ hits" in done.stdout


def test_it_ends_with_an_error_if_a_claim_does_not_hold() -> None:
    broken = (
        "import headstart.lab.prompts.layout as l; s = l.split_system_prompt;"
        "l.split_system_prompt = lambda: s(1024, 501)"
    )
    run = f"import runpy, sys; sys.argv = ['x']; runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
    code = f"{broken}; {run}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.returncode != 0
    assert "AssertionError" in done.stderr
