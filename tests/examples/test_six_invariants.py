"""The example runs as a user runs it: on the real model, in a process of its own, and proves all six."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "six_invariants.py"


def test_all_six_hold(smollm2: object) -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("All six hold.\n")
    assert all(f"\n{number}. " in done.stdout for number in range(1, 7))


def test_it_ends_with_an_error_if_one_does_not() -> None:
    broken = "import headstart.cache.hashing as h; h.block_hash_chain = lambda tokens, **_: [b'x', b'y']"
    code = f"{broken}; import runpy; runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "AssertionError" in done.stderr
