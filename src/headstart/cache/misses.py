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

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from headstart.cache.keys import Namespace
from headstart.cache.tokens import TOKEN_BYTES
from headstart.config import CacheConfig

CONTEXT = 32
"""So many equal tokens in a row make a text known; tokens before the missing ones that are looked at, too."""
_PRINT = 16
_LARGEST_GHOSTS = 1 << 16
_MASK = (1 << 64) - 1
_BEGINNING = 0
"""The row that stands before every first block."""
_CACHED, _GHOST, _TAIL = range(1, 4)

_U64 = npt.NDArray[np.uint64]
_PLACE_BITS = 40
_ROUND_MASK = (1 << 62 - _PLACE_BITS) - 1


def _odd_numbers(name: str, count: int) -> _U64:
    """Multipliers: odd, of 64 bits, the same in every process."""
    stream = blake2b(name.encode()).digest()
    while len(stream) < 8 * count:
        stream += blake2b(stream[-64:]).digest()
    return np.frombuffer(stream[: 8 * count], "<u8").astype(np.uint64) | np.uint64(1)


_DOUBLING = _odd_numbers("print", 4)  # to hash 2, 4, 8, 16 tokens
_FIRST = int(_odd_numbers("first", 1)[0])
_PLACE = _odd_numbers("place", 1)  # its powers tell a prompt's blocks apart


def _values(run: bytes) -> _U64:
    """The tokens, none of which is zero: what hashes multiply."""
    values: _U64 = np.frombuffer(run, "<u4").astype(np.uint64)
    values += np.uint64(1)
    return values


