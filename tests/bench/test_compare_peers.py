import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from bench import compare_peers
from tests.fake_openai import FakeServer, serving


def run(*options: str) -> Result:
    app = typer.Typer()
    app.command()(compare_peers.main)
    return CliRunner().invoke(app, ["--rounds", "1", "--streams", "2", *options])


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "bench").mkdir()
    for page in ("docs/benchmarks.md", "README.md"):
        (tmp_path / page).write_text("before\n<!-- bench:compare-peers -->\n<!-- /bench -->\nafter\n")
    monkeypatch.setattr(compare_peers, "ROOT", tmp_path)
    return tmp_path


def test_the_figures_of_two_servers_are_written(root: Path) -> None:
    ours, theirs = FakeServer(), FakeServer(usage="llama.cpp", model="/somewhere/model.gguf")
    with serving(ours) as ours_url, serving(theirs) as theirs_url:
        done = run("--server", f"headstart={ours_url}", "--server", f"theirs={theirs_url}", "--write")
    assert done.exit_code == 0, done.stderr
    page = (root / "docs/benchmarks.md").read_text()
    table = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    assert table[0] == ["| ", "headstart", "theirs", "headstart / theirs |"]
    assert [row[0].removeprefix("| ") for row in table[2:]] == [line.label for line in compare_peers.lines(2)]
    unknown = [row[0] for row in table if "n/a" in row]
    assert unknown in ([], ["| decode, 2 streams behind one prefix, tokens/s ↑"]), (
        "the fake sends all at once"
    )
    assert "headstart, theirs ran all the time." in page
    assert (page[:6], page[-7:]) == ("before", "\nafter\n")
    results = (root / "bench/results/compare_peers.json").read_text()
    assert "/somewhere" not in results, "where a model lies on the machine is nobody's business"
    assert set(json.loads(results)["unshared"]) == {"headstart", "theirs"}
    # In whatever order those that were sent at once arrived.
    assert sorted(body["prompt"] for body in ours.received) == sorted(
        body["prompt"] for body in theirs.received
    )
    assert {body["ignore_eos"] for body in ours.received} == {True}


@pytest.mark.parametrize(
    ("servers", "said"),
    [
        (["headstart=http://127.0.0.1:1", "x"], "a server is NAME=COMMAND or NAME=URL"),
        (["headstart=http://127.0.0.1:1"] * 2, "every server needs a name of its own"),
        (["headstart=http://127.0.0.1:1"], "headstart does not answer"),
    ],
)
def test_what_goes_wrong_is_said(servers: list[str], said: str) -> None:
    done = run(*(word for server in servers for word in ("--server", server)))
    assert done.exit_code == 1
    assert said in done.stderr
