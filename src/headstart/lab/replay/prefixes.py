"""A trace's prompts as a tree of blocks: what they share, how soon it is used again, what it is worth."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headstart.cache.tokens import TOKEN_BYTES
from headstart.lab.replay.chains import symbols_of
from headstart.lab.replay.outcome import Outcome
from headstart.lab.traces.trace import Trace

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """All whole blocks of all prompts.  A node is a block together with all that comes before it.

    ``paths`` has each request's nodes, the first block's first; ``parents`` each node's own parent, -1 for
    a first block (as a parent index, which is what numpy can hold); ``first_seen`` the request that brought
    it.  A parent has a smaller number than its children.  ``num_usable`` is how many of a request's blocks
    can be hits at all: the last token, and the block it is in, must be computed.
    """

    block_size: int
    paths: list[array[int]]
    parents: Ints
    first_seen: Ints
    num_usable: Ints

    @classmethod
    def of(cls, trace: Trace, block_size: int) -> PrefixTree:
        """Of blocks of so many tokens.  Raises ``ConfigError`` if a hash-id trace has no such blocks."""
        block_symbols = symbols_of(block_size, trace)
        step = block_symbols * TOKEN_BYTES
        nodes: dict[Hashable, int] = {}
        parents, first_seen, paths = array("q"), array("q"), []
        for number, request in enumerate(trace.requests):
            path = array("q")
            above: Hashable = request.namespace
            for start in range(0, request.num_symbols // block_symbols * step, step):
                key = (above, request.symbols[start : start + step])
                node = nodes.setdefault(key, len(parents))
                if node == len(parents):
                    parents.append(path[-1] if path else -1)
                    first_seen.append(number)
                path.append(node)
                above = node
            paths.append(path)
        usable = [max(0, request.num_symbols - 1) // block_symbols for request in trace.requests]
        return cls(block_size, paths, _ints(parents), _ints(first_seen), np.array(usable, np.int64))

    @property
    def num_nodes(self) -> int:
        """How many different blocks there are."""
        return len(self.parents)

    def shared_tokens(self) -> Ints:
        """For each request, how much of its beginning an earlier one had, in tokens of whole blocks."""
        shared = np.zeros(len(self.paths), np.int64)
        for number, path in enumerate(self.paths):
            known = sum(self.first_seen[node] < number for node in path[: self.num_usable[number]])
            shared[number] = known * self.block_size
        return shared

    def summed_up(self, ends: Ints) -> Ints:
        """Counts of paths that end at each node, as counts of paths that go through each."""
        through = ends.tolist()
        parents = self.parents.tolist()
        for node in range(len(through) - 1, -1, -1):
            if parents[node] >= 0:
                through[parents[node]] += through[node]
        return np.array(through, np.int64)


@dataclass(frozen=True, slots=True)
class ReuseDistances:
    """How many other blocks were used between two uses of the same one.

    ``distances`` has an entry for each look-up of a block that was used before; ``num_first_uses`` are the
    look-ups of blocks that were not.  Blocks that must be computed anyway are left out of both.
    """

    distances: Ints
    num_first_uses: int

    @classmethod
    def of(cls, tree: PrefixTree) -> ReuseDistances:
        """LRU stack distances, in O(N log N).

        A request uses its deepest block first, so that a block is never older than what continues it: the
        order in which the cache gives up blocks.  The distance is taken when the request arrives.  Then a
        block is a hit under LRU exactly if its distance is below the capacity, with requests that come one
        after the other.
        """
        lengths = np.array([len(path) for path in tree.paths], np.int64)
        if not lengths.sum():
            return cls(np.zeros(0, np.int64), 0)
        used = np.concatenate([_ints(path)[::-1] for path in tree.paths])
        starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
        now = np.arange(len(used))
        depth = np.repeat(lengths, lengths) - (now - starts)  # of the first block: 1
        order = np.argsort(used, kind="stable")
        again = used[order[1:]] == used[order[:-1]]
        before = np.full(len(used), -1, np.int64)
        before[order[1:][again]] = order[:-1][again]
        # Uses since the last one of this block, less those that were themselves repeated since then, less
        # those of this very request.
        between = now - before - 1 - _greater_before(before) - (now - starts)
        counts = depth <= np.repeat(tree.num_usable, lengths)
        return cls(between[counts & (before >= 0)], int(np.sum(counts & (before < 0))))

    @property
    def num_uses(self) -> int:
        """All look-ups."""
        return len(self.distances) + self.num_first_uses

    def share_below(self, capacity_blocks: int) -> float:
        """The share of look-ups that hit in an LRU cache of that capacity."""
        return float(np.sum(self.distances < capacity_blocks)) / self.num_uses if self.num_uses else 0.0


@dataclass(frozen=True, slots=True)
class ValuablePrefix:
    """A beginning that requests share, and what having it cached was worth.

    The prefix is ``num_tokens`` long; its last ``num_own_tokens`` are its own, what comes before belongs to
    a shorter prefix that more requests hit (the one at place ``continues`` of the list, if it is in it).
    ``num_tokens_saved`` counts the own part alone: over all prefixes they add up to all hits.
    ``num_uses`` requests begin with it, ``num_hits`` found it cached.  ``request`` is the first that had it.
    """

    num_tokens: int
    num_own_tokens: int
    num_uses: int
    num_hits: int
    num_tokens_saved: int
    request: int
    continues: int | None = None


def valuable_prefixes(tree: PrefixTree, outcome: Outcome, most: int = 20) -> list[ValuablePrefix]:
    """Those through which most hit tokens go, the most valuable first.

    ``outcome`` must have the tree's block size.  Hits within a block, which the radix index has, are
    counted up to the last whole block.
    """
    hit_ends, use_ends = np.zeros((2, tree.num_nodes), np.int64)
    for path in tree.paths:
        if path:
            use_ends[path[-1]] += 1
    for served in outcome.served:
        path = tree.paths[served.number]
        num_hit = min(served.num_hit_tokens // tree.block_size, len(path))
        if num_hit:
            hit_ends[path[num_hit - 1]] += 1
    hits, uses = tree.summed_up(hit_ends), tree.summed_up(use_ends)
    heads, ends, lengths, depths = _runs(tree.parents, hits)
    saved = lengths * hits
    chosen = [int(head) for head in np.argsort(-saved, kind="stable")[:most] if saved[head] > 0]
    places = {head: place for place, head in enumerate(chosen)}
    found = []
    for head in chosen:
        end, above = ends[head], tree.parents[head]
        found.append(
            ValuablePrefix(
                num_tokens=int(depths[end]) * tree.block_size,
                num_own_tokens=int(lengths[head]) * tree.block_size,
                num_uses=int(uses[end]),
                num_hits=int(hits[head]),
                num_tokens_saved=int(saved[head]) * tree.block_size,
                request=int(tree.first_seen[end]),
                continues=places.get(int(heads[above])) if above >= 0 else None,
            )
        )
    return found


def _runs(parents: Ints, hits: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Nodes in a row that the same requests hit, joined.

    Returns each node's head, and of the heads the last node and the length; and each node's depth.  Of a
    node's children at most one is hit as often as itself, so a run never forks.
    """
    size = len(parents)
    above, hit = parents.tolist(), hits.tolist()
    heads, ends, depths, lengths = list(range(size)), list(range(size)), [1] * size, [0] * size
    for node in range(size):
        if above[node] >= 0:
            depths[node] = depths[above[node]] + 1
            if hit[node] and hit[node] == hit[above[node]]:
                heads[node] = heads[above[node]]
        ends[heads[node]] = node
        lengths[heads[node]] += 1
    return _ints(heads), _ints(ends), _ints(lengths), _ints(depths)


def _greater_before(values: Ints) -> Ints:
    """For each value how many of those before it are greater: a merge sort that counts, in numpy."""
    size = 1 << max(0, len(values) - 1).bit_length()
    span = len(values) + 2
    work = np.full(size, span - 1, np.int64)  # what fills up comes last, so it is before nothing
    work[: len(values)] = values
    places = np.arange(size)
    counts = np.zeros(size, np.int64)
    width = 1
    while width < size:
        pairs, homes = work.reshape(-1, 2 * width), places.reshape(-1, 2 * width)
        shift = np.arange(len(pairs))[:, None] * span  # each pair in a range of its own: one search for all
        left, right = (pairs[:, :width] + shift).ravel(), (pairs[:, width:] + shift).ravel()
        ends = np.repeat(np.arange(1, len(pairs) + 1) * width, width)
        counts[homes[:, width:].ravel()] += ends - np.searchsorted(left, right, side="right")
        order = np.argsort(pairs, axis=1, kind="stable")
        work = np.take_along_axis(pairs, order, axis=1).ravel()
        places = np.take_along_axis(homes, order, axis=1).ravel()
        width *= 2
    return counts[: len(values)]


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, np.int64)
