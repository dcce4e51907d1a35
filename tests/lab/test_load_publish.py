from pathlib import Path

import pytest

from headstart.errors import ConfigError
from headstart.lab.load.publish import publish, replace_section

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
