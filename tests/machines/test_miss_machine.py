"""Reasons for misses against an oracle that stores whole token lists, for both indexes.

It keeps the text of every block that a listener was told of, of those evicted, and of the tails that
requests left, as tuples of tokens, and says by comparing them how long a prefix is known in which way.  The
report must tell the first reason of docs/misses.md that applies, and account for every token (law I12),
whenever it is asked.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headstart.cache import (
    CacheConfig,
    CacheRequest,
    KVCacheManager,
    MediaSpan,
    MissReason,
    MissReport,
    Namespace,
)
from headstart.config import PolicyName, PrefixIndexName
from tests.cache.follower import Symbol, symbols

Tokens = tuple[Symbol, ...]
Text = tuple[Namespace, Tokens]
EXAMPLES = int(os.environ.get("HEADSTART_FUZZ_EXAMPLES", "50"))
A, B, C, D, X, Y = (
    tuple(range(100 * n, 100 * n + size)) for n, size in enumerate((40, 33, 9, 3, 1, 1), start=1)
)
PROMPTS = {
    "A": A,
    "B": B,
    "D": D,
    "A + B": A + B,
    "X + A": X + A,
    "Y + A": Y + A,
    "C + A": C + A,
    "C + B": C + B,
    "B + A": B + A,
    "D + C": D + C,
    "X + A + B": X + A + B,
    "A + C + B": A + C + B,
    "A + D + B": A + D + B,
    "A[:20] + B": A[:20] + B,
}
IMAGES = st.sampled_from(  # by where they begin and end, as far as the prompt goes
    [(), (), (), (("cafe" * 4, 5, 12),), (("beef" * 4, 5, 12),), (("cafe" * 4, 0, 3), ("f00d" * 4, 30, 36))]
)
SALTS = st.sampled_from([None, None, None, "a"])
CUTS = st.sampled_from([0, 0, 0, 1, 2, 5, 17])
LONG = 32
PREFIX_REASONS = (MissReason.UNALIGNED, MissReason.IN_FLIGHT, MissReason.EVICTED, MissReason.ISOLATED)


def text_of(request: CacheRequest, stop: int | None = None) -> Tokens:
    return symbols(request, 1, stop)


def common(a: Sequence[Symbol], b: Sequence[Symbol]) -> int:
    count = 0
    while count < min(len(a), len(b)) and a[count] == b[count]:
        count += 1
    return count


class Historian:
    """A listener that remembers the text of every block, and when it was evicted."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.size = block_size
        self.num_ghosts = num_blocks
        self.now, self.taken = 0.0, 0
        self.cleared()

    def cleared(self) -> None:
        self.cached: dict[int, Text] = {}
        self.ghosts: OrderedDict[Text, tuple[float, int] | None] = OrderedDict()  # None: a tail
        self.long_texts: set[Text] = set()  # every 32 tokens in a row that were ever cached

    def stored(self, request: CacheRequest, start: int, block_ids: Sequence[int], after: int | None) -> None:
        space, tokens = request.namespace, text_of(request)
        for number, block_id in enumerate(block_ids, start=start + 1):
            text = space, tokens[: number * self.size]
            self.cached[block_id] = text
            self.ghosts.pop(text, None)
        stop = (start + len(block_ids)) * self.size
        self.long_texts |= {(space, tokens[at - LONG : at]) for at in range(LONG, stop + 1)}

    def moved(self, block_id: int, to: int) -> None:
        self.cached[to] = self.cached.pop(block_id)

    def removed(self, block_id: int) -> None:
        self.haunt(self.cached.pop(block_id), (self.now, self.taken))

    def left(self, text: Text) -> None:
        """A request ended; behind the last whole block that it computed is a tail."""
        whole = len(text[1]) // self.size * self.size
        known = not whole or (text[0], text[1][:whole]) in self.cached.values()
        if whole < len(text[1]) and known:
            self.haunt(text, None)

    def haunt(self, text: Text, when: tuple[float, int] | None) -> None:
        self.ghosts[text] = when
        self.ghosts.move_to_end(text)
        if len(self.ghosts) > self.num_ghosts:
            self.ghosts.popitem(last=False)

    def on(self, request: CacheRequest, whole: int, texts: Iterable[Text]) -> int:
        """How far the prompt's prefix goes on in the texts, which begin with its first ``whole`` tokens.

        By whole blocks as far as they go, then inside the one behind them.
        """
        tokens = text_of(request)
        known = [text for _, text in texts if len(text) > whole]
        ends = [len(t) for t in known if len(t) % self.size == 0 and t == tokens[: len(t)]]
        whole = max([whole, *ends])
        inside = [t for t in known if whole < len(t) <= whole + self.size and t[:whole] == tokens[:whole]]
        return max([whole, *(common(tokens, text) for text in inside)])


