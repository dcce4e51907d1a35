"""What another tenant says changes nothing for an attacker: law I14, in worlds that differ in nothing else.

Two tenants do the same in several worlds at once.  The attacker says the same in all of them.  What the other
says is *relabelled* from world to world: equal tokens stay equal and different ones different, so that its
load is the same, but its text is another.  In the first world both draw on the same words, and each often
repeats what the other has said; there the attacker's guesses are right.  In the others they are wrong, or
right in part.

Everything must be the same in all worlds, which is more than an attacker can see: every answer, every block
table, who goes next, what the attacker is told of his misses.

Relabelling keeps the order of tokens in the radix index: where several of its own blocks share equally many
tokens with a prompt, the order of their bytes says which is copied (docs/decisions/0010), and so which of its
own blocks a tenant has used.  The hash index does not even need that.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headstart.cache import CacheConfig, CacheRequest, KVCacheManager, Namespace
from headstart.cache.radix_tree import RadixTree, Root
from headstart.cache.reasons import MissReport
from headstart.config import PolicyName, PrefixIndexName, SchedulerConfig
from headstart.engine.choices import choice_ids, of_choice
from headstart.engine.request import Request, SamplingParams, StepPlan, StepResult
from headstart.engine.scheduler import Scheduler
from tests.fake_runner import FakeRunner

Tenant = Literal["attacker", "victim"]
TENANTS: tuple[Tenant, ...] = get_args(Tenant)
EXAMPLES = int(os.environ.get("HEADSTART_FUZZ_EXAMPLES", "100"))
INDEXES, POLICIES = get_args(PrefixIndexName), get_args(PolicyName)
WORDS = 3
LONG = [zlib.crc32(bytes([place])) % WORDS for place in range(36)]  # a text that is known again elsewhere
SEGMENTS = [[0], [1], [2], [0, 1], [1, 1, 0, 2, 1], LONG, LONG[:20]]
TEXTS = st.lists(st.sampled_from(SEGMENTS), min_size=1, max_size=4).map(
    lambda parts: [token for part in parts for token in part]
)
Relabel = Callable[[int], int]
MONOTONE: list[Relabel] = [lambda token: token, lambda token: token + 1, lambda token: 7 * token + 50]
ANY: list[Relabel] = [*MONOTONE, lambda token: WORDS - 1 - token]


class Tape:
    """A listener that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def stored(self, request: CacheRequest, start: int, block_ids: Sequence[int], after: int | None) -> None:
        self.told.append((request.request_id, start, tuple(block_ids), after))

    def moved(self, block_id: int, to: int) -> None:
        self.told.append((block_id, to))

    def removed(self, block_id: int) -> None:
        self.told.append(block_id)

    def cleared(self) -> None:
        self.told.append("cleared")


class World:
    """A cache, and what the victim's tokens are called in it."""

    def __init__(self, config: CacheConfig, relabel: Relabel) -> None:
        self.tape = Tape()
        self.manager = KVCacheManager(config, [self.tape])
        self.relabel = relabel
        self.requests: dict[str, CacheRequest] = {}
        self.live: dict[str, CacheRequest] = {}

    def tokens(self, tenant: Tenant, text: Sequence[int]) -> list[int]:
        return list(text) if tenant == "attacker" else list(map(self.relabel, text))

    def request(self, tenant: Tenant, name: str, text: Sequence[int], **more: Any) -> CacheRequest:
        request = CacheRequest(
            name,
            self.tokens(tenant, text),
            namespace=Namespace(salt=self.salt(tenant)),
            tenant=tenant,
            **more,
        )
        self.requests[name] = request
        return request

    def salt(self, tenant: Tenant) -> str | None:
        return tenant

    def report(self, report: MissReport) -> object:
        return report.for_client()

    def state(self) -> object:
        """All that decides, and nothing that was said."""
        manager = self.manager
        tables = [(name, manager.block_table(name)) for name in self.live]
        counted = (manager.num_evicted_blocks, manager.stats, manager.pins)
        return manager.free_block_ids(), tables, counted, self.tape.told


