"""`headstart audit` against real servers: what it says is what they do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conftest import StartServer

ALICE, BOB, ROOT = "sk-alice", "sk-bob", "sk-root"


def audited(*arguments: str) -> tuple[int, dict[str, str], Any]:
    """The exit code, the word of each line, and the whole report."""
    command = [sys.executable, "-m", "headstart", "audit", *arguments, "--json"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert not done.stderr, done.stderr
    report = json.loads(done.stdout)
    return done.returncode, {one["name"]: one["word"] for one in report["lines"]}, report


def test_a_server_as_it_starts_is_well(start_server: StartServer, tiny_llama_dir: Path) -> None:
    with start_server(str(tiny_llama_dir), "--dtype", "float32", "--num-blocks", "1000") as server:
        code, words, report = audited(server.url)
    assert words.pop("the order of tools") == "warn"  # the model is given them as they came
    assert words.pop("isolation by key") == "unknown"  # there are none
    assert set(words.values()) == {"ok"}, report
    assert len(words) == 11
    assert (code, report["engine"]) == (0, "headstart")


def test_without_a_cache_it_says_so_and_fails(start_server: StartServer, tiny_llama_dir: Path) -> None:
    options = ("--dtype", "float32", "--num-blocks", "1000", "--no-enable-prefix-caching")
    with start_server(str(tiny_llama_dir), *options) as server:
        code, words, report = audited(server.url)
    assert code == 1
    assert words["equal prompts hit"] == "fail", report
    assert words["isolation by cache_salt"] == "warn"  # nothing is proven where nothing hits


def test_keys_that_are_kept_apart_and_metrics_at_the_operators_port(
    start_server: StartServer, tiny_llama_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text(f"{ALICE}\n{BOB}\n")
    (tmp_path / "root").write_text(f"{ROOT}\n")
    options = (
        *("--dtype", "float32", "--num-blocks", "1000", "--isolate-by", "api-key", "--admin-port", "0"),
        *("--api-key-file", str(tmp_path / "keys"), "--admin-api-key-file", str(tmp_path / "root")),
        *("--isolation-secret-file", str(tmp_path / "secret")),
    )
    (tmp_path / "secret").write_bytes(bytes(range(32)))
    with start_server(str(tiny_llama_dir), *options) as server:
        keys = ("--api-key", ALICE, "--other-api-key", BOB)
        _, words, report = audited(server.url, *keys)
        assert words["metrics"] == "unknown", report
        admin = re.search(r"/reset_prefix_cache at (http://[\d.]+:\d+)", server.banner)
        assert admin is not None
        code, words, report = audited(server.url, *keys, "--metrics-url", admin[1], "--admin-api-key", ROOT)
    assert code == 0, [one for one in report["lines"] if one["word"] == "fail"]
    assert words["isolation by key"] == words["isolation by cache_salt"] == words["who is served"] == "ok"
    assert words["room for KV"] == "ok"
