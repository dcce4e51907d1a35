"""What a replay's outcomes say, in sentences: what hits now, what could, and what to do about it.

Only what was replayed is compared with: a sweep that tried no other policy says nothing of policies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from headstart.cache.reasons import MissReason
from headstart.lab.replay.analysis import hit_shares
from headstart.lab.replay.outcome import OPTIMAL, Bounds, Outcome, Rates
from headstart.lab.replay.wording import REASON_WORDS, capacity, count, percent, points, policy_name

_HARDLY = 0.05
"""Below this hit rate of a cache that never evicts, caching has nothing to work on."""
_NOTABLE = 0.01
"""A difference of rates that is worth a change: a point."""
_WORTH_MENTION = 0.0005
"""A difference that is not rounded to nothing."""


@dataclass(frozen=True, slots=True)
class Option:
    """Another setting that was tried, and how many points of the token rate it gives."""

    words: str
    gain: float


@dataclass(frozen=True, slots=True)
class Headline:
    """``verdict`` is one line, ``sentences`` go below it.  ``options`` are changes, the best first."""

    verdict: str
    sentences: list[str]
    options: list[Option]


def headline(baseline: Outcome, outcomes: Sequence[Outcome], bounds: Bounds | None) -> Headline:
    """The headline of a report in which ``baseline`` stands for the present state."""
    rates = baseline.rates
    if not rates.num_prompt_tokens:
        return Headline("No request was counted, so there is nothing to say.", [], [])
    reachable = _reachable(baseline, outcomes, bounds)
    options = [option for _, option in _options(baseline, outcomes)]
    sentences = [_now(baseline, rates, reachable)]
    if reachable is None:
        verdict = f"{percent(rates.token_hit_rate)} of prompt tokens hit"
    elif reachable < _HARDLY:
        verdict = "Hardly any prompt begins like an earlier one: caching has little to work on"
    elif reachable - rates.token_hit_rate >= _NOTABLE:
        lost = points(reachable - rates.token_hit_rate).removeprefix("+")
        verdict = f"Evictions lose {lost} of the {percent(reachable)} that could hit"
        sentences += _eviction_advice(baseline, outcomes)
    else:
        verdict = "The cache is big enough: more capacity would not help"
        sentences += _smaller(baseline, outcomes)
    sentences += _by_reason(baseline)
    sentences += _flattery(baseline, rates)
    sentences += _trouble(baseline)
    return Headline(verdict, sentences, options)


def _reachable(baseline: Outcome, outcomes: Sequence[Outcome], bounds: Bounds | None) -> float | None:
    """What a cache that never evicts would hit: replayed with the same setting, or else from the bounds."""
    for one in outcomes:
        if one.setting == replace(baseline.setting, capacity_blocks=None):
            return one.rates.token_hit_rate
    return bounds.unbounded.token_hit_rate if bounds is not None else None


def _now(baseline: Outcome, rates: Rates, reachable: float | None) -> str:
    setting = baseline.setting
    hits = f"hits {percent(rates.token_hit_rate)} of prompt tokens"
    size = f"of {count(setting.block_size)} tokens"
    if setting.capacity_blocks is None:
        return f"A cache that never evicts, in blocks {size}, {hits}."
    sentence = f"At {capacity(setting)} {size} {policy_name(setting.policy)} {hits}"
    if reachable is not None:
        sentence += f"; a cache that never evicts would hit {percent(reachable)}"
    return f"{sentence}."


def _options(baseline: Outcome, outcomes: Sequence[Outcome]) -> list[tuple[Outcome, Option]]:
    """All that differs from the present state in one respect alone, the best first."""
    before = baseline.rates.token_hit_rate
    found = []
    for one in outcomes:
        words = _difference(baseline, one)
        if words is not None:
            found.append((one, Option(words, one.rates.token_hit_rate - before)))
    return sorted(found, key=lambda pair: -pair[1].gain)


def _difference(baseline: Outcome, other: Outcome) -> str | None:
    """What must be changed to get there; None where it is more than one thing, or nothing."""
    here, there = baseline.setting, other.setting
    if there.policy == OPTIMAL or here == there:
        return None
    if there == replace(here, capacity_blocks=there.capacity_blocks):
        return _capacity_change(here.capacity_blocks, there.capacity_blocks)
    if there == replace(here, block_size=there.block_size, capacity_blocks=there.capacity_blocks):
        return f"blocks of {count(there.block_size)} tokens" if _as_large(baseline, other) else None
    at_once, replicas = there.max_num_seqs, there.replicas
    for alike, words in (
        (replace(here, policy=there.policy), f"evicting by {policy_name(there.policy)}"),
        (replace(here, prefix_index=there.prefix_index), f"the {there.prefix_index} index"),
        (
            replace(here, max_num_seqs=at_once),
            "one request at a time" if at_once is None else f"{count(at_once)} requests at once",
        ),
        (replace(here, replicas=replicas), "one replica" if replicas == 1 else f"{count(replicas)} replicas"),
        (replace(here, routing=there.routing), f"routing by {there.routing}"),
    ):
        if there == alike:
            return words
    return None


def _as_large(one: Outcome, other: Outcome) -> bool:
    """Whether both hold equally many tokens: only then does a block size compare with another."""
    blocks, others = one.setting.capacity_blocks, other.setting.capacity_blocks
    if blocks is None or others is None:
        return blocks is others
    return blocks * one.setting.block_size == others * other.setting.block_size


def _capacity_change(here: int | None, there: int | None) -> str | None:
    if here is None:
        return None if there is None else f"no more than {count(there)} blocks"
    if there is None:
        return "never evicting"
    times = there / here
    known = {2: "doubling the capacity", 0.5: "half the capacity"}
    return known.get(times, f"{times:.3g} times the capacity") + f", to {count(there)} blocks"


def _eviction_advice(baseline: Outcome, outcomes: Sequence[Outcome]) -> Iterator[str]:
    before = baseline.rates.token_hit_rate
    larger = list(_larger(baseline, outcomes))
    others = [
        option
        for one, option in _options(baseline, outcomes)
        if option.gain >= _WORTH_MENTION and one.setting.capacity_blocks == baseline.setting.capacity_blocks
    ]
    said = [f"{option.words}, gives {points(option.gain)}" for option in _steps(baseline.setting.capacity_blocks, before, larger)]
    said += [f"{option.words} {points(option.gain)}" for option in others[:3]]
    if said:
        sentence = "; ".join(said)
        yield f"{sentence[0].upper()}{sentence[1:]}."
    if not larger:
        yield "No larger capacity was tried: sweep some to see what they would give."
    if not others and _has_others(baseline, outcomes):
        yield "Nothing else that was tried at this capacity does better."
    best = next(
        (one for one in outcomes if one.setting.policy == OPTIMAL and _same_cache(one, baseline)), None
    )
    if best is not None:
        rate = best.rates.token_hit_rate
        yield (
            f"No policy can hit more than {percent(rate)} at this capacity ({points(rate - before)}), and that "
            "takes knowing the future."
        )


def _larger(baseline: Outcome, outcomes: Sequence[Outcome]) -> Iterator[Outcome]:
    """The same with more capacity, the smallest first."""
    own = baseline.setting.capacity_blocks or 0
    for one in sorted(outcomes, key=lambda one: one.setting.capacity_blocks or 0):
        blocks = one.setting.capacity_blocks
        if blocks is not None and blocks > own and replace(one.setting, capacity_blocks=own) == baseline.setting:
            yield one


def _steps(own: int | None, before: float, larger: Sequence[Outcome]) -> Iterator[Option]:
    """The next capacity, and the smallest one that is within a point of the largest one's rate."""
    if not larger:
        return
    best = max(one.rates.token_hit_rate for one in larger)
    enough = next(one for one in larger if one.rates.token_hit_rate >= best - _NOTABLE)
    for one in [larger[0]] if enough is larger[0] else [larger[0], enough]:
        words = _capacity_change(own, one.setting.capacity_blocks)
        if words is not None:
            yield Option(words, one.rates.token_hit_rate - before)


