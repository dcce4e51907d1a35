"""One prompt in two orders: what the order alone makes of the hit rate, on the real cache core."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import cache
from typing import Literal

from headstart.cache import CacheConfig, CacheRequest, KVCacheManager

Varies = Literal["never", "customer", "request"]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a prompt: what it is, how many tokens, and what it changes with."""

    name: str
    num_tokens: int
    varies: Varies = "never"


_CLOCK = Part("time and request id", 24, "request")
_RULES = Part("rules", 1_400)
_TOOLS = Part("tools", 2_200)
_EXAMPLES = Part("examples", 900)
_CUSTOMER = Part("customer record", 350, "customer")
_QUESTION = Part("question", 126, "request")

BAD = (_CLOCK, _CUSTOMER, _RULES, _TOOLS, _EXAMPLES, _QUESTION)
GOOD = (_RULES, _TOOLS, _EXAMPLES, _CUSTOMER, _CLOCK, _QUESTION)
"""The same parts: what never changes first, then what changes seldom, then what always does."""


def num_tokens(layout: tuple[Part, ...]) -> int:
    """Of the whole prompt."""
    return sum(part.num_tokens for part in layout)


def cacheable(layout: tuple[Part, ...]) -> float:
    """The share of the prompt before the parts at its end that are new with each request.

    That is what a client would mark for the cache.
    """
    kept = len(layout)
    while kept and layout[kept - 1].varies == "request":
        kept -= 1
    return num_tokens(layout[:kept]) / num_tokens(layout)


@cache
def hit_rate(
    layout: tuple[Part, ...], *, num_requests: int = 200, num_customers: int = 20, steps: int = 1
) -> float:
    """The token hit rate of the layout's requests, one after the other, on the real cache core.

    Customers take turns; nothing is evicted.  Hits are multiples of ``steps`` tokens: whole blocks of the
    hash index, or to the token with the radix index.
    """
    block_size = steps if steps > 1 else 16
    config = CacheConfig(
        num_blocks=num_requests * -(-num_tokens(layout) // block_size),
        block_size=block_size,
        index="hash" if steps > 1 else "radix",
        explain_misses=False,
    )
    manager = KVCacheManager(config)
    ids: dict[tuple[Part, int], int] = {}
    for number in range(num_requests):
        values: dict[Varies, int] = {"never": 0, "customer": number % num_customers, "request": number}
        prompt = array("i")
        for part in layout:
            token = ids.setdefault((part, values[part.varies]), len(ids) + 1)
            prompt.extend([token] * part.num_tokens)
        request = CacheRequest(str(number), prompt)
        manager.begin_step(float(number))
        hit = manager.get_computed_blocks(request)
        manager.allocate_slots(request, request.num_tokens - hit.num_tokens, hit)
        manager.commit_step()
        manager.free(request)
    return manager.stats.hits / manager.stats.queries
