from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from headstart.cli.verdict import verdict
from tests.conftest import write_tiny_tokenizer


def invoke(*arguments: object) -> Result:
    app = typer.Typer()
    app.command()(verdict)
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "120"})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Hash ids of 512 tokens: each of 40 requests has 4 blocks of one of 4 prefixes, and its own."""
    lines = [
        {
            "timestamp": 1000 * number,
            "input_length": 5 * 512,
            "output_length": 10,
            "hash_ids": [*(10 * (number % 4) + at for at in range(4)), 1000 + number],
        }
        for number in range(40)
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def test_for_people(log: Path) -> None:
    result = invoke(log, "--capacity", 100, "--seconds-per-token", 0.001)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    rows = [line.strip("│ \n") for line in result.stdout.splitlines()]
    assert "log.jsonl: 40 requests, 102,400 prompt tokens" in rows[0]
    (shared,) = (row for row in rows if row.startswith("requests with a shared prefix"))
    assert [cell.strip() for cell in shared.split("│")][1:] == ["90.0%", "≥ 50%", "≥ 20%", "good"]
    (pressure,) = (row for row in rows if row.startswith("shared prefixes' blocks / capacity"))
    assert [cell.strip() for cell in pressure.split("│")][1:] == ["0.16", "≤ 1", "≤ 3", "good"]
    text = " ".join(result.stdout.split())
    assert "Yes: with 100 blocks of 512 tokens and the radix index prefix caching hits 72.0% of the" in text
    assert "saves 1.84 s of the 2.56 s" in text
    assert "Seconds are prompt tokens times 0.001 s (--seconds-per-token)" in text


def test_for_programs(log: Path) -> None:
    result = invoke(log, "--capacity", 8, "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["setting"]["capacity_blocks"] == 8
    assert told["verdict"] == "bad"
    assert {one["name"]: one["word"] for one in told["variables"]} == {
        "shared_requests": "good",
        "shared_tokens": "good",
        "prefix_length": "good",
        "pressure": "marginal",
        "reuse_gap": "bad",
    }


def test_a_log_of_text_is_tokenised(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    write_tiny_tokenizer(model)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").touch()  # never read: a tokenizer is enough
    system = {"role": "system", "content": "You are a helpful assistant of a bank. " * 20}
    lines = [
        {"messages": [system, {"role": "user", "content": f"{number} is my question"}]} for number in range(9)
    ]
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    result = invoke(path, "--model", model, "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["verdict"] == "good"
    assert told["token_hit_rate"] > 0.8


def test_errors_are_sentences(tmp_path: Path, log: Path) -> None:
    result = invoke(tmp_path / "none.jsonl")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("headstart verdict: ")
    assert "none.jsonl" in result.stderr
    result = invoke(log, "--block-size", 100)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "multiples of that block size alone, not with 100" in result.stderr
    result = invoke(log, "--capacity", "8GiB")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "--kv-bytes-per-token" in result.stderr


def test_a_line_that_cannot_be_read_is_told(log: Path) -> None:
    with log.open("a") as file:
        file.write("{no json\n")
    result = invoke(log, "--json")
    assert result.exit_code == 0, result.stderr
    note = json.loads(result.stdout)["notes"][-1]
    assert note.startswith(f"1 line could not be read and left out; the first: {log}:41: ")
    strict = invoke(log, "--strict")
    assert (strict.exit_code, strict.stdout) == (1, "")
    assert strict.stderr.startswith(f"headstart verdict: {log}:41: ")


def test_load_traces_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,109\n"
    )
    result = invoke(path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no hit rate can be told" in " ".join(result.stderr.split())