def _has_others(baseline: Outcome, outcomes: Sequence[Outcome]) -> bool:
    own = baseline.setting
    return any(
        one.setting.policy != OPTIMAL and one.setting.capacity_blocks == own.capacity_blocks
        for one in outcomes
        if one.setting != own
    )


def _same_cache(one: Outcome, other: Outcome) -> bool:
    here, there = one.setting, other.setting
    return (here.block_size, here.capacity_blocks, here.replicas) == (
        *(there.block_size, there.capacity_blocks, there.replicas),
    )


def _smaller(baseline: Outcome, outcomes: Sequence[Outcome]) -> Iterator[str]:
    """How much less would do as well."""
    enough = baseline.rates.token_hit_rate - _NOTABLE
    own = baseline.setting.capacity_blocks
    same = [
        one.setting.capacity_blocks
        for one in outcomes
        if one.setting.capacity_blocks is not None
        and replace(one.setting, capacity_blocks=own) == baseline.setting
        and one.rates.token_hit_rate >= enough
    ]
    if same and (own is None or min(same) < own):
        yield f"{count(min(same))} blocks would already do, within a point."


_ADVICE = {
    MissReason.COLD: "text that was never seen before, which no cache can have",
    MissReason.DIVERGED: "text that was seen behind another beginning: move what varies to the end of the "
    "prompt (`headstart explain` says what and where)",
    MissReason.UNALIGNED: "equal text lost to the block boundary: smaller blocks or the radix index help",
    MissReason.IN_FLIGHT: "being computed by another request at the same moment",
    MissReason.ISOLATED: "cached in another namespace (salt or adapter), where it must not be shared",
    MissReason.SKIPPED: "of requests that do not read the cache",
    MissReason.LAST_TOKEN: "the end of a prompt, which must be computed: a block of it where blocks are all "
    "that is known",
}
_WORTH_SAYING = 0.05


def _by_reason(baseline: Outcome) -> Iterator[str]:
    """The largest causes besides evictions."""
    tokens = baseline.rates.num_prompt_tokens
    misses = sorted(baseline.misses.items(), key=lambda item: -item[1])
    for reason, missed in misses:
        if reason in _ADVICE and missed / tokens >= _WORTH_SAYING:
            yield f"{percent(missed / tokens)} of tokens are {REASON_WORDS[reason]}: {_ADVICE[reason]}."


def _flattery(baseline: Outcome, rates: Rates) -> Iterator[str]:
    """Where the token rate looks better than what most requests get."""
    middle = median(hit_shares(baseline.served))
    if rates.token_hit_rate - middle >= 0.1:
        least = f"{percent(middle)} of their prompt or less" if middle else "nothing at all"
        yield (
            f"The token rate flatters: half of the requests hit {least}. "
            f"{percent(rates.request_full_hit_rate)} of requests hit all they could."
        )


def _trouble(baseline: Outcome) -> Iterator[str]:
    if baseline.refused:
        yield (
            f"{count(baseline.refused)} of the trace's requests do not fit into the cache at all and hit "
            "nothing."
        )
    if baseline.num_preemptions:
        yield f"{count(baseline.num_preemptions)} times a running request had to make room for another."
