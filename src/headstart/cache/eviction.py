"""Eviction policies: what is remembered of the use of cached content, and the score that comes of it.

What goes first is decided in two stages.  The *rank* comes first and is the same under every policy: pinned
content stays longest, then a higher retention priority, then (on request) prompts longer than answers.
Within a rank the policy's *score* decides, the lowest goes; equal scores go in the order in which they fell
idle.  Whatever they say, what is held never goes and nothing goes before what continues it: that is the
business of `victims.py`.

`lru` needs no scores: its order is a queue (`victims.LruOrder`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import log2
from typing import Any, Generic, NamedTuple, TypeVar

from headstart.config import CacheConfig

Rank = tuple[bool, bool, int, bool]
"""Pinned, not expired, priority, prompt: what sorts lower goes first."""


class Claim(NamedTuple):
    """What a request wants of a block or node that it uses: how long to keep it, and what it is to it."""

    depth: int
    """Blocks from the prompt's beginning to the end of it, itself included."""
    priority: int = 0
    prompt: bool = True


@dataclass(slots=True, eq=False)
class Use:
    """What is remembered of the use of one content: a block's (`hash` index) or a node's (radix index).

    ``created`` and ``place`` count creations and falling idle; ``item`` is the block or node that fell idle;
    ``score`` is the policy's, and so is ``expired``.
    """

    depth: int
    created: int = 0
    count: int = 0
    priority: int = 0
    prompt: bool = True
    pins: int = 0
    expired: bool = False
    idle: bool = False
    place: int = 0
    score: float = 0.0
    item: Any = None

    @property
    def rank(self) -> Rank:
        """What comes before the policy's score."""
        if self.expired and not self.pins:
            return False, False, 0, False
        return self.pins > 0, not self.expired, self.priority, self.prompt

    @property
    def key(self) -> tuple[object, ...]:
        """The lowest is the next victim; no two idle ones have the same."""
        return *self.rank, self.score, self.place

    def would_change(self, claim: Claim) -> bool:
        """Whether `claim` would keep it longer."""
        return claim.priority > self.priority or (claim.prompt and not self.prompt)

    def claim(self, claim: Claim) -> None:
        """Whoever wants it kept longest decides."""
        self.priority = max(self.priority, claim.priority)
        self.prompt = self.prompt or claim.prompt

    def upper_part(self, num_below: int) -> Use:
        """The same for the part that is cut off above ``num_below`` blocks."""
        return Use(
            self.depth - num_below,
            self.created,
            self.count,
            self.priority,
            self.prompt,
            self.pins,
            self.expired,
            score=self.score,
        )

    def state(self) -> tuple[object, ...]:
        """All that decides."""
        return self.depth, self.created, self.count, self.pins, self.idle, *self.key


Entry = TypeVar("Entry")


class LazyHeap(Generic[Entry]):
    """The least of what may change or go at any time, in O(log n) amortised.

    An entry that is outdated stays until it comes up, or until such entries are the greater part.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[Any, ...], Entry]] = []
        self._keys: dict[Entry, tuple[Any, ...]] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, entry: Entry) -> bool:
        return entry in self._keys

    def push(self, entry: Entry, key: tuple[Any, ...]) -> None:
        """Put in, or give it another key.  Keys must differ."""
        self._keys[entry] = key
        heappush(self._heap, (key, entry))
        if len(self._heap) > 2 * len(self._keys) + 64:
            self._heap = self.entries()

    def key(self, entry: Entry) -> tuple[Any, ...]:
        """The key of one that is in."""
        return self._keys[entry]

    def discard(self, entry: Entry) -> None:
        """Take out, if it is in."""
        self._keys.pop(entry, None)

    def first(self) -> Entry | None:
        """The one with the lowest key, left where it is; None when empty."""
        heap = self._heap
        while heap:
            key, entry = heap[0]
            if self._keys.get(entry) is key:
                return entry
            heappop(heap)
        return None

    def entries(self) -> list[tuple[tuple[Any, ...], Entry]]:
        """A new heap of what is in."""
        heap = [(key, entry) for entry, key in self._keys.items()]
        heapify(heap)
        return heap


class EvictionPolicy:
    """Gives scores.  It is told of time, of what is used, and of what falls idle or stops being so.

    A score may change while content is in use; of idle content it does only for what `idle` and
    `advance` return.
    """

    now = 0.0
    """The step's time, in seconds."""

    def used(self, use: Use) -> None:
        """A request uses it, the first (``count`` 1) or a further one."""

    def idle(self, use: Use) -> Iterable[Use]:  # noqa: ARG002  # some policies need it
        """Nothing holds it any more.  Returns the idle ones whose scores have changed by that."""
        return ()

    def busy(self, use: Use) -> None:
        """It is idle no more: held again, or gone."""

    def split(self, use: Use, upper: Use) -> None:
        """The idle ``upper`` was a part of ``use``."""

    def evicted(self, use: Use, count: int) -> None:
        """``count`` blocks of it were given up for their slots."""

    def advance(self, now: float) -> Iterable[Use]:
        """Time has come to ``now``.  Returns the idle ones whose rank has changed by that."""
        self.now = now
        return ()

    def state(self) -> object:
        """What decides beside the uses, as plain values."""
        return None


class Fifo(EvictionPolicy):
    """First come, first go, however often it was used since."""

    def idle(self, use: Use) -> Iterable[Use]:
        """Nothing else changes."""
        use.score = use.created
        return ()


