"""The order of a prompt's parts and what it costs, measured on the cache core.

A layout is a prompt in segments: some are the same in each request, some vary.  Requests of one layout are
replayed one after the other, without eviction: what is lost is lost by the order alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from headstart.cache.tokens import run_of
from headstart.lab.replay.outcome import Setting
from headstart.lab.replay.replay import replay
from headstart.lab.traces.trace import Trace, TraceFormat, TraceRequest


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a prompt, of so many tokens; one that ``varies`` is another text in each request."""

    name: str
    num_tokens: int
    varies: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """A prompt's segments in order."""

    name: str
    segments: tuple[Segment, ...]

    @property
    def num_tokens(self) -> int:
        """Of one prompt."""
        return sum(segment.num_tokens for segment in self.segments)

    @property
    def num_stable_tokens(self) -> int:
        """Of what is the same in each request: the most that can be a hit."""
        return sum(segment.num_tokens for segment in self.segments if not segment.varies)


@dataclass(frozen=True, slots=True)
class LayoutOutcome:
    """What each request after the first one hits, and ``num_lost``: stable tokens that it computes again."""

    layout: Layout
    setting: Setting
    num_requests: int
    num_hit: int
    token_hit_rate: float

    @property
    def num_lost(self) -> int:
        """Tokens that are the same in each request, and computed in each."""
        return self.layout.num_stable_tokens - self.num_hit


def split_system_prompt(num_tokens: int = 1024, variable_at: int = 500) -> tuple[Layout, Layout]:
    """The worked example: a system prompt with a variable in its middle, and the same one moved behind it."""
    variable, question = Segment("variable", 1, varies=True), Segment("question", 32, varies=True)
    halves = (Segment("system", variable_at), Segment("system, continued", num_tokens - variable_at))
    bad = Layout(f"variable at {variable_at}", (halves[0], variable, halves[1], question))
    return bad, Layout("variable behind", (*halves, variable, question))


def typical_prompt() -> tuple[Layout, Layout]:
    """A prompt with all that prompts have, as it often grows and as it should be."""
    clock, user = Segment("clock", 12, varies=True), Segment("user", 20, varies=True)
    documents, question = Segment("documents", 1200, varies=True), Segment("question", 40, varies=True)
    instructions, tools, examples = (
        Segment("instructions", 600),
        Segment("tools", 450),
        Segment("examples", 800),
    )
    bad = Layout("as it grew", (clock, user, instructions, documents, tools, examples, question))
    return bad, Layout("stable first", (tools, instructions, examples, user, documents, clock, question))


def measure(layout: Layout, setting: Setting | None = None, num_requests: int = 20) -> LayoutOutcome:
    """Replays so many requests of a layout; the first one fills the cache and does not count."""
    chosen = setting or Setting()
    outcome = replay(trace_of(layout, num_requests), chosen, warmup=1)
    hits = {served.num_hit_tokens for served in outcome.served}
    [num_hit] = hits  # they differ in what varies alone
    return LayoutOutcome(layout, chosen, num_requests, num_hit, outcome.rates.token_hit_rate)


def trace_of(layout: Layout, num_requests: int) -> Trace:
    """Requests that have a layout's stable tokens in common, and no others."""
    requests = []
    fresh = count(layout.num_tokens)
    for _ in range(num_requests):
        ids = list(_ids(layout.segments, fresh))
        requests.append(TraceRequest(bytes(run_of(ids)), len(ids)))
    return Trace(layout.name, TraceFormat.TOKENS, requests)


def _ids(segments: Sequence[Segment], fresh: Iterator[int]) -> Iterator[int]:
    """Token ids: a stable segment's are its own, those of others were never there before."""
    at = 0
    for segment in segments:
        for number in range(segment.num_tokens):
            yield next(fresh) if segment.varies else at + number
        at += segment.num_tokens
