from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from headstart.cli.verify_log import verify_log
from tests.recorded import write_log


def invoke(*arguments: object) -> Result:
    app = typer.Typer()
    app.command()(verify_log)
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200"})


def told(result: Result) -> dict[str, str]:
    rows = (line.split("  ", 1) for line in result.stdout.splitlines() if "  " in line)
    return {name: value.strip() for name, value in rows}


def alter(path: Path, old: bytes, new: bytes) -> None:
    data = gzip.decompress(path.read_bytes())
    assert old in data
    path.write_bytes(gzip.compress(data.replace(old, new)))


@pytest.mark.parametrize("index", ["radix", "hash"])
def test_a_log_that_agrees(tmp_path: Path, index: str) -> None:
    result = invoke(write_log(tmp_path, index=index), "--check")  # type: ignore[arg-type]
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    rows = told(result)
    assert rows["cache"] == f"{index} index, lru eviction, 12 blocks of 4"
    assert rows["end"] == "in order"
    assert rows["steps"] == "80"
    assert rows["state"].endswith("(9 compared)")
    assert int(rows["evictions"].split()[0]) > 0
    assert "prompt tokens (" in rows["hits"]
    assert "decided the same, call for call" in result.stdout


def test_a_log_without_an_end(tmp_path: Path) -> None:
    path = write_log(tmp_path, close=False)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    result = invoke(path)
    assert result.exit_code == 0
    assert told(result)["end"].startswith("none: the engine was killed, or still runs")


def test_a_log_that_differs_names_the_first_difference(tmp_path: Path) -> None:
    path = write_log(tmp_path)
    alter(path, b'["state"', b'["commit",77]\n["state"')
    result = invoke(path)
    assert result.exit_code == 1
    first, expected, got = result.stderr.splitlines()
    assert first.startswith("headstart verify-log: the replayed core decides otherwise in step 10, call ")
    assert expected == '  expected  ["commit",77]'
    assert got.startswith('  got       ["commit",')
    assert told(result)["end"] == "not reached"
    assert "decided the same" not in result.stdout


def test_a_log_of_another_headstart_says_so_where_it_differs(tmp_path: Path) -> None:
    path = write_log(tmp_path)
    alter(path, b'"headstart":"', b'"headstart":"9.')
    assert invoke(path).exit_code == 0
    alter(path, b'["state"', b'["commit",77]\n["state"')
    result = invoke(path)
    assert result.exit_code == 1
    assert "The log is headstart 9." in result.stderr


def test_what_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("hello")
    for path, words in (
        (tmp_path / "other", "other is no decision log of headstart"),
        (tmp_path / "nothing", "nothing cannot be read: No such file or directory"),
        (tmp_path, "cannot be read: Is a directory"),
    ):
        result = invoke(path)
        assert result.exit_code == 1
        assert result.stdout == ""
        (line,) = result.stderr.splitlines()
        assert line.startswith("headstart verify-log: ")
        assert line.endswith(words)


def test_a_damaged_log_shows_what_came_before(tmp_path: Path) -> None:
    path = write_log(tmp_path)
    alter(path, b'["state"', b"oops\n" + b'["state"')
    result = invoke(path)
    assert result.exit_code == 1
    assert told(result)["steps"] == "10"
    assert result.stderr.startswith("headstart verify-log: in step 10: run.log is damaged in line ")
