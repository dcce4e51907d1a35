"""What overlapping requests and several replicas do to the hit rate, on traffic made by hand.

*Contention*: questions about a few documents, and between them long jobs that share nothing and run for long.
Running jobs hold their blocks, so the more requests run at once, the less is left for the documents.

*Dilution*: conversations that go on behind one system prompt, spread over four replicas in four ways.

    python bench/overlap.py            # print the tables
    python bench/overlap.py --write    # and put them into docs/replay-concurrency.md

All is decided by a seed and by simulated time, so the figures are the same on every machine.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Annotated

import typer

from headstart.cache.reasons import MissReason
from headstart.lab.load.publish import publish
from headstart.lab.load.report import markdown_table
from headstart.lab.replay.outcome import Outcome, Setting
from headstart.lab.replay.replay import replay
from headstart.lab.replay.routers import Routing
from headstart.lab.replay.routing import replay_routed
from headstart.lab.replay.scheduled import replay_scheduled
from headstart.lab.traces.trace import Trace, TraceFormat, TraceRequest

PAGE = Path(__file__).resolve().parent.parent / "docs" / "replay-concurrency.md"
BLOCK = 16
JOB, JOB_ANSWER = 384, 128
"""Tokens of a long job's prompt and of its answer: 32 blocks."""
POOL = 800
SEATS = (1, 4, 8, 12, 16, 20, 24, 28)
REPLICAS = 4
SHARED_POOL = 4800


class Words:
    """Random tokens."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)

    def some(self, count: int) -> list[int]:
        """So many of them."""
        return [self.rng.randrange(50_000) for _ in range(count)]


def questions_and_jobs(num_requests: int = 600, num_documents: int = 24) -> Trace:
    """Three of four are questions about a document of 256 tokens, with answers of 4; the others are jobs."""
    words = Words(0)
    documents = [words.some(256) for _ in range(num_documents)]
    requests = []
    for _ in range(num_requests):
        if words.rng.random() < 0.25:
            requests.append(_request(words.some(JOB), num_output_tokens=JOB_ANSWER))
        else:
            requests.append(_request(words.rng.choice(documents) + words.some(8), num_output_tokens=4))
    return Trace("questions and jobs", TraceFormat.TOKENS, requests)


def conversations(num_users: int = 80, num_turns: int = 8) -> Trace:
    """Everybody says 64 tokens in a turn and gets 64; in each round users come in about the same order."""
    words = Words(0)
    spread = [
        (turn + user / num_users + 0.3 * words.rng.random(), user)
        for turn in range(num_turns)
        for user in range(num_users)
    ]
    system = words.some(512)
    histories: dict[int, list[int]] = {}
    requests = []
    for _, user in sorted(spread):
        history = histories.setdefault(user, list(system))
        history += words.some(64)
        answer = words.some(64)
        requests.append(_request(history, num_output_tokens=64, output=_run(answer), session=f"user {user}"))
        history += answer
    return Trace("conversations", TraceFormat.TOKENS, requests)


def _request(prompt: list[int], **more: object) -> TraceRequest:
    return TraceRequest(_run(prompt), len(prompt), **more)  # type: ignore[arg-type]


def _run(tokens: list[int]) -> bytes:
    return array("i", tokens).tobytes()


def contention(trace: Trace) -> Iterator[list[str]]:
    """A row for each number of seats."""
    blocks = (JOB + JOB_ANSWER) // BLOCK
    for seats in SEATS:
        outcome = replay_scheduled(trace, Setting(block_size=BLOCK, capacity_blocks=POOL, max_num_seqs=seats))
        first = outcome.mean_first_token_s or 0.0
        yield [
            str(seats),
            f"{seats * blocks / POOL:.2f}",
            _percent(outcome.rates.token_hit_rate),
            _evicted(outcome),
            f"{outcome.num_preemptions:,}",
            f"{first:.2f}",
        ]


def dilution(trace: Trace) -> Iterator[list[str]]:
    """One replica with all the memory, then several with a part of it each."""
    alone = Setting(block_size=BLOCK, capacity_blocks=SHARED_POOL)
    yield ["1", "", f"{SHARED_POOL:,}", *_rates(replay(trace, alone)), ""]
    apart = replace(alone, replicas=REPLICAS, capacity_blocks=SHARED_POOL // REPLICAS)
    for routing in Routing:
        outcome = replay_routed(trace, replace(apart, routing=routing))
        busiest = max(Counter(one.replica for one in outcome.served).values()) / len(outcome.served)
        yield [
            str(REPLICAS),
            f"`{routing}`",
            f"{SHARED_POOL // REPLICAS:,}",
            *_rates(outcome),
            f"{busiest:.0%}",
        ]


def _rates(outcome: Outcome) -> list[str]:
    return [_percent(outcome.rates.token_hit_rate), _evicted(outcome)]


def _evicted(outcome: Outcome) -> str:
    return _percent(outcome.misses.get(MissReason.EVICTED, 0) / outcome.rates.num_prompt_tokens)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def main(
    write: Annotated[bool, typer.Option("--write", help="Write the tables into the page.")] = False,
) -> None:
    """Make both tables."""
    seats = ["at once", "B x L / C", "hit", "evicted", "preemptions", "first token s"]
    replicas = ["replicas", "routing", "blocks each", "hit", "evicted", "busiest gets"]
    tables = {
        "contention": markdown_table(seats, list(contention(questions_and_jobs()))),
        "dilution": markdown_table(replicas, list(dilution(conversations()))),
    }
    for name, table in tables.items():
        print(f"{name}\n\n{table}\n")
        if write:
            publish(name, {PAGE: table})


if __name__ == "__main__":
    typer.run(main)
