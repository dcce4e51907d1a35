from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from bench import cache_peers
from bench.cache_peers import (
    HASH,
    NUM_BLOCKS,
    RADIX,
    RADIX_BUFFER,
    SGLANG,
    VLLM,
    Entry,
    Row,
    missed,
    pool_entry,
)


def row(case: str, num_tokens: int, **micros: float) -> Row:
    named = {
        "radix": RADIX,
        "buffer": RADIX_BUFFER,
        "hash": HASH["sha256_cbor"],
        "hash_sha256": HASH["sha256"],
        "vllm": VLLM["sha256"],
        "vllm_cbor": VLLM["sha256_cbor"],
        "sglang": SGLANG[1],
        "sglang_buffer": Entry(SGLANG[1].name, "buffer"),
    }
    return Row(case, num_tokens, {named[name]: each for name, each in micros.items()}, {})


def pools(small: float, large: float) -> Row:
    sizes = {NUM_BLOCKS: small, cache_peers.GROWTH * NUM_BLOCKS: large}
    columns = {pool_entry(index, size): us for index in ("radix", "hash") for size, us in sizes.items()}
    return Row("miss", 1024, columns, {})


def test_goals_that_are_reached_are_not_told() -> None:
    rows = [
        row("hit", 131_072, radix=10, buffer=1, hash=50, vllm=60, vllm_cbor=75, sglang=10, sglang_buffer=2),
        row("hit", 1024, radix=10, buffer=5, hash=10, vllm=11, vllm_cbor=15),  # six times is for the long one
        row("miss", 131_072, radix=10, hash=10),  # nobody to compare with
    ]
    assert missed(rows, [pools(10, 12.9)]) == []


def test_each_missed_goal_is_told_with_its_row() -> None:
    rows = [
        row("hit", 131_072, radix=10, buffer=1.5, hash=50, vllm=59, vllm_cbor=75),
        row("evict", 1024, radix=10, buffer=9, hash=10, vllm_cbor=14, sglang=9, sglang_buffer=8),
        row("evict", 8192, hash_sha256=10, vllm=13),
    ]
    assert missed(rows, [pools(10, 13)]) == [
        "hit of 131,072 tokens: vLLM sha256 / radix is 5.90, the goal 6",
        "hit of 131,072 tokens: vLLM sha256 / radix, buffer is 39.33, the goal 50",
        "evict of 1,024 tokens: vLLM sha256_cbor / hash is 1.40, the goal 1.5",
        "evict of 1,024 tokens: SGLang page 16 / radix is 0.90, the goal 1",
        "evict of 1,024 tokens: SGLang page 16, buffer / radix, buffer is 0.89, the goal 1",
        "evict of 8,192 tokens: vLLM sha256 / hash sha256 is 1.30, the goal 1.5",
        "miss, radix: 10 times the blocks take 1.30 times as long, the goal is below 1.3",
        "miss, hash: 10 times the blocks take 1.30 times as long, the goal is below 1.3",
    ]


def run(*options: str) -> Result:
    app = typer.Typer()
    app.command()(cache_peers.main)
    return CliRunner().invoke(app, ["--rounds", "1", *options])


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree to write into, small pools, and short prompts that fill them."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "benchmarks.md").write_text("<!-- bench:cache-peers -->\n<!-- /bench -->\n")
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "peers").symlink_to(cache_peers.ROOT / "bench" / "peers")
    monkeypatch.setattr(cache_peers, "ROOT", tmp_path)
    monkeypatch.setattr(cache_peers, "NUM_BLOCKS", 20)
    monkeypatch.setattr(cache_peers, "LENGTHS", (32, 160))
    monkeypatch.setattr(cache_peers, "GROWTH_LENGTH", 32)
    return tmp_path


def test_without_peers_it_is_our_own_figures(root: Path) -> None:
    done = run("--write")
    found = json.loads((root / "bench" / "results" / "cache_peers.json").read_text())
    assert [(each["case"], each["tokens"]) for each in found["figures"]] == [
        (case, tokens) for case in ("hit", "miss", "evict") for tokens in (32, 160)
    ]
    hits = [each["hit_tokens"] for each in found["figures"]]
    assert [each["radix"] for each in hits] == [each["radix, buffer"] for each in hits]
    assert [each["radix"] for each in hits[:2]] == [24, 152]
    assert [each["hash"] for each in hits[:2]] == [16, 144]
    assert max(max(each.values()) for each in hits[2:]) <= 1, "a miss, but for a first token by chance"
    assert done.exit_code == (1 if found["missed"] else 0)
    assert "| evict, 160 |" in (root / "docs" / "benchmarks.md").read_text()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("no-such-python", "vLLM sha256 cannot be started"),
        (f"{sys.executable} -c pass", "vLLM sha256 has ended, with status 0"),
    ],
)
def test_a_peer_that_does_not_run_is_said(root: Path, command: str, said: str) -> None:
    done = run("--vllm", command)
    assert done.exit_code == 1
    assert said in done.stderr
