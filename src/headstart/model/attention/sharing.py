"""Which decoding sequences have blocks in common, so that these can be read once for all of them.

Block tables form a tree: sequences share a system prompt, some of those a document behind it, and so on.
A *stretch* is an edge of that tree with several sequences below it; what is left of a sequence is its *tail*.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headstart.model.batch import SequenceSpan


@dataclass(frozen=True, slots=True)
class SharedStretch:
    """``block_ids`` that sequences ``first … last - 1`` see whole, behind ``depth`` other stretches."""

    first: int
    last: int
    depth: int
    block_ids: Tensor


@dataclass(frozen=True, slots=True)
class Sharing:
    """``stretches`` of ``sequences``, each of which is in one at least, and side by side with its like.

    ``tails[i]`` is what is left of ``sequences[i]`` behind its stretches: at least its query's own slot.
    Those ``apart`` are in no stretch.
    """

    stretches: tuple[SharedStretch, ...]
    sequences: tuple[SequenceSpan, ...]
    tails: tuple[SequenceSpan, ...]
    apart: tuple[SequenceSpan, ...]

    @property
    def depth(self) -> int:
        """The most stretches that a sequence is in."""
        return 1 + max((stretch.depth for stretch in self.stretches), default=-1)


def find_sharing(sequences: Sequence[SequenceSpan], block_size: int, least_saved: int) -> Sharing:
    """The stretches among ``sequences`` (one query each) that save reading ``least_saved`` slots or more."""
    # Bytes of big-endian ids: in their order, sequences with a common beginning are neighbours.
    ordered = sorted(sequences, key=lambda s: s.block_ids.numpy().astype(">i8").tobytes())
    alike = [_common_blocks(a, b, block_size) for a, b in itertools.pairwise(ordered)]
    stretches: list[SharedStretch] = []
    starts = [0] * len(ordered)  # the first block of each tail
    depths = [0] * len(ordered)
    # Sequences first … last - 1 and the block up to which they are known to be alike.
    open_groups = [(0, len(ordered))] if len(ordered) > 1 else []
    while open_groups:
        first, last = open_groups.pop()
        start, end = starts[first], min(alike[first : last - 1])
        if (last - first - 1) * (end - start) * block_size >= least_saved:
            stretches.append(SharedStretch(first, last, depths[first], ordered[first].block_ids[start:end]))
            starts[first:last] = [end] * (last - first)
            depths[first:last] = [depths[first] + 1] * (last - first)
        edges = [first, *(i + 1 for i in range(first, last - 1) if alike[i] == end), last]
        open_groups += [(a, b) for a, b in itertools.pairwise(edges) if b - a > 1]
    shared = [i for i in range(len(ordered)) if depths[i]]
    place = {i: position for position, i in enumerate(shared)}
    return Sharing(
        tuple(SharedStretch(place[r.first], place[r.last - 1] + 1, r.depth, r.block_ids) for r in stretches),
        tuple(ordered[i] for i in shared),
        tuple(_tail(ordered[i], starts[i], block_size) for i in shared),
        tuple(ordered[i] for i in range(len(ordered)) if not depths[i]),
    )


def _common_blocks(a: SequenceSpan, b: SequenceSpan, block_size: int) -> int:
    """How many blocks from the first are the same, and wholly before the query of either."""
    limit = (min(a.context_length, b.context_length) - 1) // block_size
    ids: list[NDArray[np.int64]] = [span.block_ids[:limit].numpy() for span in (a, b)]
    differ = ids[0] != ids[1]
    return int(differ.argmax()) if differ.any() else limit


def _tail(sequence: SequenceSpan, start: int, block_size: int) -> SequenceSpan:
    return SequenceSpan(
        sequence.query_start,
        sequence.query_length,
        sequence.context_length - start * block_size,
        sequence.block_ids[start:],
    )
