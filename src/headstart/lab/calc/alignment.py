"""What a prefix cache loses to block boundaries: arithmetic, which tests compare with the cache core.

The hash index finds whole blocks alone: of S shared tokens it loses ``S mod B``.  The radix index matches to
the token and loses none.  Either computes the last token of a prompt anew, for its logits: where the prompt
ends with the shared part, radix loses 1, and hash up to a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Loss:
    """Of ``shared`` tokens: how many are computed anew with each index."""

    shared: int
    block_size: int
    hash: int
    radix: int

    @property
    def hash_share(self) -> float:
        """Of the shared tokens."""
        return self.hash / self.shared


def loss(shared: int, block_size: int, *, ends_there: bool = False) -> Loss:
    """Tokens lost of a shared prefix; ``ends_there``: the prompt has nothing behind it."""
    reachable = shared - ends_there
    return Loss(shared, block_size, shared - reachable // block_size * block_size, shared - reachable)


def losses(shared: Sequence[int], block_sizes: Sequence[int], *, ends_there: bool = False) -> list[Loss]:
    """Every length with every block size, in this order."""
    return [loss(tokens, size, ends_there=ends_there) for tokens in shared for size in block_sizes]


def mean_loss(block_size: int, *, ends_there: bool = False) -> float:
    """Tokens that the hash index loses on average, where every length is as likely.

    ``(B - 1) / 2``, and one more where prompts end with the shared part.
    """
    return (block_size - 1) / 2 + ends_there
