"""What was measured, as figures: medians, percentiles, and what a reader should doubt about them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headstart.lab.load.scenarios import Kind, Round, Scenario
from headstart.lab.load.timing import Timing


@dataclass(frozen=True, slots=True)
class Spread:
    """The distribution of a few values.  Percentiles are interpolated linearly between ranks."""

    minimum: float
    median: float
    p95: float
    p99: float
    maximum: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """The spread of ``values``, of which there must be one or more."""
        ordered = sorted(values)
        if len(ordered) == 1:
            return cls(*ordered * 5)
        percentiles = statistics.quantiles(ordered, n=100, method="inclusive")
        return cls(ordered[0], statistics.median(ordered), percentiles[94], percentiles[98], ordered[-1])

    @classmethod
    def of_known(cls, values: Iterable[float | None]) -> Spread | None:
        """The spread of the values that are known; ``None`` if none is."""
        known = [value for value in values if value is not None]
        return cls.of(known) if known else None


@dataclass(frozen=True, slots=True)
class Group:
    """The figures of all rounds of one kind.

    ``ttft_ms`` is over requests, ``itl_ms`` over the gaps between a stream's events.  A round lasts
    ``seconds`` from its first request to its last token and brings ``tokens_per_second`` output
    tokens; ``decode_tokens_per_second`` counts only what comes while all its streams decode, and
    ``stream_tokens_per_second`` what comes after a stream's first token.  Prompt and cached tokens are
    the server's words, ``None`` where it says nothing.
    """

    rounds: int
    requests: int
    ttft_ms: Spread
    itl_ms: Spread | None
    seconds: Spread
    tokens_per_second: Spread
    decode_tokens_per_second: Spread | None
    stream_tokens_per_second: Spread | None
    prompt_tokens: Spread | None
    cached_tokens: Spread | None
    output_tokens: Spread

    @classmethod
    def of(cls, rounds: Sequence[Round]) -> Group:
        """The figures of ``rounds``, of which there must be one or more."""
        timings = [timing for each in rounds for timing in each.timings]
        gaps = [1000 * gap for timing in timings for gap in timing.gaps]
        return cls(
            rounds=len(rounds),
            requests=len(timings),
            ttft_ms=Spread.of(1000 * timing.first_token for timing in timings),
            itl_ms=Spread.of(gaps) if gaps else None,
            seconds=Spread.of(_seconds(each) for each in rounds),
            tokens_per_second=Spread.of(_tokens(each) / _seconds(each) for each in rounds),
            decode_tokens_per_second=Spread.of_known(_decode_rate(each) for each in rounds),
            stream_tokens_per_second=Spread.of_known(timing.rate for timing in timings),
            prompt_tokens=Spread.of_known(timing.usage.prompt_tokens for timing in timings),
            cached_tokens=Spread.of_known(timing.usage.cached_tokens for timing in timings),
            output_tokens=Spread.of(timing.num_tokens for timing in timings),
        )


def _tokens(each: Round) -> int:
    return sum(timing.num_tokens for timing in each.timings)


def _seconds(each: Round) -> float:
    return max(timing.end for timing in each.timings) - min(timing.sent for timing in each.timings)


def _decode_rate(each: Round) -> float | None:
    """Tokens per second while all streams decode, ``None`` if they never do.

    That is from when the last of them has its first token until the first of them ends.
    """
    start = max(timing.arrivals[0] for timing in each.timings)
    end = min(timing.end for timing in each.timings)
    tokens = sum(timing.tokens_between(start, end) for timing in each.timings)
    return tokens / (end - start) if end > start else None


def summarise(rounds: Iterable[Round]) -> dict[Kind, Group]:
    """The figures of each kind of round, in the order of first appearance; warm-ups are left out."""
    kinds: dict[Kind, list[Round]] = {}
    for each in rounds:
        if not each.is_warmup:
            kinds.setdefault(each.kind, []).append(each)
    return {kind: Group.of(chosen) for kind, chosen in kinds.items()}


def doubts(scenario: Scenario, rounds: Sequence[Round], *, shared_tokens: int) -> list[str]:
    """What makes the figures mean something else than they seem to; a sentence each.

    A warm prompt shares ``shared_tokens`` with what went before it.
    """
    measured = [(each.kind, timing) for each in rounds if not each.is_warmup for timing in each.timings]
    timings = [timing for _, timing in measured]
    found = [_doubt_length(timings), _doubt_output(timings), _doubt_events(timings)]
    if scenario is Scenario.DECODE:
        found.append(_doubt_together(rounds))
    if scenario is not Scenario.SHARED_PREFIX:  # where a cold stream rightly hits what its twins computed
        found.append(_doubt_cold([timing for kind, timing in measured if kind != "warm"]))
    if shared_tokens:
        found.append(_doubt_warm([timing for kind, timing in measured if kind == "warm"]))
    return [sentence for sentence in found if sentence]


def _doubt_length(timings: Sequence[Timing]) -> str | None:
    for timing in timings:
        counted = timing.usage.prompt_tokens
        if counted is not None and counted != timing.num_sent:
            return (
                f"The server counts {counted:,} prompt tokens where {timing.num_sent:,} were sent: "
                "it changes the prompt (adds a beginning-of-text token, perhaps)."
            )
    return None


def _doubt_output(timings: Sequence[Timing]) -> str | None:
    early = sum(timing.num_tokens < timing.num_asked for timing in timings)
    if early:
        return f"{early} of {len(timings)} streams ended before the {timings[0].num_asked} tokens asked for."
    return None


def _doubt_events(timings: Sequence[Timing]) -> str | None:
    if any(timing.num_tokens > len(timing.arrivals) + 1 for timing in timings):
        return (
            "Some events bring more than one token (the server packs them, or waits for the rest of a "
            "character), so gaps between events are longer than a token's."
        )
    return None


def _doubt_together(rounds: Sequence[Round]) -> str | None:
    if any(len(each.timings) > 1 and _decode_rate(each) is None for each in rounds if not each.is_warmup):
        return "In some rounds a stream ended before all had begun: ask for more output tokens."
    return None


def _doubt_cold(cold: Sequence[Timing]) -> str | None:
    """A few tokens may always be equal (a server's own first token); a twentieth is no accident."""
    for timing in cold:
        cached = timing.usage.cached_tokens
        if cached and timing.num_sent and cached > timing.num_sent / 20:
            return (
                f"The server found {cached:,} tokens of a cold prompt in its cache: it saw this seed "
                "before; choose another, or reset its cache."
            )
    return None


def _doubt_warm(warm: Sequence[Timing]) -> str | None:
    if warm and all(timing.usage.cached_tokens == 0 for timing in warm):
        return "The server found nothing of the warm prompts in its cache: is prefix caching on?"
    return None
