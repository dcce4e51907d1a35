from __future__ import annotations

import pytest

from headstart.errors import ConfigError
from headstart.lab.replay.capacity import Capacity, distinct


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("4096", 4096),
        ("4_096 blocks", 4096),
        ("2000000t", 125_000),
        ("2Mt", 125_000),
        ("500kt", 31_250),
        ("1.5kt", 93),
        ("33 tokens", 2),
        ("0.26208Mt", 16_380),  # exactly: as floats, a block less
        ("1GiB", 2**30 // (1000 * 16)),
        ("8GiB", 8 * 2**30 // (1000 * 16)),
        ("500MB", 31_250),
        ("10%", 70),
        ("0.01%", 1),
        ("150%", 1050),
        ("unbounded", None),
    ],
)
def test_a_capacity_in_blocks(text: str, blocks: int | None) -> None:
    assert Capacity.parse(text).blocks(16, 700, 1000) == blocks


@pytest.mark.parametrize(
    "text", ["", "0", "-4", "1.5", "ten", "4096x", "5 %%", "0t", "1e9", "8 GiBs", "nan", "\uff11\uff16"]
)
def test_what_is_no_capacity(text: str) -> None:
    with pytest.raises(ConfigError, match=r"a capacity is a number of blocks \(4096\)"):
        Capacity.parse(text)


def test_bytes_need_a_model() -> None:
    with pytest.raises(ConfigError, match=r"8GiB holds depends on the model: name it with --model"):
        Capacity.parse("8GiB").blocks(16, 700, None)


@pytest.mark.parametrize(("text", "count"), [("15t", "0"), ("9999999999", "9,999,999,999")])
def test_a_capacity_out_of_range(text: str, count: str) -> None:
    with pytest.raises(ConfigError, match=rf"{text} is {count} blocks of 16 tokens"):
        Capacity.parse(text).blocks(16, 700, None)


def test_a_list_comes_in_order_and_once() -> None:
    given = Capacity.parse_list("unbounded, 64,32, 512t,50%")
    assert [each.text for each in given] == ["unbounded", "64", "32", "512t", "50%"]
    assert distinct([each.blocks(16, 128, None) for each in given]) == [32, 64, None]
