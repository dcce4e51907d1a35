"""Random lives of a recorded cache, at the manager's door and through the scheduler."""

from __future__ import annotations

import random
from pathlib import Path

from headstart.cache import CacheConfig, CacheRequest, KVCacheManager, MediaSpan, Namespace, PromptEmbeds
from headstart.config import PrefixIndexName, SchedulerConfig
from headstart.engine.decision_log import open_decision_log
from headstart.engine.decisions import Record
from headstart.engine.recording import RecordingManager
from headstart.engine.request import Request, Retention, SamplingParams
from headstart.engine.scheduler import Scheduler
from tests.fake_runner import FakeRunner

IMAGES = ["cafe" * 4, "beef" * 4]
EMBEDS = [b"aabbccdd", b"aabbccee"]


class Tape:
    """A `Sink` in memory; ``safe`` are the records that were flushed."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.safe: list[Record] = []
        self.closed = False

    def write(self, record: Record) -> None:
        self.records.append(record)

    def flush(self) -> None:
        self.safe = list(self.records)

    def close(self) -> None:
        self.flush()
        self.closed = True


class _Door:
    """What a random caller of a manager keeps in mind."""

    def __init__(self, manager: KVCacheManager, rng: random.Random) -> None:
        self.manager = manager
        self.rng = rng
        self.live: dict[str, CacheRequest] = {}
        self.touched: set[str] = set()  # in the open step
        self.admitted: set[str] = set()

    def admit(self, name: str) -> None:
        rng = self.rng
        tokens = [rng.randrange(2) for _ in range(rng.randint(1, 14))]
        salt = rng.choice([None, None, "a", "b"])
        request = CacheRequest(
            name,
            tokens,
            namespace=Namespace(salt=salt),
            media=[MediaSpan(rng.choice(IMAGES), 2, 3)] if rng.random() < 0.3 and len(tokens) > 4 else (),
            prompt_embeds=PromptEmbeds(rng.choice(EMBEDS), 4)
            if rng.random() < 0.2 and len(tokens) > 3
            else None,
            skip_reading=rng.random() < 0.2,
            num_prompt_tokens=rng.choice([None, rng.randint(0, len(tokens))]),
            retention_priority=rng.choice([0, 0, 0, 1, 7]),
            skip_writing=rng.random() < 0.2,
            tenant=salt,
        )
        hit = self.manager.get_computed_blocks(request)
        hit = rng.choice([hit, hit.without_copy()])
        new = rng.randint(1, request.num_tokens - hit.num_tokens)
        if self.manager.allocate_slots(request, new, hit) is not None:
            self.live[name] = request
            self.touched.add(name)
            self.admitted.add(name)

    def grow(self, request: CacheRequest) -> None:
        request.append(self.rng.randrange(2))
        self.manager.allocate_slots(request, 1)
        self.touched.add(request.request_id)

    def fork(self, request: CacheRequest, name: str) -> None:
        if request.request_id in self.touched:
            return
        child = CacheRequest(
            name,
            request.token_ids(),
            namespace=request.namespace,
            media=request.media,
            prompt_embeds=request.prompt_embeds,
            skip_writing=request.skip_writing,
        )
        child.append(self.rng.randrange(2))
        self.manager.fork(request, child)
        self.live[name] = child

    def pin(self, request: CacheRequest) -> None:
        if self.rng.random() < 0.3:
            self.manager.unpin(request.request_id)
        elif self.rng.random() < 0.3:
            self.manager.retain(request, self.rng.choice([0.1, 100.0]), self.rng.choice([None, "a", "b"]))
        else:
            self.manager.pin(request, self.rng.choice([0.1, 0.5, 100.0]))

    def free(self, request: CacheRequest) -> None:
        for gone in (request.request_id, *self.manager.free(request)):
            if gone == request.request_id or gone in self.admitted:
                del self.live[gone]
            self.touched.discard(gone)
            self.admitted.discard(gone)
        if not self.live:
            self.end_step(written=True)
            assert self.manager.reset_prefix_cache()

    def end_step(self, *, written: bool) -> None:
        if written:
            self.manager.commit_step()
        else:
            self.manager.rollback_step()
            for name in self.admitted:
                del self.live[name]
        self.touched.clear()
        self.admitted.clear()
        self.manager.begin_step(self.rng.random())


def live_at_the_door(manager: KVCacheManager, rng: random.Random, count: int) -> dict[str, CacheRequest]:
    """``count`` random calls of every kind; returns the requests that hold blocks at last."""
    door = _Door(manager, rng)
    manager.begin_step(0.5)
    kinds = ["admit"] * 2 + ["grow"] * 3 + ["fork"] + ["commit"] * 2 + ["rollback", "free", "pin"]
    for number in range(count):
        kind = rng.choice(kinds)
        if kind in ("commit", "rollback"):
            door.end_step(written=kind == "commit")
            continue
        if kind == "admit" or not door.live:
            door.admit(f"r{number}")
            continue
        request = door.live[rng.choice(sorted(door.live))]
        if kind == "grow":
            door.grow(request)
        elif kind == "fork":
            door.fork(request, f"r{number}")
        elif kind == "pin":
            door.pin(request)
        else:
            door.free(request)
    door.end_step(written=True)
    return door.live


def live_in_an_engine(manager: KVCacheManager, rng: random.Random, steps: int) -> Scheduler:
    """Steps of a scheduler with a pool that is often too small: preemptions, aborts, broken steps, resets."""
    config = manager.config
    scheduler = Scheduler(
        SchedulerConfig(max_num_batched_tokens=rng.choice([3, 8, 64]), max_num_seqs=rng.choice([1, 3, 8])),
        manager,
    )
    runner = FakeRunner(config.num_blocks, config.block_size, vocab_size=3)
    capacity = config.num_blocks * config.block_size
    for step in range(steps):
        if rng.random() < 0.4:
            prompt = [rng.randrange(3) for _ in range(rng.randint(1, capacity // 2))]
            name, most = f"r{step}", rng.randint(1, capacity // 2)
            namespace = Namespace(salt=rng.choice([None, None, "a"]))
            cache = CacheRequest(
                name,
                prompt,
                namespace=namespace,
                skip_reading=rng.random() < 0.2,
                retention_priority=rng.choice([0, 0, 3]),
                skip_writing=rng.random() < 0.1,
            )
            params = SamplingParams(max_tokens=most)
            kept = rng.choice([None, None, Retention(0.5), Retention(50.0, "a")])
            scheduler.add(Request(name, cache, params, len(prompt), most, 0.0, retention=kept))
            if rng.random() < 0.2:
                manager.pin(cache, rng.choice([0.05, 0.5, 50.0]))
        if rng.random() < 0.1:
            scheduler.abort(f"r{rng.randrange(step + 1)}")
        if rng.random() < 0.1:
            manager.reset_prefix_cache()
        plan = scheduler.plan(step * 0.1)
        if rng.random() < 0.1:
            scheduler.rollback()
        else:
            scheduler.commit(plan, runner.run(plan))
    return scheduler


def write_log(
    directory: Path, *, seed: int = 1, close: bool = True, index: PrefixIndexName = "radix", steps: int = 80
) -> Path:
    """A log file of a random life in an engine."""
    config = CacheConfig(12, 4, index=index)
    log = open_decision_log(directory / "run.log", config)
    manager = RecordingManager(config, log, digest_every=10)
    live_in_an_engine(manager, random.Random(seed), steps)
    if close:  # otherwise it ends as an engine does that is killed
        manager.close()
    log.close()
    return log.path
