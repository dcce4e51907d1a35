"""Why a prompt missed: what is and was cached is remembered by text, in bounded memory.

A *row* remembers one block's text: that of a findable block, or, once that is evicted, of a ghost.  Ghosts
are forgotten first in, first out.  A row's *text id* stands for all tokens up to the block's end, whatever
their namespace: the sum, modulo 2**64, of each token times a factor of its position (multilinear hashing),
so that those of a whole prompt take a handful of vector operations.  Its *key* is the text id plus the
namespace's hash.

* evicted: the key of a missing block is a ghost's.
* isolated: the text id of a missing block is a findable block's, of another namespace.
* unaligned, and the rest of the two above: a row behind the same beginning shares the next tokens, but not
  the whole block, or not all of an image in it.
* diverged: every 16 cached tokens in a row (a *print*, on a grid of 16 positions) are found again at any
  position of a prompt, as rsync finds blocks, and followed in both directions, comparing tokens.  A run of 31
  equal tokens or more has a whole print in it, so none of 32 is overlooked; its end may be where the cached
  text branches, since only the latest branch is followed.

Ids are not verified: the wrong reason that two equal hashes of 64 bits would give hurts nobody.  Hashes
have no secret: equal histories give equal reasons in every process (law I9).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import compress, repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from headstart.cache.keys import Namespace
from headstart.cache.tokens import TOKEN_BYTES
from headstart.config import CacheConfig

CONTEXT = 32
"""So many equal tokens in a row make a text known; tokens before the missing ones that are looked at, too."""
PRINT = 16
"""Tokens that are hashed at once, to be found anywhere; cached ones on a grid of as many positions."""
_PRINT_BYTES = PRINT * TOKEN_BYTES
_LARGEST_GHOSTS = 1 << 16
_FEWEST_BITS = 16
_MASK = (1 << 64) - 1
_BEGINNING = 0
"""The row that stands before every first block."""
_CACHED, _GHOST, _TAIL = range(1, 4)
_KINDS = {
    "unaligned": ((_CACHED,), True),
    "evicted": ((_GHOST, _TAIL), True),
    "isolated": ((_CACHED,), False),
}
"""Which rows make tokens known in which way: states, and whether they are of the prompt's own namespace."""

_U64 = npt.NDArray[np.uint64]
_Rows = npt.NDArray[np.int64]
_Ghost = tuple[int, tuple[float, int] | None]
"""A row; when it was evicted, and how many blocks had been taken by then, unless it is a tail."""
_UNSIGNED, _SIGNED, _ONE = np.dtype("<u4"), np.dtype("<i4"), np.uint64(1)
_PLACE_BITS = 40
_SPOT_MASK = (1 << _PLACE_BITS) - 1
_ROUND_MASK = (1 << 62 - _PLACE_BITS) - 1


def _odd_numbers(name: str, count: int) -> _U64:
    """Multipliers: odd, of 64 bits, the same in every process."""
    stream = blake2b(name.encode()).digest()
    while len(stream) < 8 * count:
        stream += blake2b(stream[-64:]).digest()
    return np.frombuffer(stream[: 8 * count], "<u8").astype(np.uint64) | np.uint64(1)


_DOUBLING = _odd_numbers("print", 4)  # to hash 2, 4, 8, 16 tokens
_FIRST = _odd_numbers("first", 1)[0]
_PLACE = _odd_numbers("place", 1)  # its powers tell a prompt's blocks apart


def _values(run: bytes) -> _U64:
    """The tokens, none of which is zero: what hashes multiply."""
    values: _U64 = np.add(np.frombuffer(run, _UNSIGNED), _ONE, dtype=np.uint64)
    return values


def _prints(values: _U64) -> _U64:
    """A hash of each 16 tokens in a row, at every position: pairs, pairs of pairs, and so on."""
    for level, factor in enumerate(_DOUBLING):
        step = 1 << level
        pairs = values[:-step] * factor
        pairs += values[step:]
        values = pairs
    return values


def _print_factors() -> _U64:
    """What `_prints` multiplies the 16 tokens with."""
    factors = np.ones(1, np.uint64)
    for factor in _DOUBLING:
        factors = np.concatenate((factors * factor, factors))
    return factors


_PRINT_FACTORS = _print_factors()


def num_common(a: bytes, b: bytes) -> int:
    """How many leading tokens two runs share."""
    size = min(len(a), len(b)) // TOKEN_BYTES
    differs = np.frombuffer(a, "<i4", size) != np.frombuffer(b, "<i4", size)
    return int(differs.argmax()) if differs.any() else size