class IsolationMachine(RuleBasedStateMachine):
    """At the manager's door."""

    options: dict[str, Any]
    make_world: Callable[[CacheConfig, Relabel], World] = World

    @initialize(
        capacity=st.integers(20, 150),
        block_size=st.sampled_from([1, 2, 4, 16]),
        share=st.sampled_from([None, None, 0.3, 0.6]),
        generated_first=st.booleans(),
    )
    def make(self, capacity: int, block_size: int, share: float | None, generated_first: bool) -> None:
        config = CacheConfig(
            max(4, capacity // block_size),
            block_size,
            tenant_share=share,
            evict_generated_first=generated_first,
            ttl_seconds=5.0,
            half_life_seconds=3.0,
            protected_share=0.4,
            **self.options,
        )
        relabels = ANY if config.index == "hash" else MONOTONE
        self.worlds = [type(self).make_world(config, relabel) for relabel in relabels]
        self.texts: list[list[int]] = []
        self.whose: dict[str, Tenant] = {}
        self.counter = 0
        self.now = 0.0
        self.open = False
        self.touched: set[str] = set()

    def everywhere(self, call: Callable[[Any], object]) -> Any:
        """The answer that all worlds gave."""
        answers = [call(world) for world in self.worlds]
        assert all(answer == answers[0] for answer in answers), "the worlds differ"
        return answers[0]

    @rule(
        data=st.data(),
        tenant=st.sampled_from(TENANTS),
        text=TEXTS,
        repeats=st.booleans(),
        chunk=st.integers(1, 60),
        keep_copy=st.booleans(),
        skip_reading=st.sampled_from([False, False, False, True]),
        priority=st.sampled_from([0, 0, 3]),
    )
    def admit(
        self,
        data: st.DataObject,
        tenant: Tenant,
        text: list[int],
        repeats: bool,
        chunk: int,
        keep_copy: bool,
        skip_reading: bool,
        priority: int,
    ) -> None:
        if repeats and self.texts:  # what somebody has said: often the other
            known = data.draw(st.sampled_from(self.texts))
            text = known[: data.draw(st.integers(0, len(known)))] + text
        name = self.name(tenant, text)

        def call(world: World) -> object:
            request = world.request(
                tenant, name, text, skip_reading=skip_reading, retention_priority=priority
            )
            hit = world.manager.get_computed_blocks(request)
            hit = hit if keep_copy else hit.without_copy()
            grant = world.manager.allocate_slots(request, min(chunk, len(text) - hit.num_tokens), hit)
            if grant is not None:
                world.live[name] = request
            return hit.num_tokens, hit.block_ids, hit.copy, grant

        if self.everywhere(call)[-1] is not None:
            self.touched.add(name)
            self.open = True

    def name(self, tenant: Tenant, text: list[int]) -> str:
        self.counter += 1
        self.texts = [*self.texts[-9:], text]
        name = f"{tenant} {self.counter}"
        self.whose[name] = tenant
        return name

    def draw_live(self, data: st.DataObject) -> str:
        name: str = data.draw(st.sampled_from(sorted(self.worlds[0].live)))
        return name

    @property
    def has_live(self) -> bool:
        return bool(self.worlds[0].live)

    @precondition(lambda self: self.has_live)
    @rule(data=st.data(), token=st.integers(0, WORDS - 1))
    def decode(self, data: st.DataObject, token: int) -> None:
        name = self.draw_live(data)

        def call(world: World) -> object:
            request = world.live[name]
            request.append(world.tokens(self.whose[name], [token])[0])
            return world.manager.allocate_slots(request, 1)

        if self.everywhere(call) is not None:
            self.touched.add(name)
            self.open = True

    @precondition(lambda self: set(self.worlds[0].live) - self.touched)
    @rule(data=st.data(), token=st.integers(0, WORDS - 1))
    def fork(self, data: st.DataObject, token: int) -> None:
        parent = data.draw(st.sampled_from(sorted(set(self.worlds[0].live) - self.touched)))
        tenant, child = self.whose[parent], self.name(self.whose[parent], [token])

        def call(world: World) -> object:
            request = world.live[parent]
            twin = CacheRequest(child, request.tokens, namespace=request.namespace, tenant=tenant)
            twin.append(world.tokens(tenant, [token])[0])
            world.manager.fork(request, twin)
            world.live[child] = world.requests[child] = twin
            return None

        self.everywhere(call)

    @precondition(lambda self: self.has_live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        name = self.draw_live(data)

        def call(world: World) -> object:
            withdrawn = world.manager.free(world.live.pop(name))
            self.drop_gone(world)
            return withdrawn

        self.everywhere(call)

    @staticmethod
    def drop_gone(world: World) -> None:
        world.live = {name: one for name, one in world.live.items() if name in world.manager._holdings}

    @rule(written=st.sampled_from([True, True, True, False]), seconds=st.sampled_from([0.0, 1.0, 6.0]))
    def end_step(self, written: bool, seconds: float) -> None:
        self.now += seconds

        def call(world: World) -> object:
            undone = world.manager.commit_step() if written else world.manager.rollback_step()
            self.drop_gone(world)
            world.manager.begin_step(self.now)
            return undone

        self.everywhere(call)
        self.touched.clear()
        self.open = False

    @precondition(lambda self: self.whose)
    @rule(data=st.data(), seconds=st.sampled_from([2.0, 50.0]))
    def pin(self, data: st.DataObject, seconds: float) -> None:
        name = data.draw(st.sampled_from(sorted(self.whose)))
        self.everywhere(lambda world: world.manager.pin(world.requests[name], seconds))

    @precondition(lambda self: self.whose)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.whose)))
        self.everywhere(lambda world: world.manager.unpin(name))

    @precondition(lambda self: self.whose)
    @rule(data=st.data())
    def explain(self, data: st.DataObject) -> None:
        names = data.draw(st.lists(st.sampled_from(sorted(self.whose)), max_size=4, unique=True))
        self.everywhere(
            lambda world: [
                world.report(report)
                for report in world.manager.explain_misses(world.requests[name] for name in names)
            ]
        )

    @invariant()
    def all_worlds_are_alike(self) -> None:
        if hasattr(self, "worlds"):
            self.everywhere(lambda world: world.state())


