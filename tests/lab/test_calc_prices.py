from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from headstart.errors import ConfigError
from headstart.lab.calc.prices import built_in, read_prices

MINE = """
collected = 2026-12-24
[models.mine]
style = "discount"
input = 1
cached = 0.1
output = 4.5
"""


def test_the_built_in_table_is_dated_and_says_where_from() -> None:
    table = built_in()
    assert dt.date.fromisoformat(table.collected)
    for price in table.prices.values():
        assert dt.date.fromisoformat(price.published) <= dt.date.fromisoformat(table.collected)
        assert price.source.startswith("https://")
        assert 0 < price.cached < price.input < price.output


def test_published_multiples() -> None:
    for price in built_in().prices.values():
        if price.style == "surcharge":
            assert price.write("5m") == pytest.approx(1.25 * price.input)
            assert price.write("1h") == pytest.approx(2 * price.input)
            assert price.cached == pytest.approx(0.1 * price.input)
        else:
            assert price.write("5m") == price.write("1h") == price.input


def test_a_users_own(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(MINE)
    table = read_prices(path)
    assert table.collected == "2026-12-24"
    assert table.named("mine").output == 4.5
    with pytest.raises(ConfigError, match="no price for 'yours'; there is one for mine"):
        table.named("yours")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("collected = 2026-12-24", "", "collected must be the date of these prices"),
        ("input = 1", "input = '1'", r"models\.mine: input must be dollars .*, not '1'"),
        ("input = 1", "input = -1", "input must be dollars"),
        ("input = 1", "", "input must be dollars for a million tokens, not None"),
        ("input", "inputs", "unknown key 'inputs'; known: cached, input,"),
        ('"discount"', '"rebate"', "style must be discount or surcharge, not 'rebate'"),
        ('"discount"', '"surcharge"', "write_5m is missing"),
        ("cached", "write_5m = 2\ncached", "style discount has no write_5m"),
        ("cached", "steps = 0\ncached", "steps must be a whole number of at least 1, not 0"),
        ("[models.mine]", "[models]", "must be a table of prices"),
        ("=", ":", "is not TOML"),
    ],
)
def test_what_is_no_table(tmp_path: Path, old: str, new: str, words: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(MINE.replace(old, new))
    with pytest.raises(ConfigError, match=words):
        read_prices(path)


def test_no_file_and_no_models(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_prices(tmp_path / "none.toml")
    (tmp_path / "empty.toml").write_text("collected = 2026-12-24")
    with pytest.raises(ConfigError, match=r"has no \[models\.NAME\] with prices"):
        read_prices(tmp_path / "empty.toml")