def space_of(namespace: Namespace) -> int:
    """A hash of 64 bits of all that tells a namespace from others."""
    return int.from_bytes(blake2b(namespace.identity, digest_size=8).digest(), "little")


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks became findable.

    ``run`` is their text, from the last position before them that 16 divides: where the first print begins.
    """

    space: int
    start: int
    run: bytes
    block_ids: Sequence[int]
    after: int | None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as it was admitted: what is to be explained.

    ``run`` is its text from block ``known`` on, and up to 32 tokens before that; ``after`` is the block
    before ``known``.  The hit has ``num_hit_blocks`` whole blocks, of which those from ``known`` on have no
    row.
    ``in_flight`` leading tokens are equal to those of a request that is being computed.
    """

    space: int
    run: bytes
    known: int
    after: int | None
    num_hit_blocks: int
    num_hit_tokens: int
    num_tokens: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class Findings:
    """Up to which position a prompt's prefix is known in which way; ``diverged`` are runs (start, stop)."""

    unaligned: int
    evicted: int
    isolated: int
    diverged: list[tuple[int, int]]
    evicted_at: tuple[float, int] | None  # the time, and the number of blocks taken by then


class Siblings:
    """Which rows begin alike: behind the same text, with the same token.  Linked lists, the latest first."""

    _MOST = 256

    def __init__(self, num_rows: int) -> None:
        self._latest = dict[int, int]()
        self._heads = np.zeros(num_rows, np.uint64)
        self._older = np.zeros(num_rows, np.int64)
        self._newer = np.zeros(num_rows, np.int64)
        # The same memory, for one row at a time.
        self._head_of, self._older_than, self._newer_than = (
            self._heads.data,
            self._older.data,
            self._newer.data,
        )

    def add(self, rows: _Rows, heads: _U64) -> None:
        """The rows begin so."""
        latest = self._latest
        before: list[int] = []
        for row, head in zip(rows.tolist(), heads.tolist(), strict=True):
            before.append(latest.get(head, _BEGINNING))
            latest[head] = row
        self._heads[rows] = heads
        self._older[rows] = self._newer[rows] = _BEGINNING
        if any(before):  # also rows of the same batch
            self._older[rows] = before
            self._newer[before] = rows

    def add_one(self, row: int, head: int) -> None:
        """The same for a single row, without a vector."""
        before = self._latest.get(head, _BEGINNING)
        self._latest[head] = self._newer_than[before] = row
        self._head_of[row], self._older_than[row], self._newer_than[row] = head, before, _BEGINNING

    def remove(self, rows: Sequence[int]) -> None:
        """The rows are used no more."""
        older_than, newer_than, head_of, latest = (
            self._older_than,
            self._newer_than,
            self._head_of,
            self._latest,
        )
        for row in rows:
            older, newer = older_than[row], newer_than[row]
            if newer != _BEGINNING:
                older_than[newer] = older
            elif older != _BEGINNING:
                latest[head_of[row]] = older
            else:
                del latest[head_of[row]]
            if older != _BEGINNING:
                newer_than[older] = newer

    def latest(self, head: int) -> list[int]:
        """The latest 256 rows that begin so: more are not looked at."""
        found: list[int] = []
        row = self._latest.get(head, _BEGINNING)
        while row != _BEGINNING and len(found) < self._MOST:
            found.append(row)
            row = self._older_than[row]
        return found


