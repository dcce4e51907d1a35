"""What came of a replay: the settings, each request's hit and misses, and the rates that are made of them.

The rates have the definitions of docs/lab.md, which every report repeats:

* token rate: hit tokens of all prompt tokens, as vLLM counts;
* full-hit rate: the share of requests whose whole prefix was cached, all but what must be computed (the last
  token, or the last block): it is what predicts first-token times;
* any-hit rate: the share of requests with any hit at all, which flatters;
* block rate: hit blocks of all whole blocks.

The last token never counts as a hit.  Warm-up requests are replayed and not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headstart.cache.reasons import MissReason

OPTIMAL = "optimal"
"""The policy that knows the future: it evicts what will be used again last, or never."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One point of a sweep.  ``block_size`` is in tokens; capacity is that of each replica."""

    policy: str = "lru"
    prefix_index: str = "radix"
    block_size: int = 16
    capacity_blocks: int | None = None
    """None: unbounded."""
    max_num_seqs: int | None = None
    """None: one request after the other."""
    replicas: int = 1
    routing: str = "prefix"


class Served(NamedTuple):
    """One request's part: ``number`` is its place in the trace; counts are tokens."""

    number: int
    num_prompt_tokens: int
    num_hit_tokens: int
    num_reachable_tokens: int
    """The most that could have been a hit: all but what must be computed."""
    misses: dict[MissReason, int]
    replica: int = 0
    first_token_s: float | None = None
    """From arrival to the first token, where time is simulated."""

    @property
    def is_full_hit(self) -> bool:
        """Whether all was cached that can be."""
        return self.num_reachable_tokens > 0 and self.num_hit_tokens >= self.num_reachable_tokens


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of some requests, each from 0 to 1; 0 where there is nothing to divide by."""

    num_requests: int
    num_prompt_tokens: int
    num_hit_tokens: int
    token_hit_rate: float
    request_full_hit_rate: float
    request_any_hit_rate: float
    block_hit_rate: float

    @classmethod
    def of(cls, served: Sequence[Served], block_size: int) -> Rates:
        """Of these requests."""
        tokens = sum(one.num_prompt_tokens for one in served)
        hits = sum(one.num_hit_tokens for one in served)
        blocks = sum(one.num_prompt_tokens // block_size for one in served)
        hit_blocks = sum(one.num_hit_tokens // block_size for one in served)
        full = sum(one.is_full_hit for one in served)
        some = sum(one.num_hit_tokens > 0 for one in served)
        return cls(
            num_requests=len(served),
            num_prompt_tokens=tokens,
            num_hit_tokens=hits,
            token_hit_rate=hits / tokens if tokens else 0.0,
            request_full_hit_rate=full / len(served) if served else 0.0,
            request_any_hit_rate=some / len(served) if served else 0.0,
            block_hit_rate=hit_blocks / blocks if blocks else 0.0,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """One point's result.  ``served`` are the requests that count, in order; warm-up is left out.

    ``refused`` counts those of them that never fit, which hit nothing.  Evicted blocks and preemptions are
    those of the whole replay, warm-up included.
    """

    setting: Setting
    served: list[Served]
    num_evicted_blocks: int = 0
    num_preemptions: int = 0
    refused: int = 0
    seconds: float = 0.0
    """What the replay took."""

    @property
    def rates(self) -> Rates:
        """See `Rates`."""
        return Rates.of(self.served, self.setting.block_size)

    @property
    def misses(self) -> dict[MissReason, int]:
        """Missed tokens by reason, where there are any, in the order of the reasons."""
        return sum_misses(one.misses for one in self.served)

    @property
    def mean_first_token_s(self) -> float | None:
        """Simulated seconds to the first token, over the requests that had one; None where time is not."""
        times = [one.first_token_s for one in self.served if one.first_token_s is not None]
        return sum(times) / len(times) if times else None


@dataclass(frozen=True, slots=True)
class Bounds:
    """What no policy can beat, in whole blocks of ``block_size`` tokens.

    ``num_blocks`` (N) are all of the prompts' blocks, ``num_unique_blocks`` (U) the different ones;
    ``unbounded`` are the rates of a cache that never evicts.
    """

    block_size: int
    num_blocks: int
    num_unique_blocks: int
    unbounded: Rates

    @property
    def reuse_bound(self) -> float:
        """``(N - U) / N``: each block must be computed once."""
        return (self.num_blocks - self.num_unique_blocks) / self.num_blocks if self.num_blocks else 0.0

    def pressure(self, capacity_blocks: int) -> float:
        """``U / C``: below 1 nothing need ever be evicted."""
        return self.num_unique_blocks / capacity_blocks


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """All that a report shows.  ``definitions`` and ``notes`` are sentences for people."""

    trace_name: str
    trace_format: str
    tokens_per_symbol: int
    num_requests: int
    num_warmup: int
    bounds: dict[int, Bounds]
    """By block size."""
    outcomes: list[Outcome]
    definitions: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    num_skipped: int = 0
    """Lines of the trace that could not be read."""


def sum_misses(misses: Iterable[dict[MissReason, int]]) -> dict[MissReason, int]:
    """Added up, in the order of the reasons, without those that are zero."""
    total = dict.fromkeys(MissReason, 0)
    for one in misses:
        for reason, num_tokens in one.items():
            total[reason] += num_tokens
    return {reason: num_tokens for reason, num_tokens in total.items() if num_tokens}