class ServedWorld(World):
    """A scheduler on it, and a runner that finds a wrong block; what the victim is told is prescribed."""

    def __init__(self, config: CacheConfig, relabel: Relabel, scheduler: SchedulerConfig) -> None:
        super().__init__(config, relabel)
        self.scheduler = Scheduler(scheduler, self.manager)
        self.runner = FakeRunner(config.num_blocks, config.block_size, vocab_size=WORDS)
        self.whose: dict[str, Tenant] = {}

    def add(
        self, tenant: Tenant, name: str, text: Sequence[int], params: SamplingParams, priority: int
    ) -> None:
        choices = [
            Request(
                request_id=choice,
                cache=self.request(tenant, choice, text),
                params=of_choice(params, number),
                num_prompt_tokens=len(text),
                max_tokens=params.max_tokens or 1,
                arrival_time=0.0,
                priority=priority,
            )
            for number, choice in enumerate(choice_ids(name, params.num_choices))
        ]
        self.whose |= dict.fromkeys((choice.request_id for choice in choices), tenant)
        self.scheduler.add(choices[0], choices[1:])

    def compute(self, plan: StepPlan) -> StepResult:
        result = self.runner.run(plan)
        sampled = {
            name: self.relabel(zlib.crc32(f"{name} {self.requests[name].num_tokens}".encode()) % WORDS)
            if self.whose[name] == "victim"
            else token
            for name, token in result.sampled.items()
        }
        return StepResult(sampled)

    @staticmethod
    def shape(plan: StepPlan) -> object:
        rows = [
            (row.request_id, row.start, len(row.token_ids), row.block_ids, row.sample, row.num_output_tokens)
            for row in plan.rows
        ]
        return rows, plan.copies

    def state(self) -> object:
        self.live = {one.request_id: one.cache for one in self.scheduler.running}
        waiting = [one.request_id for one in self.scheduler.waiting]
        return super().state(), waiting, self.scheduler.num_preemptions


