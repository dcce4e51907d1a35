"""Figures in documents: what lies between two markers is made by a script, and by it alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headstart.errors import ConfigError


def replace_section(text: str, name: str, content: str) -> str:
    """``text`` with ``content`` between ``<!-- bench:NAME -->`` and the ``<!-- /bench -->`` after it.

    Raises ``ConfigError`` unless the first marker is there once and the second follows.
    """
    start, end = f"<!-- bench:{name} -->", "<!-- /bench -->"
    before, found, rest = text.partition(start)
    _, closed, after = rest.partition(end)
    if not found or not closed or start in after:
        raise ConfigError(f"the text needs {start} once, followed by {end}")
    return f"{before}{start}\n\n{content.strip()}\n\n{end}{after}"


def publish(name: str, contents: Mapping[Path, str]) -> None:
    """Put each content into its file, between the markers of ``name``; into all files or none.

    Raises ``ConfigError`` for a file that is not there or lacks the markers, before anything is written.
    """
    changed = {}
    for path, content in contents.items():
        try:
            changed[path] = replace_section(path.read_text(encoding="utf-8"), name, content)
        except (OSError, ConfigError) as error:
            raise ConfigError(f"{path} cannot show {name}: {error}") from error
    for path, text in changed.items():
        path.write_text(text, encoding="utf-8")


def record(
    root: Path, name: str, content: str, fields: Mapping[str, Any], also_in: Sequence[str] = ()
) -> str:
    """Keep a benchmark's outcome in a checkout: where it was written, for people.

    ``content`` goes into docs/benchmarks.md and the files ``also_in``, ``fields`` into bench/results as JSON.
    Raises ``ConfigError`` as `publish` does.
    """
    documents = [root / "docs" / "benchmarks.md", *(root / file for file in also_in)]
    publish(name, dict.fromkeys(documents, content))
    results = root / "bench" / "results" / f"{name.replace('-', '_')}.json"
    results.parent.mkdir(exist_ok=True)
    results.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    return "written to " + ", ".join(str(path.relative_to(root)) for path in (*documents, results))
