"""docs/catalogue.md leaves no item out, and names no test that is not there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "catalogue.md"
Rows = dict[int, str]


def rows(heading: str) -> Rows:
    """What the table under the heading says of each number's tests."""
    section = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    found = re.findall(r"^\| (\d+) \| [^|]+ \| ([^|]+) \|$", section, re.MULTILINE)
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    assert len(found) == len(lines) - 1, "a row that cannot be read"  # but for the head
    assert len(dict(found)) == len(found), "a number twice"
    return {int(number): where for number, where in found}


ITEMS, CASES = rows("The catalogue"), rows("The collected cases")


def references(where: str) -> list[tuple[str, str]]:
    return re.findall(r"`([\w/]+\.py)::(\w+)`", where)


@cache
def names_in(path: Path) -> frozenset[str]:
    return frozenset(re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE))


def numbered() -> Iterator[tuple[str, str, str, int]]:
    """The tests named after items and cases, with each number they bear."""
    for path in sorted(TESTS.rglob("test_*.py")):
        for name in sorted(names_in(path)):
            named = re.match(r"test_(item|case)_(\d+)((?:_and_\d+)*)_", name)
            if named:
                for number in (named[2], *re.findall(r"\d+", named[3])):
                    yield path.relative_to(TESTS).as_posix(), name, named[1], int(number)


def test_every_item_has_its_row() -> None:
    assert list(ITEMS) == list(range(1, 104))
    assert list(CASES) == sorted(CASES)


@pytest.mark.parametrize(("kind", "table"), [("item", ITEMS), ("case", CASES)])
def test_every_row_names_tests_or_says_why_not(kind: str, table: Rows) -> None:
    for number, where in table.items():
        has_reason = re.match(r"(another part|not offered): \w", where)
        assert references(where) or has_reason, f"{kind} {number}"


@pytest.mark.parametrize(("kind", "table"), [("item", ITEMS), ("case", CASES)])
def test_every_test_that_a_row_names_exists(kind: str, table: Rows) -> None:
    for number, where in table.items():
        assert len(references(where)) == where.count(".py"), f"{kind} {number}: a name that cannot be read"
        for path, name in references(where):
            assert (TESTS / path).is_file(), f"{kind} {number} names {path}"
            assert name in names_in(TESTS / path), f"{kind} {number} names {path}::{name}"


def test_every_test_named_after_a_number_is_in_its_row() -> None:
    named = list(numbered())
    assert len(named) > 20
    for path, name, kind, number in named:
        row = (ITEMS if kind == "item" else CASES)[number]
        assert (path, name) in references(row), f"{kind} {number} leaves out {name}"