class Ageing(EvictionPolicy):
    """For scores that say nothing of time: each is raised by that of the last victim.

    So what was worth much once is overtaken by what is used now (Cao and Irani's GreedyDual, 1997).
    """

    def __init__(self) -> None:
        self.floor = 0.0

    def evicted(self, use: Use, count: int) -> None:  # noqa: ARG002  # it has one score
        """Whoever is used from now on stands above what has gone."""
        self.floor = max(self.floor, use.score)

    def state(self) -> object:
        """The floor."""
        return self.floor


class Lfu(Ageing):
    """Least frequently used, with dynamic ageing (LFU-DA: Arlitt and others, 1999) unless that is off."""

    def __init__(self, *, ageing: bool) -> None:
        super().__init__()
        self._ageing = ageing

    def used(self, use: Use) -> None:
        """One more."""
        use.score = use.count + (self.floor if self._ageing else 0.0)


class Cost(Ageing):
    """What is cheap to compute again goes first.

    A block costs ``1 + depth / double``: its tokens attend to all before them, and ``double`` blocks deep
    that is as much work as all the rest.
    """

    def __init__(self, double: float) -> None:
        super().__init__()
        self._double = double

    def used(self, use: Use) -> None:
        """Its cost, above what has gone."""
        use.score = self.floor + 1.0 + use.depth / self._double


class Lrfu(EvictionPolicy):
    """Recency and frequency: every use weighs 1 and loses half of that every ``half_life`` seconds.

    Lee and others, 2001.  The score is the binary logarithm of the sum, as it would be at time 0: all sums
    fade alike, so their order does not, and nothing needs to be recomputed as time passes.
    """

    def __init__(self, half_life: float) -> None:
        self._half_life = half_life

    def used(self, use: Use) -> None:
        """Add a use of weight 1 to what is left of the others."""
        here = self.now / self._half_life
        if use.count == 1:
            use.score = here
            return
        high, low = max(use.score, here), min(use.score, here)
        # Rounded, because C libraries differ in the last digit, and a log is replayed on other machines.
        use.score = round(high + log2(1.0 + 2.0 ** (low - high)), 9)


class Slru(EvictionPolicy):
    """Two queues: what was used once goes before what was used again, which is *protected*.

    Karedla and others, 1994.  At most ``most`` idle blocks are protected; beyond that, those idle for longest
    queue up behind what was used once.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._protected: dict[Use, None] = {}  # longest idle first
        self._num_blocks = 0

    def idle(self, use: Use) -> Iterable[Use]:
        """Protect it, in place of others if need be."""
        use.score = float(use.count > 1)
        demoted: list[Use] = []
        if use.count > 1:
            self._protected[use] = None
            self._num_blocks += use.item.num_blocks
            while self._num_blocks > self._most:
                oldest = next(iter(self._protected))
                self.busy(oldest)
                oldest.score = 0.0
                demoted.append(oldest)
        return demoted

    def busy(self, use: Use) -> None:
        """No longer among those that are counted."""
        if use in self._protected:
            del self._protected[use]
            self._num_blocks -= use.item.num_blocks

    def split(self, use: Use, upper: Use) -> None:
        """Both are what the whole was."""
        if use in self._protected:
            self._protected[upper] = None

    def evicted(self, use: Use, count: int) -> None:
        """So many fewer."""
        if use in self._protected:
            self._num_blocks -= count

    def state(self) -> object:
        """Who is protected, by place."""
        return [use.place for use in self._protected], self._num_blocks


class Ttl(EvictionPolicy):
    """What was not used for ``seconds`` goes first, whatever its priority; the rest by recency.

    One lifetime serves for all, so without priorities this is `lru`.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting: LazyHeap[Use] = LazyHeap()

    def used(self, use: Use) -> None:
        """Its time begins again."""
        use.expired = False

    def idle(self, use: Use) -> Iterable[Use]:
        """Its time runs from now."""
        self._waiting.push(use, (self.now + self._seconds, use.place))
        return ()

    def busy(self, use: Use) -> None:
        """Its time stands still."""
        self._waiting.discard(use)

    def split(self, use: Use, upper: Use) -> None:
        """Both have the time of the whole."""
        if use in self._waiting:
            self._waiting.push(upper, (self._waiting.key(use)[0], upper.place))

    def advance(self, now: float) -> Iterable[Use]:
        """Whose time is over."""
        self.now = now
        while (use := self._waiting.first()) is not None and self._waiting.key(use)[0] <= now:
            self._waiting.discard(use)
            use.expired = True
            yield use

    def state(self) -> object:
        """When whose time is over."""
        return [key for key, _ in sorted(self._waiting.entries(), key=lambda entry: entry[0])]


def make_policy(config: CacheConfig) -> EvictionPolicy | None:
    """The policy that the configuration names; None for `lru`, which is a queue."""
    match config.policy:
        case "lru":
            return None
        case "fifo":
            return Fifo()
        case "lfu":
            return Lfu(ageing=config.lfu_ageing)
        case "lrfu":
            return Lrfu(config.half_life_seconds)
        case "slru":
            return Slru(config.protected_share * config.num_blocks)
        case "ttl":
            return Ttl(config.ttl_seconds)
        case "cost":
            return Cost(config.cost_depth_tokens / config.block_size)
