"""What a decision log costs: time of a step's planning and committing, and bytes of file.

A scheduler serves one system prompt with many endings, with tokens made up in place of a model, once
without and once with a log, in turns.  Tokens are random, so real text compresses better.

    python bench/decision_log.py

Nothing is asserted: a step of a model takes tens of milliseconds.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from pathlib import Path
from time import perf_counter
from typing import get_args

import typer
from rich.console import Console
from rich.table import Table

from headstart.cache import CacheConfig, CacheRequest, KVCacheManager
from headstart.config import PrefixIndexName, SchedulerConfig
from headstart.engine.decision_log import open_decision_log
from headstart.engine.recording import RecordingManager, steps_between_digests
from headstart.engine.request import Request, SamplingParams, StepResult
from headstart.engine.scheduler import Scheduler

VOCAB, SYSTEM, QUESTION, ANSWER = 49_152, 1000, 200, 200


def live(manager: KVCacheManager, rows: int, steps: int) -> tuple[list[float], int]:
    """Seconds that each step took to plan and to commit; and how many tokens they computed."""
    rng = random.Random(0)
    tokens = lambda count: [rng.randrange(VOCAB) for _ in range(count)]  # noqa: E731
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=rows), manager)
    system, params = tokens(SYSTEM), SamplingParams(max_tokens=ANSWER)
    seconds, computed, count = [], 0, 0
    for step in range(steps):
        while len(scheduler.running) + len(scheduler.waiting) < rows:
            prompt = CacheRequest(f"r{count}", system + tokens(QUESTION))
            scheduler.add(Request(f"r{count}", prompt, params, SYSTEM + QUESTION, ANSWER, 0.0))
            count += 1
        started = perf_counter()
        plan = scheduler.plan(step * 0.03)
        spent = perf_counter() - started
        result = StepResult({row.request_id: rng.randrange(VOCAB) for row in plan.rows if row.sample})
        started = perf_counter()
        scheduler.commit(plan, result)
        seconds.append(spent + perf_counter() - started)
        computed += plan.num_tokens
    return seconds, computed


def main(rows: int = 32, steps: int = 2000, num_blocks: int = 8192, rounds: int = 3) -> None:
    """Print the medians of both, for both indexes."""
    table = Table("index", "plain µs", "recorded µs", "bytes a step", "bytes a computed token")
    for index in get_args(PrefixIndexName):
        config = CacheConfig(num_blocks, 16, index=index)
        plain, recorded = [], []
        for _ in range(rounds):
            plain += live(KVCacheManager(config), rows, steps)[0]
            with tempfile.TemporaryDirectory() as directory:
                log = open_decision_log(Path(directory) / "run.log.gz", config)
                manager = RecordingManager(config, log, steps_between_digests(num_blocks))
                seconds, computed = live(manager, rows, steps)
                recorded += seconds
                manager.close()
                size = log.path.stat().st_size
        medians = (f"{statistics.median(times) * 1e6:,.0f}" for times in (plain, recorded))
        table.add_row(index, *medians, f"{size / steps:,.0f}", f"{size / computed:.1f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
