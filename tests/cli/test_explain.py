from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from headstart.cli import app
from headstart.model.source import ModelFiles
from tests import faulty_logs
from tests.faulty_logs import Body

pytestmark = pytest.mark.usefixtures("smollm2")
EXAMPLE = Path(__file__).parent.parent.parent / "examples/logs/support.jsonl"


def invoke(*arguments: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, ["explain", *map(str, arguments)], input=stdin, env={"COLUMNS": "100"})


def write(path: Path, bodies: list[Body]) -> Path:
    path.write_text("".join(f"{json.dumps(body)}\n" for body in bodies))
    return path


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("logs") / "clock.jsonl", faulty_logs.clock(1).bodies)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("logs") / "clean.jsonl", faulty_logs.clean(1))


def test_a_faulty_log_is_explained_in_words(faulty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(faulty.parent)  # a long path would break its lines elsewhere
    result = invoke(faulty.name)
    assert result.exit_code == 2, result.stderr
    assert result.stderr == ""
    text = result.stdout
    assert "60 requests, 31,944 prompt tokens" in text
    assert "unbounded capacity, blocks of 16" in text
    assert "Token hit rate 8.8%" in text
    assert re.search(r"diverged +26,202 +82\.0% +█{20,}", text)
    first = text[text.index("1. clock") :]
    assert re.match(
        r"1\. clock: 25,867 tokens lost \(81\.0%\) in 59 requests; with this fix: 8\.8% → 90\.0%", first
    )
    assert "Fix: Move it behind the stable text" in first
    assert re.search(r"clock\.jsonl:1, token 43 +… 2026-03-05 \[09:58:12\] UTC\\nThe", first)
    assert max(map(len, text.splitlines())) <= 100


def test_clean_traffic_is_no_failure(clean: Path) -> None:
    result = invoke(clean)
    assert result.exit_code == 0, result.stdout
    assert "Token hit rate 91.5%" in result.stdout


def test_json_has_all_of_it_and_nothing_else(faulty: Path) -> None:
    result = invoke(faulty, "--json")
    assert result.exit_code == 2
    told = json.loads(result.stdout)
    assert {"policy", "prefix_index", "block_size", "capacity_blocks", "definitions", "notes"} <= told.keys()
    assert told["token_hit_rate"] == pytest.approx(0.088, abs=1e-3)
    assert sum(told["misses"].values()) + told["num_hit_tokens"] == told["num_prompt_tokens"]
    finding = told["findings"][0]
    assert finding["kind"] == "clock"
    assert finding["is_fault"] is True
    assert finding["token_hit_rate_after"] == pytest.approx(0.9, abs=1e-2)
    assert [evidence["line"] for evidence in finding["evidence"]] == [1, 2]


@pytest.mark.parametrize(("fail_on", "code"), [("none", 0), ("99%", 0), ("80%", 2), ("80", 2), ("0%", 2)])
def test_the_exit_code_is_for_programs(tmp_path: Path, fail_on: str, code: int) -> None:
    bodies = [{"prompt": f"Turn: {n}\n{'the stable text ' * 60}"} for n in range(40)]
    assert invoke(write(tmp_path / "log.jsonl", bodies), "--fail-on", fail_on).exit_code == code


@pytest.mark.parametrize("fail_on", ["much", "-1%", "101%", "5%%", "1.2.3", ""])
def test_a_bad_share_is_told(faulty: Path, fail_on: str) -> None:
    result = invoke(faulty, "--fail-on", fail_on)
    assert result.exit_code == 2
    assert "a share of the prompt tokens, as 5%, or none" in result.stderr


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["text", "json"])
def test_privacy_writes_no_text_of_prompts(tmp_path: Path, more: list[str]) -> None:
    bodies = faulty_logs.disguised(faulty_logs.user_names(2).bodies)
    pieces = {
        text[at : at + 8]
        for body in bodies
        for text in faulty_logs.words_of(body)
        for at in range(len(text) - 7)
    }
    log = write(tmp_path / "log.jsonl", bodies)

    def written(*options: str) -> str:
        result = invoke(log, *options, *more)
        # Words that a line's end or JSON tears apart are written, too.
        return " ".join((result.stdout + result.stderr).replace("\\n", "\n").split())

    private, public = written("--privacy"), written()
    assert not [piece for piece in pieces if piece in private]
    assert [piece for piece in pieces if piece in public]