@dataclass(frozen=True)
class Expected:
    """What holds of a prompt at its admission; ``known``: tokens that lie in 32 cached ones or more."""

    num_tokens: int
    hit: int
    skipped: bool
    prefixes: dict[MissReason, int]
    known: set[int]
    evicted: tuple[float, int] | None

    def check(self, report: MissReport) -> None:
        assert (report.num_prompt_tokens, report.num_hit_tokens) == (self.num_tokens, self.hit)
        assert report.num_hit_tokens + sum(report.tokens.values()) == report.num_prompt_tokens
        assert all(count > 0 for count in report.tokens.values())
        if self.skipped:
            assert report.tokens == {MissReason.SKIPPED: self.num_tokens - self.hit}
            return
        place, last = self.hit, self.num_tokens - 1
        for reason in PREFIX_REASONS:
            stop = min(self.prefixes[reason], last)
            assert report.tokens.get(reason, 0) == max(0, stop - place), reason
            place = max(place, stop)
        assert report.tokens[MissReason.LAST_TOKEN] == 1
        diverged = report.tokens.get(MissReason.DIVERGED, 0)
        assert diverged <= len(self.known & set(range(place, last)))
        own = max(self.hit, *(self.prefixes[r] for r in PREFIX_REASONS if r is not MissReason.ISOLATED))
        assert report.isolated_diverged <= len(self.known & set(range(own, place)))
        if diverged or report.isolated_diverged:
            assert report.diverged_at == max(self.hit, self.prefixes[MissReason.UNALIGNED])
        else:
            assert report.diverged_at is None
        if report.tokens.get(MissReason.EVICTED) and self.evicted is not None:
            assert (report.evicted_s, report.evicted_blocks) == self.evicted
        else:
            assert report.evicted_s is report.evicted_blocks is None


@dataclass
class Live:
    request: CacheRequest
    admitted_with: int
    computed: int
    before: int | None  # computed tokens before the open step, if that granted something
    admitted_now: bool


