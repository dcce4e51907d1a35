from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from headstart.cli import app


def invoke(*arguments: object, given: str | None = None) -> Result:
    return CliRunner().invoke(app, ["replay", *map(str, arguments)], input=given, env={"COLUMNS": "200"})


def write(path: Path, rows: list[object]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def mooncake(*prompts: list[int], size: int = 512) -> list[object]:
    return [
        {"timestamp": 1000 * at, "input_length": len(ids) * size, "output_length": 8, "hash_ids": ids}
        for at, ids in enumerate(prompts)
    ]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "trace.jsonl", mooncake([1, 2, 3], [4, 5, 6], [1, 2, 3]))


@pytest.fixture
def logged(tmp_path: Path) -> Path:
    system = {"role": "system", "content": "You are a helpful assistant. " * 20}
    rows: list[object] = [
        {"model": "any", "messages": [system, {"role": "user", "content": f"Question {number}"}]}
        for number in range(4)
    ]
    return write(tmp_path / "requests.jsonl", rows)


def test_a_trace_alone_is_enough(trace: Path) -> None:
    result = invoke(trace)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    assert "trace.jsonl (mooncake): 3 requests in blocks of 512 tokens" in result.stdout
    assert "optimal  (blocks)" in result.stdout
    assert "This is a block view" in result.stdout


def test_json_is_all_there_is_on_stdout(trace: Path) -> None:
    result = invoke(trace, "--json", "--capacity", "4,5", "--policy", "all", "--prefix-index", "all")
    rows = json.loads(result.stdout)["rows"]
    assert len(rows) == 2 * (2 * 7 + 1)
    lru = {row["capacity_blocks"]: row["token_hit_rate"] for row in rows if row["policy"] == "lru"}
    assert lru == {4: 1 / 9, 5: 2 / 9}


def test_side_by_side_it_is_the_same(trace: Path) -> None:
    def rates(*options: str) -> list[float]:
        result = invoke(trace, "--json", "--capacity", "3,4,5", *options)
        return [row["token_hit_rate"] for row in json.loads(result.stdout)["rows"]]

    assert rates("--jobs", "2") == rates()


def test_standard_input_and_compressed_files(trace: Path, tmp_path: Path) -> None:
    packed = write(tmp_path / "packed.jsonl.gz", mooncake([1, 2, 3]))
    piped = invoke("-", "--json", given=trace.read_text())
    assert json.loads(piped.stdout)["num_requests"] == 3
    assert json.loads(invoke(trace, packed, "--json").stdout)["num_requests"] == 4


def test_a_capacity_in_bytes(trace: Path) -> None:
    result = invoke(trace, "--capacity", "5MiB", "--kv-bytes-per-token", "2048", "--json", "--policy", "lru")
    (row,) = json.loads(result.stdout)["rows"]
    assert row["capacity_blocks"] == 5


def test_text_is_tokenised_with_the_model(logged: Path, tiny_llama_dir: Path) -> None:
    # 2 (K and V) x 3 layers x 2 heads x 16 x 2 bytes = 384 bytes a token
    result = invoke(logged, "--model", tiny_llama_dir, "--capacity", "1MiB", "--json", "--policy", "lru")
    found = json.loads(result.stdout)
    assert found["tokens_per_symbol"] == 1
    (row,) = found["rows"]
    assert row["capacity_blocks"] == 2**20 // (384 * 16)
    assert row["request_any_hit_rate"] == 0.75
    assert row["token_hit_rate"] > 0.7
    assert row["misses"]["last_token"] == 4


def test_the_page_is_written_beside_the_table(trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    result = invoke(trace, "--html", page)
    assert result.exit_code == 0, result.stderr
    assert "optimal" in result.stdout
    assert "<svg" in page.read_text(encoding="utf-8")
    assert invoke(trace, "--html", tmp_path / "none" / "report.html").exit_code == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--capacity", "lots"], "a capacity is a number of blocks (4096)"),
        (["--capacity", "8GiB"], "name it with --model, or say with --kv-bytes-per-token"),
        (["--block-size", "16"], "multiples of that block size alone, not with 16"),
        (["--policy", "arc"], "there is no policy 'arc'"),
        (["--prefix-index", "tree"], "there is no prefix index 'tree'"),
        (["--warmup", "3"], "leaves none of the 3 requests"),
        (["--max-num-seqs", "0"], "--max-num-seqs takes numbers of requests from 1 on, or none, not '0'"),
        (["--max-num-seqs", "4", "--policy", "optimal"], "the optimum is that of one cache"),
        (["--replicas", "2", "--routing", "nearest"], "there is no routing 'nearest'"),
        (["--costs", "lunch=3"], "a cost model's constants are step"),
    ],
)
def test_what_makes_no_sense_is_a_sentence(trace: Path, options: list[str], why: str) -> None:
    result = invoke(trace, *options)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("headstart replay: ")
    assert why in result.stderr


def test_bad_lines_are_counted_or_stop_it(tmp_path: Path) -> None:
    rows = [
        *mooncake([1, 2]),
        {"hash_ids": [1, 2, 3], "input_length": 20, "output_length": 1, "timestamp": 2},
    ]
    path = write(tmp_path / "bad.jsonl", [*rows, *mooncake([1, 2])])
    result = invoke(path)
    assert "2 requests in blocks of 512 tokens, 1 line skipped" in result.stdout
    assert "bad.jsonl:2: " in result.stdout
    strict = invoke(path, "--strict")
    assert (strict.exit_code, strict.stdout) == (1, "")
    assert "bad.jsonl:2: " in strict.stderr


def test_the_size_of_hash_blocks_can_be_told(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.jsonl", mooncake([0, 1, 2], [0, 1, 3], size=500))
    sizes = [["--hash-block-size", "500"], []]  # 512 is as possible, and more usual
    rows = [json.loads(invoke(path, "--json", *size).stdout)["rows"][0] for size in sizes]
    assert [row["block_size"] for row in rows] == [500, 512]
    result = invoke(path, "--hash-block-size", "256")
    assert result.exit_code == 1
    assert "the number of hash ids is 3, and must be ceil(1,500 / 256) = 6" in result.stderr


def test_lengths_and_times_alone_tell_no_hit_rate(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n")
    result = invoke(path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no hit rate can be told from it" in result.stderr


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = invoke(tmp_path / "none.jsonl")
    assert result.exit_code == 1
    assert "cannot be read: No such file" in result.stderr


def test_concurrency_and_replicas(trace: Path) -> None:
    result = invoke(trace, "--max-num-seqs", "none,2", "--replicas", "2", "--routing", "all", "--json")
    rows = json.loads(result.stdout)["rows"]
    assert {(row["max_num_seqs"], row["routing"]) for row in rows} == {
        (seqs, routing)
        for seqs in (None, 2)
        for routing in ("random", "round-robin", "consistent-hash", "prefix")
    }
    assert all(row["policy"] == "lru" for row in rows)