def test_privacy_tells_nothing_of_a_line_that_cannot_be_read(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"messages": [{"role": "user", "content": "zyzzyva quokka"}], "zyzzyva quokka": \n' * 3)
    result = invoke(log, "--privacy")
    assert result.exit_code == 1
    assert "zyzzyva" not in result.stdout + result.stderr
    assert "without --privacy it is said why" in result.stderr


def test_privacy_hides_nothing_of_options_and_missing_files(tmp_path: Path) -> None:
    missing = invoke(tmp_path / "missing.jsonl", "--privacy")
    assert missing.exit_code == 1
    assert "missing.jsonl" in missing.stderr
    wrong = invoke(tmp_path / "missing.jsonl", "--privacy", "--capacity", "0")
    assert wrong.exit_code == 1
    assert "a capacity is a number of blocks" in wrong.stderr


def test_only_the_dearest_are_shown(tmp_path: Path) -> None:
    result = invoke(EXAMPLE, "--top", "1")
    assert "1. shuffled" in result.stdout
    assert "2. " not in result.stdout
    assert "2 more findings are not shown (--top)" in result.stdout


def test_the_example_has_two_faults_one_behind_the_other() -> None:
    told = json.loads(invoke(EXAMPLE, "--json").stdout)
    shuffled, clock, *_ = told["findings"]
    assert (shuffled["kind"], clock["kind"]) == ("shuffled", "clock")
    assert "clock at token 65" in shuffled["fix"]
    assert shuffled["token_hit_rate_after"] > 0.85
    assert clock["token_hit_rate_after"] < 0.2


def test_standard_input_packed_files_and_several(tmp_path: Path, faulty: Path) -> None:
    text = faulty.read_text()
    packed = tmp_path / "clock.jsonl.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    piped = json.loads(invoke("-", "--json", stdin=text).stdout)
    assert piped["num_requests"] == 60
    two = json.loads(invoke(packed, faulty, "--json").stdout)
    assert two["num_requests"] == 120
    # Seen a second time, all of it is a hit.
    assert two["token_hit_rate"] > 0.5


def test_capacity_and_index_are_the_settings(faulty: Path) -> None:
    told = json.loads(
        invoke(faulty, "--json", "--capacity", "500t", "--prefix-index", "hash", "--block-size", 32).stdout
    )
    assert (told["capacity_blocks"], told["prefix_index"], told["block_size"]) == (15, "hash", 32)
    assert any("never fit" in note for note in told["notes"])


def test_token_ids_need_no_model_and_have_no_text(tmp_path: Path, smollm2: ModelFiles) -> None:
    rows = [{"prompt_token_ids": [*range(100, 120), 5000 + n, *range(200, 300), 7000 + n]} for n in range(20)]
    log = tmp_path / "tokens.jsonl"
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    told: dict[str, Any] = json.loads(invoke(log, "--json").stdout)
    [finding] = [finding for finding in told["findings"] if finding["is_fault"]]
    assert finding["kind"] == "variable"
    assert {evidence["text"] for evidence in finding["evidence"]} == {None}
    named = json.loads(invoke(log, "--json", "--model", "smollm2-135m").stdout)
    assert all(evidence["text"] for evidence in named["findings"][0]["evidence"])


def test_hash_ids_are_explained_without_text(tmp_path: Path) -> None:
    rows = [
        {"timestamp": n, "input_length": 1024, "output_length": 1, "hash_ids": [1, n + 10]} for n in range(9)
    ]
    log = tmp_path / "mooncake.jsonl"
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    result = invoke(log, "--fail-on", "none")
    assert result.exit_code == 0, result.stderr
    assert "hash ids of 512 tokens and no text" in " ".join(result.stdout.split())


def test_times_alone_cannot_be_explained(tmp_path: Path) -> None:
    log = tmp_path / "azure.csv"
    log.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n")
    result = invoke(log)
    assert result.exit_code == 1
    assert result.stderr.startswith("headstart explain: azure.csv has lengths and times and no content")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["/nowhere/log.jsonl"], "/nowhere/log.jsonl cannot be read"),
        ([EXAMPLE, "--capacity", "lots"], "a capacity is a number of blocks"),
        ([EXAMPLE, "--capacity", "8GiB"], "name it with --model"),
        ([EXAMPLE, "--warmup", "100%"], "leaves none of the 24 requests"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_sentence(arguments: list[object], sentence: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("headstart explain: ")
    assert sentence in result.stderr
    assert result.stdout == ""
