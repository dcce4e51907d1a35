"""How a prompt's tokens are billed in three parts."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from headstart.server.message_usage import usage_of


@dataclass
class Billed:
    """A prompt of 100 tokens, some of which were hits."""

    num_cached_tokens: int
    num_prompt_tokens: int = 100
    num_completion_tokens: int = 5


@pytest.mark.parametrize(
    ("index", "caching", "read", "marked", "parts"),
    [
        ("radix", True, 64, {}, (36, 0, 0)),
        ("radix", True, 64, {"5m": 90}, (10, 26, 0)),
        ("radix", True, 64, {"5m": 50}, (36, 0, 0)),
        ("radix", True, 0, {"5m": 90, "1h": 40}, (10, 50, 40)),
        ("radix", True, 0, {"5m": 40, "1h": 90}, (10, 0, 90)),
        ("radix", True, 64, {"5m": 90, "1h": 40}, (10, 26, 0)),
        ("radix", True, 99, {"5m": 100}, (1, 0, 0)),
        ("hash", True, 64, {"5m": 90}, (20, 16, 0)),
        ("radix", False, 0, {"5m": 90}, (100, 0, 0)),
    ],
)
def test_three_parts_are_the_whole(
    index: str, caching: bool, read: int, marked: dict[str, int], parts: tuple[int, int, int]
) -> None:
    info = SimpleNamespace(prefix_index=index, enable_prefix_caching=caching, block_size=16)
    front: Any = SimpleNamespace(client=SimpleNamespace(info=info))
    generation: Any = Billed(read)
    bill = usage_of(front, generation, marked)
    created = bill.cache_creation
    assert (bill.input_tokens, created.ephemeral_5m_input_tokens, created.ephemeral_1h_input_tokens) == parts
    assert bill.cache_read_input_tokens == read
    assert sum(parts) + read == 100
    assert bill.cache_creation_input_tokens == sum(parts[1:])
