"""How many tokens of a shared beginning each index finds: `hash` counts whole blocks, `radix` tokens."""

from __future__ import annotations

import pytest

from tests.cache.checked import ask, cached, make_manager, serve


@pytest.mark.parametrize(
    ("block_size", "shared", "hash_hit", "radix_hit"),
    [(16, 100, 96, 100), (16, 20, 16, 20), (16, 10, 0, 10), (32, 40, 32, 40)],
)
def test_a_shared_beginning_hits(block_size: int, shared: int, hash_hit: int, radix_hit: int) -> None:
    for index, expected in (("hash", hash_hit), ("radix", radix_hit)):
        manager = make_manager(64, block_size, index=index)
        serve(manager, ask("first", [*range(shared), *range(1000, 1050)]))
        assert cached(manager, [*range(shared), *range(2000, 2050)]) == expected


@pytest.mark.parametrize(("index", "expected"), [("hash", 96), ("radix", 99)])
def test_of_exactly_the_shared_prompt_the_last_token_is_computed(index: str, expected: int) -> None:
    manager = make_manager(64, 16, index=index)
    serve(manager, ask("first", range(100)))
    assert cached(manager, range(100)) == expected