def _prints(values: _U64) -> _U64:
    """A hash of each 16 tokens in a row, at every position: pairs, pairs of pairs, and so on."""
    for level, factor in enumerate(_DOUBLING):
        step = 1 << level
        values = values[:-step] * factor + values[step:]
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
    return int.from_bytes(blake2b(repr(namespace).encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks became findable.  ``run`` is their text, and up to 15 tokens before it for the prints."""

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
        self._heads = [0] * num_rows
        self._older = [_BEGINNING] * num_rows
        self._newer = [_BEGINNING] * num_rows

    def add(self, row: int, head: int) -> None:
        """The row begins so."""
        before = self._latest.get(head, _BEGINNING)
        self._latest[head] = self._newer[before] = row
        self._heads[row], self._older[row], self._newer[row] = head, before, _BEGINNING

    def remove(self, row: int) -> None:
        """The row is used no more."""
        older, newer = self._older[row], self._newer[row]
        self._newer[older] = newer
        if newer != _BEGINNING:
            self._older[newer] = older
        elif older != _BEGINNING:
            self._latest[self._heads[row]] = older
        else:
            del self._latest[self._heads[row]]

    def latest(self, head: int) -> list[int]:
        """The latest 256 rows that begin so: more are not looked at."""
        found: list[int] = []
        row = self._latest.get(head, _BEGINNING)
        while row != _BEGINNING and len(found) < self._MOST:
            found.append(row)
            row = self._older[row]
        return found


class Memory:
    """The rows: what is findable, and ``num_ghosts`` blocks and tails that were."""

    def __init__(self, config: CacheConfig) -> None:
        self.num_ghosts = min(config.num_blocks, _LARGEST_GHOSTS)
        self._size = config.block_size
        self._copies_part_of_block = config.index == "radix"
        num_rows = 1 + config.num_blocks + self.num_ghosts
        # For vectors; memory that is not touched is not taken.
        self._spaces = np.zeros(num_rows, np.uint64)
        self._states = np.zeros(num_rows, np.uint8)
        self._lengths = np.zeros(num_rows, np.int32)
        self._tokens = np.zeros((num_rows, self._size), "<i4")
        self._rounds = np.zeros(num_rows, np.int64)  # how often the row was used: dates what points to it
        self._bytes = self._tokens.view(np.uint8).reshape(-1).data
        self._factors = _odd_numbers("block", self._size)
        self._powers = _powers(config.num_blocks)
        # For one row at a time.
        self._keys = [0] * num_rows
        self._parent_keys = [0] * num_rows
        self._parents = [_BEGINNING] * num_rows
        self._children = [_BEGINNING] * num_rows  # the latest
        self._siblings = Siblings(num_rows)
        self._evicted = dict[int, tuple[float, int]]()
        self._untouched = iter(range(1, num_rows))
        self._unused: list[int] = []
        self._rows = dict[int, int]()  # by block id
        self._ghosts = OrderedDict[Any, int]()  # by key; a tail's is (its parent's, its tokens)
        self._copies = dict[int, int]()  # text id → how many findable blocks have it
        self._places = dict[int, int]()  # print → where it ends: round, row, offset
        self._may_have = np.zeros(1 << (8 * self._most_places).bit_length(), bool)  # by a print's first bits
        self._rest_bits = np.uint64(64 - (8 * self._most_places).bit_length())

    def knows(self, block_id: int) -> bool:
        """Whether the block has a row."""
        return block_id in self._rows

    def sizes(self) -> dict[str, tuple[int, int]]:
        """How large each table is, and may become: for the test that memory is bounded."""
        rows = len(self._keys)
        return {
            "rows": (len(self._rows), rows - 1 - self.num_ghosts),
            "ghosts": (len(self._ghosts), self.num_ghosts),
            "evicted": (len(self._evicted), self.num_ghosts),
            "texts": (len(self._copies), rows),
            "prints": (len(self._places), self._most_places + rows),
        }

    # -- following the cache ---------------------------------------------------------------------

    def store(self, news: Sequence[Stored]) -> None:
        """Blocks became findable; all hashing of a batch is done at once."""
        size = self._size
        values = _values(b"".join(new.run for new in news))
        spots: list[int] = []  # where in ``values`` each block begins
        prints: list[int] = []  # and each print
        ends: list[int] = []  # with the place of its last token: block in the batch * size + offset
        at = 0
        for new in news:
            length = len(new.run) // TOKEN_BYTES
            first = new.start * size
            at += length - len(new.block_ids) * size
            stop = first + len(new.block_ids) * size
            grid = range((first // _PRINT + 1) * _PRINT, stop + 1, _PRINT)
            prints += [at + end - _PRINT - first for end in grid]
            ends += [len(spots) * size + end - 1 - first for end in grid]
            spots += range(at, at + len(new.block_ids) * size, size)
            at += len(new.block_ids) * size
        blocks = values[np.array(spots)[:, None] + np.arange(size)]
        index = [new.start + number for new in news for number in range(len(new.block_ids))]
        hashes = (blocks @ self._factors * self._powers[index]).tolist()
        rows = np.array(self._take_rows(news, hashes, blocks[:, 0].tolist()))
        self._fill(rows, news, blocks)
        if prints:
            place = np.array(ends)
            row = rows[place // size]
            packed = (self._rounds[row] << _PLACE_BITS) + row * size + place % size
            names = values[np.array(prints)[:, None] + np.arange(_PRINT)] @ _PRINT_FACTORS
            names += self._spaces[row]
            self._may_have[names >> self._rest_bits] = True
            self._places.update(zip(names.tolist(), packed.tolist(), strict=True))
            if len(self._places) > self._most_places:
                self._forget_places()

    def _take_rows(self, news: Sequence[Stored], hashes: list[int], firsts: list[int]) -> list[int]:
        """A row for each block, linked to the one before; ``firsts`` are their first tokens."""
        taken: list[int] = []
        for new in news:
            parent = _BEGINNING if new.after is None else self._rows[new.after]
            key = new.space if new.after is None else self._keys[parent]
            for block_id in new.block_ids:
                number = len(taken)
                parent_key, key = key, (key + hashes[number]) & _MASK
                if (ghost := self._ghosts.pop(key, None)) is not None:
                    self._unused.append(self._cleaned(ghost))
                row = self._rows[block_id] = self._take_row()
                self._keys[row], self._parent_keys[row] = key, parent_key
                self._parents[row] = parent
                self._children[parent], self._children[row] = row, _BEGINNING
                self._siblings.add(row, _head(parent_key - new.space, firsts[number]))
                text = (key - new.space) & _MASK
                self._copies[text] = self._copies.get(text, 0) + 1
                parent = row
                taken.append(row)
        return taken

    def _fill(self, rows: npt.NDArray[Any], news: Sequence[Stored], blocks: _U64) -> None:
        """What vectors look at, for the batch's rows."""
        counts = [len(new.block_ids) for new in news]
        self._spaces[rows] = np.repeat(np.array([new.space for new in news], np.uint64), counts)
        self._states[rows] = _CACHED
        self._lengths[rows] = self._size
        self._tokens[rows] = (blocks - np.uint64(1)).astype("<u4").view("<i4")
        self._rounds[rows] = (self._rounds[rows] + 1) & _ROUND_MASK

    def move(self, block_id: int, to: int) -> None:
        """The content lives on in another block."""
        self._rows[to] = self._rows.pop(block_id)

    def evict(self, block_id: int, now: float, num_taken: int) -> None:
        """The block is findable no more; its row becomes a ghost."""
        row = self._rows.pop(block_id)
        key, text = self._keys[row], self._text(row)
        self._copies[text] -= 1
        if not self._copies[text]:
            del self._copies[text]
        self._states[row] = _GHOST
        self._evicted[row] = now, num_taken
        self._haunt(key, row)

    def keep_tail(self, space: int, tail: bytes, after: int | None) -> None:
        """A request left a partly filled block, behind block ``after``."""
        if after is not None and after not in self._rows:
            return  # a repeat, which the index does not keep: what is behind it cannot be placed cheaply
        parent = _BEGINNING if after is None else self._rows[after]
        key = space if after is None else self._keys[parent]
        ghost = self._ghosts.get((key, tail))
        if ghost is not None:
            self._ghosts.move_to_end((key, tail))
            return
        row = self._take_row()
        tokens = np.frombuffer(tail, "<i4")
        self._keys[row] = self._parent_keys[row] = 0  # nothing follows it, and it follows nothing
        self._siblings.add(row, _head(key - space, int(_values(tail[:TOKEN_BYTES])[0])))
        self._spaces[row] = space
        self._states[row] = _TAIL
        self._lengths[row] = len(tokens)
        self._tokens[row, : len(tokens)] = tokens
        self._rounds[row] = (self._rounds[row] + 1) & _ROUND_MASK
        self._haunt((key, tail), row)

    def _take_row(self) -> int:
        if self._unused:
            return self._unused.pop()
        row = next(self._untouched, None)
        return self._oldest_ghost() if row is None else row

    def _haunt(self, key: Any, row: int) -> None:
        self._ghosts[key] = row
        if len(self._ghosts) > self.num_ghosts:
            self._unused.append(self._oldest_ghost())

    def _oldest_ghost(self) -> int:
        """The row of the ghost that has been one for longest, now free."""
        return self._cleaned(self._ghosts.popitem(last=False)[1])

    def _cleaned(self, ghost: int) -> int:
        self._siblings.remove(ghost)
        self._evicted.pop(ghost, None)
        return ghost

    @property
    def _most_places(self) -> int:
        prints_per_row = max(1, self._size // _PRINT)
        return 2 * prints_per_row * len(self._keys)

    def _forget_places(self) -> None:
        """Prints of rows that have been used for something else since."""
        rounds, row_of = self._rounds.tolist(), self._row_of
        self._places = {
            each: place
            for each, place in self._places.items()
            if rounds[row_of(place)] == place >> _PLACE_BITS
        }
        self._may_have[:] = False
        self._may_have[np.fromiter(self._places, np.uint64) >> self._rest_bits] = True

    def _row_of(self, place: int) -> int:
        return (place & (1 << _PLACE_BITS) - 1) // self._size

    # -- explaining ------------------------------------------------------------------------------

    def explain(self, prompt: Prompt) -> Findings:
        """What is known of a prompt's missing tokens.

        How long it takes depends on how many those are, and on what the prompt's own namespace holds; not on
        what others do, as far as Python allows.
        """
        size = self._size
        values = _values(prompt.run)
        base = prompt.num_tokens - len(values)  # the position of the run's first token
        text = 0 if prompt.after is None else self._text(self._rows[prompt.after])
        count = prompt.num_tokens // size - prompt.known
        first = prompt.known * size - base
        blocks = values[first : first + count * size].reshape(count, size)
        if prompt.known + count > len(self._powers):  # longer than the pool, which it will not fit
            self._powers = _powers(prompt.known + count)
        hashes = blocks @ self._factors * self._powers[prompt.known : prompt.known + count]
        sums = np.cumsum(hashes, dtype=np.uint64) + np.uint64(text)
        texts = [text, *sums.tolist()][prompt.num_hit_blocks - prompt.known :]
        ghosts, copies, space = self._ghosts, self._copies, prompt.space
        gone = [place for place, each in enumerate(texts) if (each + space) & _MASK in ghosts and place]
        apart = [place for place, each in enumerate(texts) if each in copies and place]
        # Prefixes: of the longest that is known, all shorter ones were.  They go on inside the next block.
        last_gone, last_apart = max(gone, default=0), max(apart, default=0)
        unaligned, evicted, isolated = (
            (prompt.num_hit_blocks + place) * size
            + self._inside(texts[place], prompt, values, (prompt.num_hit_blocks + place) * size - base, kind)
            for place, kind in ((0, "unaligned"), (last_gone, "evicted"), (last_apart, "isolated"))
        )
        for place, text_id in enumerate(
            texts[1:], start=1
        ):  # a hit that would end inside an image is shorter
            end = (prompt.num_hit_blocks + place) * size
            if unaligned < end:
                break
            unaligned = end + self._inside(text_id, prompt, values, end - base, "unaligned")
        known = max(prompt.num_hit_tokens, prompt.in_flight, unaligned, evicted, isolated)
        runs = list(self._equal_runs(prompt, values, base, known))
        first_gone = None if not gone else self._evicted[ghosts[(texts[gone[0]] + space) & _MASK]]
        return Findings(unaligned, evicted, isolated, runs, first_gone)

    def _text(self, row: int) -> int:
        return (self._keys[row] - int(self._spaces[row])) & _MASK

    def _inside(self, text: int, prompt: Prompt, values: _U64, at: int, kind: str) -> int:
        """How many tokens of the block behind ``text`` rows of that kind share with the prompt's."""
        if at >= len(values):
            return 0
        rows = np.array(self._siblings.latest(_head(text, int(values[at]))), np.int64)
        states, own = self._states[rows], self._spaces[rows] == np.uint64(prompt.space)
        if kind == "isolated":
            rows = rows[(states == _CACHED) & ~own]
        elif kind == "evicted":
            rows = rows[(states >= _GHOST) & own]
        else:
            tails = (states == _TAIL) & (not self._copies_part_of_block)
            rows = rows[((states == _CACHED) | tails) & own]
        if not len(rows):
            return 0
        run = np.frombuffer(prompt.run, "<i4")[at : at + self._size]
        lengths = np.minimum(self._lengths[rows], len(run))
        differs = self._tokens[rows, : len(run)] != run
        same = np.where(differs.any(axis=1), differs.argmax(axis=1), len(run))
        return int(np.minimum(same, lengths).max())

    def _equal_runs(self, prompt: Prompt, values: _U64, base: int, known: int) -> Iterator[tuple[int, int]]:
        """Runs of the prompt beyond ``known``, as positions, that lie in 32 or more tokens of known text."""
        first = max(0, known - base - (CONTEXT - 1))
        if len(values) - first < _PRINT:
            return
        names = _prints(values[first:]) + np.uint64(prompt.space)
        candidates = np.flatnonzero(self._may_have[names >> self._rest_bits])
        done = 0  # up to where the run is dealt with
        for start, name in zip((first + candidates).tolist(), names[candidates].tolist(), strict=True):
            place = self._places.get(name)
            if place is None or start + _PRINT <= done:
                continue
            row, offset = divmod(place & (1 << _PLACE_BITS) - 1, self._size)
            if self._rounds[row] != place >> _PLACE_BITS:
                continue
            end = start + _PRINT
            begin = self._backward(prompt.run, row, offset, end, min(done, end - CONTEXT))
            if end - begin < _PRINT:
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
            parent = self._parents[row]
            if end <= max(0, enough) or self._keys[parent] != self._parent_keys[row] or parent == _BEGINNING:
                return end
            row, offset, count = parent, self._size - 1, self._size

    def _forward(self, run: bytes, row: int, offset: int, start: int) -> int:
        """Where the equal run ends that goes on at ``offset`` of the row; of branches the latest is tried."""
        while True:
            at = (row * self._size + offset) * TOKEN_BYTES
            cached = self._bytes[at : (row + 1) * self._size * TOKEN_BYTES]
            text = run[start * TOKEN_BYTES : start * TOKEN_BYTES + len(cached)]
            if cached != text:
                return start + num_common(bytes(cached), text)
            start += len(cached) // TOKEN_BYTES
            child = self._children[row]
            if child == _BEGINNING or self._parent_keys[child] != self._keys[row]:
                return start
            row, offset = child, 0


def _powers(count: int) -> _U64:
    """What the first ``count`` blocks of a prompt are multiplied with."""
    powers: _U64 = np.cumprod(np.repeat(_PLACE, count), dtype=np.uint64)
    return powers


def _head(text: int, first: int) -> int:
    """How what follows a text begins: a hash of both."""
    return (text + first * _FIRST) & _MASK


def _reversed(run: bytes) -> bytes:
    return np.frombuffer(run, "<i4")[::-1].tobytes()
