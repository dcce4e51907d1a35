from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from headstart.cli.calc import app
from headstart.lab.calc.find import table
from headstart.lab.calc.prices import built_in

PAGE = Path(__file__).parents[2] / "docs" / "calc.md"
SHOWN = re.findall(r"```sh\nheadstart calc (.*?)\n```\n\n```text\n(.*?)\n```", PAGE.read_text(), re.DOTALL)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "100"})


def read_json(*arguments: object) -> dict[str, Any]:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return dict(json.loads(result.stdout))


def without_trailing_space(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


@pytest.mark.parametrize(("command", "output"), SHOWN, ids=[command for command, _ in SHOWN])
def test_the_page_shows_what_is_printed(command: str, output: str) -> None:
    result = invoke(*shlex.split(command))
    assert result.exit_code == 0, result.stderr
    assert without_trailing_space(result.stdout) == output.splitlines()


def test_every_command_on_the_page_shows_its_output() -> None:
    assert len(SHOWN) == PAGE.read_text().count("headstart calc ") >= 7
    assert {command.split()[0] for command, _ in SHOWN} == {"vram", "cost", "alignment"}


def test_the_page_lists_the_table() -> None:
    text = PAGE.read_text()
    assert all(f"`{name}`" in text for name in table()["models"])


def test_vram_in_json() -> None:
    found = read_json("vram", "llama-3.1-8b", "--memory", "24GiB", "--length", 8192, "--shared", 4096)
    assert found["parameters"] == found["active_parameters"] == 8_030_261_248
    assert found["bytes"]["kv_per_token"] == 131_072
    assert found["bytes"]["weights"] == 16_060_522_496
    assert found["layer_groups"] == [
        {"num_layers": 32, "num_heads": 8, "elements_per_head": 256, "window": None, "is_latent": False}
    ]
    assert (found["fit"]["num_sequences"], found["fit"]["num_sharing"]) == (5, 9)


def test_vram_without_a_machine_tells_of_the_model_alone() -> None:
    found = read_json("vram", "smollm2-135m")
    assert found["fit"] is found["machine"] is None
    assert found["length"] == 8192  # its context
    result = invoke("vram", "smollm2-135m")
    assert "22.5 KiB" in result.stdout
    assert "What fits" not in result.stdout


def test_vram_says_when_nothing_fits() -> None:
    result = invoke("vram", "llama-3.1-70b", "--memory", "24GiB")
    assert result.exit_code == 0
    assert "Not one sequence of this length fits." in result.stdout


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ((), "bfloat16"),
        (("--dtype", "float32"), "float32"),
        (("--quantization", "int4"), "int4 matrices, the rest bfloat16"),
        (("--weights", "1GiB"), "as you say"),
    ],
)
def test_vram_says_what_the_weights_are(options: tuple[str, ...], weights: str) -> None:
    (line,) = [row for row in invoke("vram", "qwen3-8b", *options).stdout.splitlines() if "weights" in row]
    assert line.strip().endswith(weights)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["vram", "llama-9"], "vram: there is no model 'llama-9': give a config.json or its directory"),
        (["vram", "qwen3-8b", "--memory", "much"], "vram: --memory must be a size such as 24GiB"),
        (["vram", "qwen3-8b", "--kv-cache-dtype", "int2"], "vram: --kv-cache-dtype must be one of auto,"),
        (["vram", "qwen3-8b", "-tp", 3], "vram: 8 KV heads cannot be divided among 3 GPUs"),
        (["vram", "qwen3-8b", "--length", 8, "--shared", 9], "vram: --shared is a part of the sequence"),
        (["cost", "gpt-1"], "cost: there is no price for 'gpt-1'; there is one for gpt-4o, "),
        (["cost", "--ttl", "2h"], "cost: --ttl must be 5m or 1h, not '2h'"),
        (["cost", "--hit-rate", 0.6, "--cacheable", 0.5], "cost: a hit rate of 60.0% is more than the 50.0%"),
        (["cost", "--example", "--hit-rate", 0.5], "cost: the example has its own --prompt-tokens,"),
        (["cost", "--prices", "none.toml"], "cost: none.toml cannot be read: No such file or directory"),
        (["alignment", "--shared", "1,x"], "alignment: --shared must be numbers of tokens with commas"),
        (["alignment", "--block-size", "0"], "alignment: --block-size must be numbers of tokens"),
    ],
)
def test_errors_are_one_sentence(arguments: list[object], words: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith(f"headstart calc {words}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["vram"],
        ["vram", "qwen3-8b", "--gpu-memory-utilization", "1.5"],
        ["cost", "--hit-rate", "60"],
        ["vram", "qwen3-8b", "--block-size", "0"],
    ],
)
def test_values_out_of_range_are_usage_errors(arguments: list[str]) -> None:
    assert invoke(*arguments).exit_code == 2


def test_cost_in_json() -> None:
    found = read_json("cost", "claude-sonnet-4.5", "gpt-4.1", "--hit-rate", 0.5, "--requests-per-day", 1000)
    sonnet, gpt = found["models"]
    assert sonnet["per_day"]["total"] == pytest.approx(5 * (0.5 * 0.3 + 0.5 * 3.75) + 0.3 * 15)
    assert gpt["per_day"]["total"] == pytest.approx(5 * (0.5 * 0.5 + 0.5 * 2) + 0.3 * 8)
    assert sonnet["break_even_uses"] == 2
    assert found["prices_collected"] == built_in().collected


def test_cost_always_says_how_old_its_prices_are() -> None:
    for options in ((), ("--example",), ("gpt-5",)):
        words = " ".join(invoke("cost", *options).stdout.split())
        assert f"put together on {built_in().collected}" in words
        assert "check them before you rely on this" in words


def test_cost_with_prices_of_the_users_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'collected = 2026-11-30\n[models."my[gpu]"]\nstyle = "discount"\n'
        "input = 0.2\ncached = 0.0\noutput = 1\n"
    )
    result = invoke("cost", "--prices", path)
    assert "my[gpu]" in result.stdout
    assert "put together on 2026-11-30. They change" in result.stdout
    assert read_json("cost", "--prices", path)["models"][0]["price"]["model"] == "my[gpu]"


def test_the_example_in_json() -> None:
    found = read_json("cost", "--example", "gpt-5", "claude-sonnet-4.5")
    for one in found["models"]:
        assert one["bad_per_day"]["hit_rate"] == 0
        assert one["good_per_day"]["hit_rate"] > 0.9
        assert one["difference_per_day"] > 0
    sonnet = found["models"][1]
    assert sonnet["bad_per_day"]["total"] > sonnet["bad_per_day"]["uncached"]  # the surcharge, for nothing


def test_alignment_in_json() -> None:
    found = read_json("alignment", "--shared", "1024,1000", "--block-size", "16", "--ends-there")
    assert found == {
        "ends_there": True,
        "losses": [
            {"shared": 1000, "block_size": 16, "hash": 8, "radix": 1, "hash_share": 0.008},
            {"shared": 1024, "block_size": 16, "hash": 16, "radix": 1, "hash_share": 0.015625},
        ],
    }


@pytest.mark.parametrize("name", ["vram", "cost", "alignment"])
def test_help_teaches(name: str) -> None:
    result = invoke(name, "--help")
    assert result.exit_code == 0
    assert f"headstart calc {name}" in result.stdout


def test_it_is_registered_and_brings_no_torch() -> None:
    program = (
        "import sys; from headstart.cli import app; from typer.main import get_command; "
        "assert 'calc' in get_command(app).commands; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
