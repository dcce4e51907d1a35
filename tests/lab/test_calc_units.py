from __future__ import annotations

import pytest

from headstart.errors import ConfigError
from headstart.lab.calc.units import parse_bytes, show_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("24GiB", 24 << 30),
        ("80 GB", 80 * 10**9),
        ("1.5gib", 3 << 29),
        ("512", 512),
        ("0", 0),
        ("2TiB", 2 << 40),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_bytes(text, "--memory") == count


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "24 gigs", "1e9", "24GiB 2", "٣"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError, match="--memory must be a size such as 24GiB"):
        parse_bytes(text, "--memory")


def test_shown() -> None:
    assert [show_bytes(n) for n in (23_040, 131_072, 5 << 20, 24 << 30, 900)] == [
        "22.5 KiB",
        "128.0 KiB",
        "5.0 MiB",
        "24.00 GiB",
        "900 bytes",
    ]