class Memory:
    """The rows: what is findable, and ``num_ghosts`` blocks and tails that were."""

    def __init__(self, config: CacheConfig) -> None:
        self.num_ghosts = min(config.num_blocks, _LARGEST_GHOSTS)
        self._size = config.block_size
        self._copies_part_of_block = config.index == "radix"
        num_rows = 1 + config.num_blocks + self.num_ghosts
        # Memory that is not touched is not taken.
        self._spaces = np.zeros(num_rows, np.uint64)
        self._states = np.zeros(num_rows, np.uint8)
        self._lengths = np.zeros(num_rows, np.int32)
        self._tokens = np.zeros((num_rows, self._size), "<i4")
        self._rounds = np.zeros(num_rows, np.int64)  # how often the row was used: dates what points to it
        self._keys = np.zeros(num_rows, np.uint64)
        self._parent_keys = np.zeros(num_rows, np.uint64)
        self._parents = np.zeros(num_rows, np.int64)
        self._children = np.zeros(num_rows, np.int64)  # the latest
        self._rows = np.zeros(config.num_blocks, np.int64)  # by block id; `_BEGINNING` where there is none
        # The same memory, for one row at a time.
        self._bytes = self._tokens.view(np.uint8).reshape(-1).data
        self._round_of, self._row_of_block = self._rounds.data, self._rows.data
        self._state_of, self._space_of = self._states.data, self._spaces.data
        self._key_of, self._parent_key_of = self._keys.data, self._parent_keys.data
        self._parent_of, self._child_of = self._parents.data, self._children.data
        self._factors = _odd_numbers("block", self._size)
        self._powers = _powers(config.num_blocks)
        self._siblings = Siblings(num_rows)  # of all namespaces
        self._kin = Siblings(num_rows)  # of one: how many are compared must not depend on what others hold
        self._unused = np.arange(num_rows - 1, 0, -1)  # a stack: the first ``_num_unused``
        self._unused_at = self._unused.data
        self._num_unused = num_rows - 1
        self._ghosts = OrderedDict[Any, _Ghost]()  # by key; a tail's is (its parent's, its tokens)
        self._copies = Counter[int]()  # text id → how many findable blocks have it
        self._places = dict[int, int]()  # print → where it ends: round, row, offset
        bits = max(_FEWEST_BITS, (8 * self._most_places).bit_length())
        self._may_have = np.zeros(1 << bits, bool)  # by a print's first bits
        self._rest_bits = np.uint64(64 - bits)

    def knows(self, block_id: int) -> bool:
        """Whether the block has a row."""
        return self._row_of_block[block_id] != _BEGINNING

    def sizes(self) -> dict[str, tuple[int, int]]:
        """How large each table is, and may become: for the test that memory is bounded."""
        rows = len(self._keys)
        return {
            "rows": (int(np.count_nonzero(self._rows)), len(self._rows)),
            "unused rows": (self._num_unused, rows - 1),
            "ghosts": (len(self._ghosts), self.num_ghosts),
            "texts": (len(self._copies), rows),
            "prints": (len(self._places), self._most_places + rows),
        }

    # -- following the cache ---------------------------------------------------------------------

    def store(self, news: Sequence[Stored]) -> None:
        """Blocks became findable; all hashing of a batch is done at once."""
        size = self._size
        texts = b"".join([new.run[-len(new.block_ids) * size * TOKEN_BYTES :] for new in news])
        values = _values(texts)
        blocks = values.reshape(-1, size)
        powers = [self._powers[new.start : new.start + len(new.block_ids)] for new in news]
        hashes = blocks @ self._factors
        hashes *= np.concatenate(powers)
        spaces = np.array([new.space for new in news], np.uint64).repeat([len(new.block_ids) for new in news])
        rows, keys, parent_keys = self._link(news, hashes)
        self._spaces[rows] = spaces
        self._states[rows] = _CACHED
        self._lengths[rows] = size
        self._tokens[rows] = np.frombuffer(texts, _SIGNED).reshape(-1, size)
        self._rounds[rows] = rounds = (self._rounds[rows] + 1) & _ROUND_MASK
        heads = parent_keys + blocks[:, 0] * _FIRST
        self._kin.add(rows, heads)
        self._siblings.add(rows, heads - spaces)
        self._copies.update((keys - spaces).tolist())
        dated = (rounds << _PLACE_BITS) + rows * size  # the places of the blocks' first tokens
        if size == PRINT:  # each block is a print
            names, places = values.reshape(-1, PRINT) @ _PRINT_FACTORS + spaces, dated + (PRINT - 1)
        else:
            ends = _print_ends(news, size)
            whole = _values(
                b"".join([new.run[: len(new.run) // _PRINT_BYTES * _PRINT_BYTES] for new in news])
            )
            number = ends // size
            names = whole.reshape(-1, PRINT) @ _PRINT_FACTORS + spaces[number]
            places = dated[number] + ends % size
        self._may_have[(names >> self._rest_bits).view(np.int64)] = True
        self._places.update(zip(names.tolist(), places.tolist(), strict=True))
        if len(self._places) > self._most_places:
            self._forget_places()

    def _take_rows(self, keys: list[int]) -> _Rows:
        """A row for each, its ghost's if it has one; there are as many unused as blocks not findable."""
        ghosts = self._ghosts
        if any(map(ghosts.__contains__, keys)):
            return np.array([self._take_row(ghosts.pop(key, None)) for key in keys])
        bottom = self._num_unused - len(keys)
        rows = self._unused[bottom : self._num_unused][::-1].copy()
        self._num_unused = bottom
        return rows

    def _take_row(self, ghost: _Ghost | None = None) -> int:
        if ghost is not None:
            self._free([ghost[0]])
        elif not self._num_unused:
            self._forget_oldest_ghosts(1)
        self._num_unused -= 1
        return self._unused_at[self._num_unused]

    def _free(self, rows: Sequence[int]) -> None:
        """They are no ghosts any more; they may be used again."""
        self._siblings.remove(rows)
        self._kin.remove(rows)
        for row in rows:
            self._unused_at[self._num_unused] = row
            self._num_unused += 1

    def _link(self, news: Sequence[Stored], hashes: _U64) -> tuple[_Rows, _U64, _U64]:
        """The blocks' rows, each linked to the one before; their keys, and those of the ones before."""
        chosen: list[_Rows] = []
        chains: list[_U64] = []  # of each run of blocks the keys, behind that of the block before it
        above: list[_Rows] = []
        first = 0
        for new in news:
            count = len(new.block_ids)
            parent = _BEGINNING if new.after is None else self._row_of_block[new.after]
            chain = np.empty(count + 1, np.uint64)
            chain[0] = new.space if new.after is None else self._key_of[parent]
            chain[1:] = hashes[first : first + count]
            np.add.accumulate(chain, out=chain)
            rows = self._take_rows(chain[1:].tolist())
            self._keys[rows] = chain[1:]  # what follows may be behind it
            self._rows[np.array(new.block_ids)] = rows
            parents = np.empty(count, np.int64)
            parents[0] = parent
            parents[1:] = rows[:-1]
            chosen.append(rows)
            chains.append(chain)
            above.append(parents)
            first += count
        rows, parents = np.concatenate(chosen), np.concatenate(above)
        parent_keys = np.concatenate([chain[:-1] for chain in chains])
        self._parents[rows], self._parent_keys[rows] = parents, parent_keys
        self._children[rows] = _BEGINNING
        self._children[parents] = rows  # of several, the last
        return rows, self._keys[rows], parent_keys

    def move(self, block_id: int, to: int) -> None:
        """The content lives on in another block."""
        self._row_of_block[to] = self._row_of_block[block_id]
        self._row_of_block[block_id] = _BEGINNING

    def evict(self, block_ids: Sequence[int], now: float, num_taken: int) -> None:
        """The blocks are findable no more; their rows become ghosts."""
        ids = list(block_ids)
        rows = self._rows[ids]
        self._rows[ids] = _BEGINNING
        self._states[rows] = _GHOST
        keys = self._keys[rows]
        copies = self._copies
        for text in (keys - self._spaces[rows]).tolist():
            if others := copies.pop(text) - 1:
                copies[text] = others
        self._haunt(keys.tolist(), rows.tolist(), (now, num_taken))

    def keep_tail(self, space: int, tail: bytes, after: int | None) -> None:
        """A request left a partly filled block, behind block ``after``."""
        parent = _BEGINNING if after is None else self._row_of_block[after]
        if after is not None and parent == _BEGINNING:
            return  # a repeat, which the index does not keep: what is behind it cannot be placed cheaply
        key = space if after is None else self._key_of[parent]
        if (key, tail) in self._ghosts:
            self._ghosts.move_to_end((key, tail))
            return
        row = self._take_row()
        first = int.from_bytes(tail[:TOKEN_BYTES], "little") + 1
        self._siblings.add_one(row, _head(key - space, first))
        self._kin.add_one(row, _head(key, first))
        self._key_of[row] = self._parent_key_of[row] = 0  # nothing follows it, and it follows nothing
        self._space_of[row] = space
        self._state_of[row] = _TAIL
        self._lengths[row] = len(tail) // TOKEN_BYTES
        at = row * self._size * TOKEN_BYTES
        self._bytes[at : at + len(tail)] = tail
        self._round_of[row] = (self._round_of[row] + 1) & _ROUND_MASK
        self._haunt([(key, tail)], [row], None)

    def _haunt(self, keys: Sequence[Any], rows: Sequence[int], when: tuple[float, int] | None) -> None:
        ghosts, new = self._ghosts, dict(zip(keys, zip(rows, repeat(when)), strict=False))
        if len(new) == len(keys) and ghosts.keys().isdisjoint(new):
            ghosts.update(new)
        else:  # two hashes are equal: of such ghosts the latest is kept, and no row is lost
            for key, row in zip(keys, rows, strict=True):
                if key in ghosts:
                    self._free([ghosts.pop(key)[0]])
                ghosts[key] = row, when
        self._forget_oldest_ghosts(len(ghosts) - self.num_ghosts)

    def _forget_oldest_ghosts(self, count: int) -> None:
        """Those that have been ghosts for longest."""
        oldest = self._ghosts.popitem
        self._free([oldest(last=False)[1][0] for _ in range(count)])

    @property
    def _most_places(self) -> int:
        prints_per_row = max(1, self._size // PRINT)
        return 2 * prints_per_row * len(self._keys)

    def _forget_places(self) -> None:
        """Prints of rows that have been used for something else since."""
        places = np.fromiter(self._places.values(), np.int64, len(self._places))
        kept = self._rounds[(places & _SPOT_MASK) // self._size] == places >> _PLACE_BITS
        self._places = dict(compress(self._places.items(), kept.tolist()))
        self._may_have[:] = False
        self._may_have[np.fromiter(self._places, np.uint64, len(self._places)) >> self._rest_bits] = True

    # -- explaining ------------------------------------------------------------------------------

    def explain(self, prompt: Prompt) -> Findings:
        """What is known of a prompt's missing tokens.

        How long it takes depends on how many those are, and on what the prompt's own namespace holds; not on
        what others do, as far as Python allows.
        """
        size = self._size
        values = _values(prompt.run)
        base = prompt.num_tokens - len(values)  # the position of the run's first token
        count = prompt.num_tokens // size - prompt.known
        first = prompt.known * size - base
        blocks = values[first : first + count * size].reshape(count, size)
        if prompt.known + count > len(self._powers):  # longer than the pool, which it will not fit
            self._powers = _powers(prompt.known + count)
        sums = np.empty(count + 1, np.uint64)
        sums[0] = 0 if prompt.after is None else self._text(self._row_of_block[prompt.after])
        np.multiply(blocks @ self._factors, self._powers[prompt.known : prompt.known + count], out=sums[1:])
        np.add.accumulate(sums, out=sums)
        texts = sums[prompt.num_hit_blocks - prompt.known :]  # up to the hit's end, and each block's after it
        known_texts = texts.tolist()
        keys = (texts + np.uint64(prompt.space)).tolist()
        ghosts = self._ghosts
        gone = _places_in(keys, ghosts)
        apart = _places_in(known_texts, self._copies)
        # Prefixes: of the longest that is known, all shorter ones were.  They go on inside the next block.
        last_gone, last_apart = max(gone, default=0), max(apart, default=0)
        unaligned, evicted, isolated = (
            (prompt.num_hit_blocks + place) * size
            + self._inside(
                known_texts[place], prompt, values, (prompt.num_hit_blocks + place) * size - base, kind
            )
            for place, kind in ((0, "unaligned"), (last_gone, "evicted"), (last_apart, "isolated"))
        )
        for place in range(1, len(known_texts)):  # a hit that would end inside an image is shorter
            end = (prompt.num_hit_blocks + place) * size
            if unaligned < end:
                break
            unaligned = end + self._inside(known_texts[place], prompt, values, end - base, "unaligned")
        # From where the client's own view ends: what is isolated is not to be seen in it.
        known = max(prompt.num_hit_tokens, prompt.in_flight, unaligned, evicted)
        runs = list(self._equal_runs(prompt, values, base, known))
        first_gone = ghosts[keys[gone[0]]][1] if gone else None
        return Findings(unaligned, evicted, isolated, runs, first_gone)

    def _text(self, row: int) -> int:
        return (self._key_of[row] - self._space_of[row]) & _MASK

    def _inside(self, text: int, prompt: Prompt, values: _U64, at: int, kind: str) -> int:
        """How many tokens of the block behind ``text`` rows of that kind share with the prompt's."""
        if at >= len(values):
            return 0
        states, is_own = _KINDS[kind]
        if kind == "unaligned" and not self._copies_part_of_block:
            states = (_CACHED, _TAIL)
        state_of, space_of, space = self._state_of, self._space_of, prompt.space
        first = int(values[at])
        alike = (
            self._kin.latest(_head(text + space, first))
            if is_own
            else self._siblings.latest(_head(text, first))
        )
        rows = [row for row in alike if state_of[row] in states and (space_of[row] == space) is is_own]
        if not rows:
            return 0
        run = np.frombuffer(prompt.run, _SIGNED)[at : at + self._size]
        lengths = np.minimum(self._lengths[rows], len(run))
        differs = self._tokens[rows, : len(run)] != run
        same = np.where(differs.any(axis=1), differs.argmax(axis=1), len(run))
        return int(np.minimum(same, lengths).max())

    def _equal_runs(self, prompt: Prompt, values: _U64, base: int, known: int) -> Iterator[tuple[int, int]]:
        """Runs of the prompt beyond ``known``, as positions, that lie in 32 or more tokens of known text."""
        first = max(0, known - base - (CONTEXT - 1))
        if len(values) - first < PRINT:
            return
        names = _prints(values[first:]) + np.uint64(prompt.space)
        candidates = self._may_have[(names >> self._rest_bits).view(np.int64)].nonzero()[0]
        places, round_of = self._places, self._round_of
        done = 0  # up to where the run is dealt with
        for start, name in zip((first + candidates).tolist(), names[candidates].tolist(), strict=True):
            if start + PRINT <= done or (place := places.get(name)) is None:
                continue
            row, offset = divmod(place & _SPOT_MASK, self._size)
            if round_of[row] != place >> _PLACE_BITS:
                continue
            end = start + PRINT
            begin = self._backward(prompt.run, row, offset, end, min(done, end - CONTEXT))
            if end - begin < PRINT:
                continue  # two hashes are equal, the tokens are not
            end = self._forward(prompt.run, row, offset + 1, end)
            if end - begin >= CONTEXT:
                if base + end > known:
                    yield max(known, base + max(begin, done)), base + end
                done = end

    def _backward(self, run: bytes, row: int, offset: int, end: int, enough: int) -> int:
        """Where the equal run begins that ends at ``end``, at ``offset`` of the row; or before ``enough``."""
        count = offset + 1
        while True:
            count = min(count, end)
            at = (row * self._size + offset + 1 - count) * TOKEN_BYTES
            cached = self._bytes[at : at + count * TOKEN_BYTES]
            text = run[(end - count) * TOKEN_BYTES : end * TOKEN_BYTES]
            if cached != text:
                return end - num_common(_reversed(bytes(cached)), _reversed(text))
            end -= count
            parent = self._parent_of[row]
            if (
                end <= max(0, enough)
                or self._key_of[parent] != self._parent_key_of[row]
                or parent == _BEGINNING
            ):
                return end
            row, offset, count = parent, self._size - 1, self._size

    def _forward(self, run: bytes, row: int, offset: int, start: int) -> int:
        """Where the equal run ends that goes on at ``offset`` of the row; of branches the latest is tried."""
        row_bytes, cached_bytes = self._size * TOKEN_BYTES, self._bytes
        child_of, key_of, parent_key_of = self._child_of, self._key_of, self._parent_key_of
        at, skipped = start * TOKEN_BYTES, offset * TOKEN_BYTES
        while True:
            cached = cached_bytes[row * row_bytes + skipped : (row + 1) * row_bytes]
            text = run[at : at + row_bytes - skipped]
            if cached != text:
                return at // TOKEN_BYTES + num_common(bytes(cached), text)
            at += row_bytes - skipped
            child = child_of[row]
            if child == _BEGINNING or parent_key_of[child] != key_of[row]:
                return at // TOKEN_BYTES
            row, skipped = child, 0


def _places_in(ids: Sequence[int], known: Container[int]) -> list[int]:
    """Where among the ids, behind the first, known ones are."""
    return list(compress(range(1, len(ids)), map(known.__contains__, ids[1:])))


def _print_ends(news: Sequence[Stored], size: int) -> _Rows:
    """Where each print's last token is: block in the batch * size + offset."""
    ends: list[_Rows] = []
    first = 0
    for new in news:
        at = first + PRINT - 1 - new.start * size % PRINT
        ends.append(np.arange(at, at + len(new.run) // _PRINT_BYTES * PRINT, PRINT))
        first += len(new.block_ids) * size
    return np.concatenate(ends)


def _powers(count: int) -> _U64:
    """What the first ``count`` blocks of a prompt are multiplied with."""
    powers: _U64 = np.cumprod(np.repeat(_PLACE, count), dtype=np.uint64)
    return powers


def _head(text: int, first: int) -> int:
    """How what follows a text begins: a hash of both."""
    return (text + first * int(_FIRST)) & _MASK


def _reversed(run: bytes) -> bytes:
    return np.frombuffer(run, "<i4")[::-1].tobytes()
