"""How the tests of docs/catalogue.md read its numbers.

The catalogue counts blocks from 1, because the block 0 that its pools have is vLLM's null block, which is
never handed out.  headstart has none: every id is one less here, and every pool has one block less.
"""

from __future__ import annotations

from typing import Any

from tests.cache.checked import FLAVOURS, CheckedManager, make_manager

A = list(range(100, 108))
"""The catalogue's two full blocks of 4."""

KEEPS_TAILS = ["hash", "radix"]
"""What queues a request's last, partly filled block with the others.

The plain order of the `hash` index does so, and the radix index, to which such a tail is content.  The
third, "hash-unhashed-first", is vLLM 0.32's and the catalogue's own order: the block is taken next.
"""


def ours(*block_ids: int) -> list[int]:
    """The catalogue's block ids as headstart's."""
    return [block_id - 1 for block_id in block_ids]


def pool(flavour: str, num_ids: int, block_size: int = 4, **options: Any) -> CheckedManager:
    """A manager with the catalogue's "pool ``num_ids``"."""
    return make_manager(num_ids - 1, block_size, **FLAVOURS[flavour] | options)
