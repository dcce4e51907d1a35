"""Hand-made traffic with effects of known size, and replays that the lab's first one cannot make."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from headstart.cache import CacheConfig, CacheRequest, KVCacheManager, Namespace
from headstart.cache.keys import SHARED
from headstart.lab.replay.outcome import Outcome, Served, Setting
from headstart.lab.replay.replay import replay, unbounded
from headstart.lab.traces.trace import Trace, TraceFormat, TraceRequest


class Texts:
    """Runs of tokens that no other run of it has any of."""

    def __init__(self) -> None:
        self._next = count(1)

    def new(self, length: int) -> list[int]:
        return [next(self._next) for _ in range(length)]


def trace_of(
    prompts: Sequence[Sequence[int]],
    *,
    namespaces: Sequence[Namespace] | None = None,
    arrivals: Sequence[float] | None = None,
    tokens_per_symbol: int = 1,
) -> Trace:
    requests = [
        TraceRequest(
            array("i", prompt).tobytes(),
            len(prompt) * tokens_per_symbol,
            arrival_s=None if arrivals is None else arrivals[number],
            namespace=SHARED if namespaces is None else namespaces[number],
            line=number + 1,
            file="made.jsonl",
        )
        for number, prompt in enumerate(prompts)
    ]
    kind = TraceFormat.TOKENS if tokens_per_symbol == 1 else TraceFormat.MOONCAKE
    return Trace("made", kind, requests, tokens_per_symbol)


def replay_in_batches(trace: Trace, setting: Setting) -> Outcome:
    """Batches of ``max_num_seqs`` requests hold their blocks until all of a batch are done."""
    if setting.max_num_seqs is None:
        return replay(trace, setting)
    manager = KVCacheManager(
        CacheConfig(
            setting.capacity_blocks or unbounded(trace, setting.block_size), setting.block_size, index="radix"
        )
    )
    served: list[Served] = []
    running: list[CacheRequest] = []
    for number, recorded in enumerate(trace.requests):
        if number % setting.max_num_seqs == 0:
            while running:
                manager.free(running.pop())
        request = CacheRequest(str(number), recorded.symbols)
        manager.begin_step(float(number))
        hit = manager.get_computed_blocks(request)
        assert manager.allocate_slots(request, request.num_tokens - hit.num_tokens, hit) is not None
        manager.commit_step()
        running.append(request)
        num_tokens = recorded.num_prompt_tokens
        served.append(Served(number, num_tokens, hit.num_tokens, num_tokens - 1, {}))
    return Outcome(setting, served, manager.num_evicted_blocks)


def replay_round_robin(trace: Trace, setting: Setting) -> Outcome:
    """Each replica gets every n-th request."""
    if setting.replicas == 1:
        return replay(trace, setting)
    served: list[Served] = []
    for replica in range(setting.replicas):
        part = replace(trace, requests=trace.requests[replica :: setting.replicas])
        served += [
            one._replace(number=replica + one.number * setting.replicas, replica=replica)
            for one in replay(part, replace(setting, replicas=1)).served
        ]
    return Outcome(setting, sorted(served, key=lambda one: one.number))
