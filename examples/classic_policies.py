"""LRU against LFU on traffic where one wins, where the other does, and where it cannot matter.

    python examples/classic_policies.py

Every request is for one of many texts, each a block long, through the real cache core: 20 blocks keep texts,
one more is there for the token behind the text, which is computed each time.  "optimum" knows the future: it
evicts what is asked for last, or never again.
"""

from __future__ import annotations

import random
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from itertools import count
from typing import Any

from headstart import CacheConfig, CacheRequest, KVCacheManager

CAPACITY, BLOCK = 20, 4
POLICIES: dict[str, dict[str, Any]] = {
    "lru": {"policy": "lru"},
    "lfu, no ageing": {"policy": "lfu", "lfu_ageing": False},
    "lfu": {"policy": "lfu"},
}


def main() -> None:
    """All four, one table."""
    rng = random.Random(1)  # noqa: S311 -- traffic, not secrets
    traffic = {
        "uniform": uniform(rng, 10_000),
        "power law": power_law(rng, 10_000),
        "zipf, half one-shot": zipf_with_scans(rng, 3_000),
        "popularity shifts": shifting(rng, 3_000),
    }
    print(f"{'hit rate':22}{'requests':>8}" + "".join(f"{name:>16}" for name in (*POLICIES, "optimum")))
    for name, texts in traffic.items():
        rates = [hit_rate(texts, options) for options in POLICIES.values()]
        cells = "".join(f"{rate:16.1%}" for rate in (*rates, optimum(texts)))
        print(f"{name:22}{len(texts):8,}{cells}")


def uniform(rng: random.Random, num_requests: int) -> list[int]:
    """Each of 100 texts is as likely, whatever was asked before."""
    return [rng.randrange(100) for _ in range(num_requests)]


def power_law(rng: random.Random, num_requests: int) -> list[int]:
    """A Pareto distribution with exponent 1.5, folded to 100 texts: text 1 is 65 % of all requests."""
    return [int(rng.paretovariate(1.5)) % 100 for _ in range(num_requests)]


def zipf_with_scans(rng: random.Random, num_requests: int) -> list[int]:
    """Every second request on average is for one of 100 texts by Zipf's law, the others never come again."""
    fresh = count(1000)
    weights = [1 / rank for rank in range(1, 101)]
    popular = rng.choices(range(100), weights, k=num_requests)
    return [text if rng.random() < 0.5 else next(fresh) for text in popular]


def shifting(rng: random.Random, num_requests: int) -> list[int]:
    """15 texts at a time, as likely; after each tenth of the requests 15 others."""
    return [15 * (10 * number // num_requests) + rng.randrange(15) for number in range(num_requests)]


def hit_rate(texts: Sequence[int], options: dict[str, Any]) -> float:
    """The share of requests whose text is cached, through a cache core with these options."""
    options |= {"index": "hash", "free_order": "unhashed_first", "explain_misses": False}
    config = CacheConfig(num_blocks=CAPACITY + 1, block_size=BLOCK, **options)
    manager = KVCacheManager(config)
    for number, text in enumerate(texts):
        request = CacheRequest(str(number), [text] * BLOCK + [0])
        manager.begin_step(float(number))
        hit = manager.get_computed_blocks(request)
        granted = manager.allocate_slots(request, request.num_tokens - hit.num_tokens, hit)
        assert granted is not None
        manager.commit_step()
        manager.free(request)
    return manager.stats.hits / BLOCK / manager.stats.requests


def optimum(texts: Sequence[int]) -> float:
    """The same with knowledge of the future (Belady, 1966)."""
    following: dict[int, int] = {}
    next_use = [0] * len(texts)
    for number in reversed(range(len(texts))):
        next_use[number] = following.get(texts[number], len(texts))
        following[texts[number]] = number
    cached: dict[int, int] = {}  # text → when it is asked for again
    hits = 0
    for text, again in zip(texts, next_use, strict=True):
        hits += text in cached
        cached[text] = again
        if len(cached) > CAPACITY:
            del cached[max(cached, key=cached.__getitem__)]
    return hits / len(texts)


if __name__ == "__main__":
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    main()
