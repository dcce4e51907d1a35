"""How many different blocks a cache of C blocks can bear, and what requests that run at once leave of it.

    python examples/classic_capacity.py

First table: U different texts of a block, C = 50 blocks, LRU; N requests.  No cache can do better than
(N - U) / N: each text must be computed once.

Second table: the real scheduler, 512 blocks of one token.  Each of 400 requests has a user's history of 10
blocks (150 users, by Zipf's law), a question of one and an answer of 10, so it holds L = 21 blocks at its
end.  ``max_num_seqs`` lets B of them run at once.
"""

from __future__ import annotations

import random
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import dataclass

from headstart import CacheConfig, CacheRequest, KVCacheManager, SamplingParams
from headstart.config import SchedulerConfig
from headstart.engine.request import Request, StepResult
from headstart.engine.scheduler import Scheduler

CAPACITY, BLOCK, NUM_REQUESTS = 50, 4, 1_000
POOL, HISTORY, ANSWER, USERS, NUM_CHATS = 512, 10, 10, 150, 400


def main() -> None:
    """Both tables."""
    print("U / C   bound      loop    random      zipf")
    for ratio in (0.5, 1.0, 1.1, 1.2, 1.5, 2.0, 3.0, 4.0):
        num_texts = round(ratio * CAPACITY)
        rng = random.Random(1)  # noqa: S311 -- traffic, not secrets
        once, again = list(range(num_texts)), range(NUM_REQUESTS - num_texts)  # so that U is what it says
        traffic = (
            once + [number % num_texts for number in again],
            once + [rng.randrange(num_texts) for _ in again],
            once + rng.choices(once, [1 / rank for rank in range(1, num_texts + 1)], k=len(again)),
        )
        bound = (NUM_REQUESTS - num_texts) / NUM_REQUESTS
        print(f"{ratio:5.1f}{bound:8.1%}" + "".join(f"{lru_hit_rate(texts):10.1%}" for texts in traffic))

    print("\nmax_num_seqs   B x L / C   running   hit rate   answers first   preempted")
    for max_num_seqs in (1, 4, 8, 16, 24, 32):
        plain = serve(max_num_seqs, evict_generated_first=False)
        spared = serve(max_num_seqs, evict_generated_first=True)
        held = max_num_seqs * (HISTORY + 1 + ANSWER) / POOL
        print(
            f"{max_num_seqs:12}{held:12.2f}{plain.mean_running:10.1f}{plain.hit_rate:11.1%}"
            f"{spared.hit_rate:16.1%}{spared.num_preemptions:12}"
        )


def lru_hit_rate(texts: Sequence[int]) -> float:
    """The share of requests whose text is cached; one block more than C is for the token behind the text."""
    config = CacheConfig(CAPACITY + 1, BLOCK, index="hash", free_order="unhashed_first", explain_misses=False)
    manager = KVCacheManager(config)
    for number, text in enumerate(texts):
        request = CacheRequest(str(number), [text] * BLOCK + [0])
        manager.begin_step(float(number))
        hit = manager.get_computed_blocks(request)
        assert manager.allocate_slots(request, request.num_tokens - hit.num_tokens, hit) is not None
        manager.commit_step()
        manager.free(request)
    return manager.stats.hits / BLOCK / manager.stats.requests


@dataclass(frozen=True)
class Outcome:
    """Of one run: token hit rate at first admissions, requests running in a step, how many gave way."""

    hit_rate: float
    mean_running: float
    num_preemptions: int


def serve(max_num_seqs: int, *, evict_generated_first: bool) -> Outcome:
    """All requests are there from the start; the scheduler lets in as many as it may."""
    config = CacheConfig(POOL, 1, evict_generated_first=evict_generated_first, explain_misses=False)
    manager = KVCacheManager(config)
    scheduler = Scheduler(SchedulerConfig(max_num_batched_tokens=4096, max_num_seqs=max_num_seqs), manager)
    rng = random.Random(1)  # noqa: S311 -- traffic, not secrets
    users = rng.choices(range(USERS), [1 / rank**0.8 for rank in range(1, USERS + 1)], k=NUM_CHATS)
    for number, user in enumerate(users):
        prompt = CacheRequest(str(number), [user] * HISTORY + [1_000 + number])
        params = SamplingParams(temperature=0.0, max_tokens=ANSWER)
        scheduler.add(Request(str(number), prompt, params, prompt.num_tokens, ANSWER, 0.0))
    num_steps = num_rows = 0
    while scheduler.has_work:
        plan = scheduler.plan(float(num_steps))
        num_steps, num_rows = num_steps + 1, num_rows + len(plan.rows)
        tokens = {row.request_id: 10_000 + int(row.request_id) for row in plan.rows if row.sample}
        scheduler.commit(plan, StepResult(tokens))  # what a model would choose does not matter here
    stats = manager.stats
    return Outcome(stats.hits / stats.queries, num_rows / num_steps, scheduler.num_preemptions)


if __name__ == "__main__":
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    main()