class MissMachine(RuleBasedStateMachine):
    index: PrefixIndexName = "radix"
    policy: PolicyName = "lru"

    @initialize(
        capacity=st.integers(60, 300),
        block_size=st.sampled_from([1, 3, 4, 16, 20]),
        generated_first=st.booleans(),
    )
    def make(self, capacity: int, block_size: int, generated_first: bool) -> None:
        self.size = block_size
        num_blocks = max(3, capacity // block_size)
        self.history = Historian(num_blocks, block_size)
        self.manager = KVCacheManager(
            CacheConfig(
                num_blocks=num_blocks,
                block_size=block_size,
                index=self.index,
                policy=self.policy,
                ttl_seconds=5.0,
                half_life_seconds=3.0,
                evict_generated_first=generated_first,
            ),
            listeners=[self.history],
        )
        self.live: dict[str, Live] = {}
        self.parted: list[CacheRequest] = []
        self.expected: dict[str, Expected] = {}
        self.requests: dict[str, CacheRequest] = {}
        self.counter = 0

    def expect(self, request: CacheRequest, hit: int, whole: int, *, skipped: bool) -> Expected:
        history, own = self.history, request.namespace
        tokens = text_of(request)
        cached = list(history.cached.values())
        mine = [text for text in cached if text[0] == own]
        beside = list(mine)
        gone = [text for text in history.ghosts if text[0] == own]
        if self.index == "hash":
            beside += [text for text in gone if history.ghosts[text] is None]
        tops = [
            live
            for live in self.live.values()
            if live.request.namespace == own and not live.request.skip_writing
        ]
        first = next(
            (
                (history.now - seen[0], history.taken - seen[1])
                for stop in range(whole + self.size, len(tokens) + 1, self.size)
                if (seen := history.ghosts.get((own, tokens[:stop]))) is not None
            ),
            None,
        )
        prefixes = {
            MissReason.UNALIGNED: history.on(request, whole, beside),
            MissReason.IN_FLIGHT: max(
                (common(tokens, text_of(live.request, live.admitted_with)) for live in tops), default=0
            ),
            MissReason.EVICTED: history.on(request, whole, gone),
            MissReason.ISOLATED: history.on(request, whole, [text for text in cached if text[0] != own]),
        }
        known = {
            position
            for at in range(LONG, len(tokens) + 1)
            if (own, tokens[at - LONG : at]) in history.long_texts
            for position in range(at - LONG, at)
        }
        return Expected(len(tokens), hit, skipped, prefixes, known, first)

    def forget_step(self, names: Iterable[str]) -> None:
        for name in names:
            live = self.live[name]
            if live.admitted_now:
                del self.live[name]
                if live.request.num_admissions == 0:
                    del self.expected[name]
            else:
                assert live.before is not None
                live.computed, live.before = live.before, None

    # -- rules -----------------------------------------------------------------------------------

    def ask(
        self,
        prompt: str,
        cut: int,
        salt: str | None,
        images: tuple[tuple[str, int, int], ...],
        *,
        skip_reading: bool = False,
        skip_writing: bool = False,
    ) -> CacheRequest:
        self.counter += 1
        tokens = list(PROMPTS[prompt][: max(1, len(PROMPTS[prompt]) - cut)])
        media = [
            MediaSpan(digest, start, stop - start) for digest, start, stop in images if stop <= len(tokens)
        ]
        for span in media:
            tokens[span.offset : span.end] = [9] * span.length
        return CacheRequest(
            f"r{self.counter}",
            tokens,
            namespace=Namespace(salt=salt),
            media=media,
            skip_reading=skip_reading,
            skip_writing=skip_writing,
            num_prompt_tokens=len(tokens),
        )

    @rule(
        prompt=st.sampled_from(sorted(PROMPTS)),
        cut=CUTS,
        salt=SALTS,
        images=IMAGES,
        chunk=st.integers(1, 99),
        chance=st.integers(0, 19),
    )
    def admit(
        self,
        prompt: str,
        cut: int,
        salt: str | None,
        images: tuple[tuple[str, int, int], ...],
        chunk: int,
        chance: int,
    ) -> None:
        request = self.ask(
            prompt, cut, salt, images, skip_reading=chance == 19, skip_writing=chance in (16, 17)
        )
        self.let_in(request, chunk, blind=chance == 18, keep_copy=chance < 15)

    @rule(
        prompts=st.lists(
            st.tuples(st.sampled_from(sorted(PROMPTS)), CUTS, SALTS, IMAGES), min_size=1, max_size=6
        ),
        seconds=st.sampled_from([0.0, 0.5, 4.0]),
    )
    def serve(self, prompts: list[tuple[Any, ...]], seconds: float) -> None:
        """One after the other, each in a step of its own."""
        for prompt, cut, salt, images in prompts:
            request = self.ask(prompt, cut, salt, images)
            self.let_in(request, request.num_tokens, blind=False, keep_copy=True)
            self.commit(seconds)
            if request.request_id in self.live:
                self.end(request.request_id, preempted=False)

    @precondition(lambda self: self.parted)
    @rule(data=st.data(), chunk=st.integers(1, 60))
    def readmit(self, data: st.DataObject, chunk: int) -> None:
        request = self.parted.pop(data.draw(st.integers(0, len(self.parted) - 1)))
        self.let_in(request, chunk, blind=False, keep_copy=True)

    def let_in(self, request: CacheRequest, chunk: int, *, blind: bool, keep_copy: bool) -> None:
        found = self.manager.get_computed_blocks(request)
        hit = None if blind else found if keep_copy else found.without_copy()
        seen = hit.num_tokens if hit else 0
        whole = len(hit.block_ids) * self.size if hit else 0
        is_first = request.num_admissions == 0
        expected = self.expect(request, seen, whole, skipped=blind or request.skip_reading)
        count = max(1, min(chunk, request.num_tokens - seen))
        grant = self.manager.allocate_slots(request, count, hit)
        if grant is None:
            return
        self.history.taken += len(grant.block_ids)
        name = request.request_id
        self.live[name] = Live(request, request.num_tokens, seen + count, 0, admitted_now=True)
        self.requests[name] = request
        if is_first:
            self.expected[name] = expected

    @precondition(lambda self: self.live)
    @rule(data=st.data(), token=st.integers(0, 2), chunk=st.integers(1, 60))
    def extend(self, data: st.DataObject, token: int, chunk: int) -> None:
        live = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        if live.computed == live.request.num_tokens:
            live.request.append(token)
        count = min(chunk, live.request.num_tokens - live.computed)
        grant = self.manager.allocate_slots(live.request, count)
        if grant is not None:
            self.history.taken += len(grant.block_ids) + len(grant.replaced)
            if live.before is None:
                live.before = live.computed
            live.computed += count

    @precondition(lambda self: any(live.before is None for live in self.live.values()))
    @rule(data=st.data(), token=st.integers(0, 2))
    def fork(self, data: st.DataObject, token: int) -> None:
        """A fork was not admitted: nobody waits for what it computes, and it has no report."""
        names = sorted(name for name, live in self.live.items() if live.before is None)
        live = self.live[data.draw(st.sampled_from(names))]
        known = max([live.computed, *(span.end for span in live.request.media)])
        self.counter += 1
        child = CacheRequest(
            f"r{self.counter}",
            [*live.request.token_ids(0, known), token],
            namespace=live.request.namespace,
            media=live.request.media,
            skip_writing=live.request.skip_writing,
        )
        self.manager.fork(live.request, child)
        self.live[child.request_id] = Live(child, 0, live.computed, None, admitted_now=False)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), seconds=st.sampled_from([1.0, 6.0]))
    def pin(self, data: st.DataObject, seconds: float) -> None:
        self.manager.pin(self.requests[data.draw(st.sampled_from(sorted(self.requests)))], seconds)

    @rule(seconds=st.sampled_from([0.0, 0.5, 4.0]))
    def commit(self, seconds: float) -> None:
        self.manager.commit_step()
        for live in self.live.values():
            live.before, live.admitted_now = None, False
        self.begin(seconds)

    @rule(seconds=st.sampled_from([0.0, 0.5]))
    def rollback(self, seconds: float) -> None:
        self.forget_step(self.manager.rollback_step())
        self.begin(seconds)

    def begin(self, seconds: float) -> None:
        self.history.now += seconds
        self.manager.begin_step(self.history.now)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), preempted=st.booleans())
    def free(self, data: st.DataObject, preempted: bool) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.live))), preempted=preempted)

    def end(self, name: str, *, preempted: bool) -> None:
        live = self.live[name]
        computed = live.computed if live.before is None else live.before
        if not live.admitted_now and not live.request.skip_writing:
            self.history.left((live.request.namespace, text_of(live.request, computed)))
        withdrawn = self.manager.free(live.request)
        in_step = [name] if live.before is not None else []
        self.forget_step([*withdrawn, *in_step])
        self.live.pop(name, None)
        if preempted and not live.admitted_now:
            self.parted.append(live.request)

    @rule(chance=st.integers(0, 9))
    def reset(self, chance: int) -> None:
        if chance == 0:
            self.manager.reset_prefix_cache()

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def explain(self, data: st.DataObject) -> None:
        names = data.draw(st.lists(st.sampled_from(sorted(self.requests)), max_size=3, unique=True))
        reports = self.manager.explain_misses(self.requests[name] for name in names)
        names = [name for name in names if name in self.expected]
        assert [report.request_id for report in reports] == names
        for report in reports:
            self.expected[report.request_id].check(report)

    def teardown(self) -> None:
        if not hasattr(self, "manager"):
            return
        reports = self.manager.explain_misses(self.requests.values())
        assert {report.request_id for report in reports} == set(self.expected)
        for report in reports:
            self.expected[report.request_id].check(report)
        totals = dict[MissReason, int]()
        for report in reports:
            for reason, count in report.tokens.items():
                totals[reason] = totals.get(reason, 0) + count
        assert self.manager.miss_tokens == totals
        hits = sum(report.num_hit_tokens for report in reports)
        assert self.manager.stats.hits == hits

    @invariant()
    def laws_hold(self) -> None:
        if hasattr(self, "manager"):
            self.manager.check()


def miss_machine(index: PrefixIndexName, policy: PolicyName = "lru") -> type[MissMachine]:
    return type("Machine", (MissMachine,), {"index": index, "policy": policy})


@pytest.mark.parametrize("index", get_args(PrefixIndexName))
def test_the_reasons_agree_with_whole_token_lists(index: PrefixIndexName) -> None:
    run_state_machine_as_test(
        miss_machine(index),
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