class ServedMachine(RuleBasedStateMachine):
    """Through the real scheduler."""

    options: dict[str, Any]

    @initialize(
        num_blocks=st.integers(14, 40),
        block_size=st.sampled_from([2, 4, 16]),
        share=st.sampled_from([None, 0.3, 0.6]),
        budget=st.sampled_from([3, 8, 40]),
        seqs=st.integers(1, 5),
    )
    def make(self, num_blocks: int, block_size: int, share: float | None, budget: int, seqs: int) -> None:
        config = CacheConfig(num_blocks, block_size, tenant_share=share, **self.options)
        scheduler = SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=seqs)
        relabels = ANY if config.index == "hash" else MONOTONE
        self.worlds = [ServedWorld(config, relabel, scheduler) for relabel in relabels]
        self.capacity = num_blocks * block_size
        self.texts: list[list[int]] = []
        self.counter = 0
        self.now = 0.0

    everywhere = IsolationMachine.everywhere

    @rule(
        data=st.data(),
        tenant=st.sampled_from(TENANTS),
        text=TEXTS,
        repeats=st.booleans(),
        count=st.integers(1, 12),
        n=st.sampled_from([1, 1, 1, 3]),
        priority=st.sampled_from([0, 0, 1]),
    )
    def add(
        self,
        data: st.DataObject,
        tenant: Tenant,
        text: list[int],
        repeats: bool,
        count: int,
        n: int,
        priority: int,
    ) -> None:
        if repeats and self.texts:
            known = data.draw(st.sampled_from(self.texts))
            text = known[: data.draw(st.integers(0, len(known)))] + text
        text = text[: self.capacity - count]
        if not text:
            return
        self.texts = [*self.texts[-9:], text]
        self.counter += 1
        params = SamplingParams(temperature=0.0, max_tokens=count, n=n)
        name = f"{tenant} {self.counter}"
        self.everywhere(lambda world: world.add(tenant, name, text, params, priority))

    @rule(times=st.integers(1, 6), seconds=st.sampled_from([0.0, 1.0]))
    def steps(self, times: int, seconds: float) -> None:
        for _ in range(times):
            self.step(seconds)

    def step(self, seconds: float = 0.0, fate: str = "computed") -> None:
        self.now += seconds
        plans = {world: world.scheduler.plan(self.now) for world in self.worlds}
        self.everywhere(lambda world: world.shape(plans[world]))

        def call(world: ServedWorld) -> object:
            if fate == "rolled back":
                return world.scheduler.rollback()
            if fate == "failed":
                outputs = world.scheduler.fail(plans[world], "on purpose")
            else:
                outputs = world.scheduler.commit(plans[world], world.compute(plans[world]))
            return [
                (out.request_id, len(out.token_ids), out.num_cached_tokens, out.finish_reason)
                if world.whose[out.request_id] == "victim"
                else out
                for out in outputs
            ]

        self.everywhere(call)
        self.everywhere(lambda world: [world.report(report) for report in world.scheduler.explain()])

    @rule(fate=st.sampled_from(["rolled back", "failed"]))
    def break_a_step(self, fate: str) -> None:
        self.step(fate=fate)

    @precondition(lambda self: self.worlds[0].whose)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.worlds[0].whose)))
        self.everywhere(lambda world: world.scheduler.abort(name))

    @precondition(lambda self: self.worlds[0].whose)
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.worlds[0].whose)))
        self.everywhere(lambda world: world.manager.pin(world.requests[name], 20.0))

    @invariant()
    def all_worlds_are_alike(self) -> None:
        if hasattr(self, "worlds"):
            self.everywhere(lambda world: world.state())

    def teardown(self) -> None:
        if hasattr(self, "worlds"):
            while self.worlds[0].scheduler.has_work:
                self.step()
                self.all_worlds_are_alike()


def run(machine: type[RuleBasedStateMachine], examples: int, steps: int = 40, **more: Any) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
            **more,
        ),
    )


def machine_at_the_door(
    index: str, policy: str, make_world: Callable[[CacheConfig, Relabel], World] = World
) -> type[RuleBasedStateMachine]:
    """The machine at the manager's door."""
    options = {"index": index, "policy": policy}
    members = {"options": options, "make_world": staticmethod(make_world)}
    return type("Machine", (IsolationMachine,), members)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("index", INDEXES)
def test_at_the_managers_door_no_world_differs(index: str, policy: str) -> None:
    run(machine_at_the_door(index, policy), EXAMPLES // (8 if policy == "lru" else 25))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("index", INDEXES)
def test_through_the_scheduler_no_world_differs(index: str, policy: str) -> None:
    options = {"index": index, "policy": policy}
    run(type("Machine", (ServedMachine,), {"options": options}), EXAMPLES // (12 if policy == "lru" else 33))


# The test can fail


class _Unsalted(World):
    def salt(self, tenant: Tenant) -> str | None:
        return None


class _Outspoken(World):
    def report(self, report: MissReport) -> object:
        return report  # with the isolated ones


@pytest.mark.parametrize(
    ("index", "make_world"), [("radix", _Unsalted), ("hash", _Unsalted), ("hash", _Outspoken)]
)
def test_a_world_that_leaks_is_found(index: str, make_world: type[World]) -> None:
    with pytest.raises(AssertionError, match="the worlds differ"):
        run(machine_at_the_door(index, "lru", make_world), 300, derandomize=True, phases=[Phase.generate])


def test_a_tree_for_all_namespaces_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def make_root(tree: RadixTree, namespace: Namespace) -> Root:
        return tree._roots.setdefault(Namespace(), Root(Namespace()))

    monkeypatch.setattr(RadixTree, "find_root", lambda tree, namespace: tree._roots.get(Namespace()))
    monkeypatch.setattr(RadixTree, "make_root", make_root)
    with pytest.raises(AssertionError, match="the worlds differ"):
        run(machine_at_the_door("radix", "lru"), 300, derandomize=True, phases=[Phase.generate])
