import json
from pathlib import Path

import pytest

from headstart.errors import ConfigError
from headstart.lab.load.publish import publish, record, replace_section

TEXT = "# Figures\n<!-- bench:a -->\nold\n<!-- /bench -->\nand\n<!-- bench:b --><!-- /bench -->\nend\n"


def test_only_the_section_changes_and_again_changes_nothing() -> None:
    once = replace_section(TEXT, "a", "| new |\n")
    assert once == TEXT.replace("\nold\n", "\n\n| new |\n\n")
    assert replace_section(once, "a", "| new |") == once
    assert replace_section(TEXT, "b", "x").endswith("<!-- bench:b -->\n\nx\n\n<!-- /bench -->\nend\n")


@pytest.mark.parametrize("text", ["", "<!-- bench:a -->", "<!-- /bench --><!-- bench:a -->", TEXT + TEXT])
def test_markers_that_are_not_a_pair(text: str) -> None:
    with pytest.raises(ConfigError, match="needs <!-- bench:a --> once, followed by <!-- /bench -->"):
        replace_section(text, "a", "new")


def test_all_files_or_none(tmp_path: Path) -> None:
    good, bad, missing = tmp_path / "good.md", tmp_path / "bad.md", tmp_path / "missing.md"
    good.write_text(TEXT)
    bad.write_text("nothing here")
    for broken in (bad, missing):
        with pytest.raises(ConfigError, match=f"{broken.name} cannot show a"):
            publish("a", {good: "new", broken: "new"})
        assert good.read_text() == TEXT
    publish("a", {good: "new"})
    assert "\nnew\n" in good.read_text()


def test_a_benchmarks_outcome_is_kept_in_documents_and_as_json(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "bench").mkdir()
    for file in ("docs/benchmarks.md", "README.md"):
        (tmp_path / file).write_text("<!-- bench:some-thing -->\n<!-- /bench -->")
    told = record(tmp_path, "some-thing", "a table", {"ratio": 0.5}, also_in=["README.md"])
    assert told == "written to docs/benchmarks.md, README.md, bench/results/some_thing.json"
    assert json.loads((tmp_path / "bench/results/some_thing.json").read_text()) == {"ratio": 0.5}
    for file in ("docs/benchmarks.md", "README.md"):
        assert "a table" in (tmp_path / file).read_text()
