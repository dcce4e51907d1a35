"""What a replay's outcomes say, in sentences: what hits now, what could, and what to do about it.

Only what was replayed is compared with: a sweep that tried no other policy says nothing of policies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from headstart.cache.reasons import MissReason
from headstart.lab.replay.analysis import Result, hit_shares
from headstart.lab.replay.changes import capacity_change, difference
from headstart.lab.replay.outcome import OPTIMAL, Bounds, Rates
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


def headline(baseline: Result, results: Sequence[Result], bounds: Bounds | None) -> Headline:
    """The headline of a report in which ``baseline`` stands for the present state."""
    rates = baseline.rates
    if not rates.num_prompt_tokens:
        return Headline("No request was counted, so there is nothing to say.", [], [])
    reachable = _reachable(baseline, results, bounds)
    options = [option for _, option in _options(baseline, results)]
    sentences = [_now(baseline, rates, reachable)]
    if reachable is None:
        verdict = f"{percent(rates.token_hit_rate)} of prompt tokens hit"
    elif reachable < _HARDLY:
        verdict = "Hardly any prompt begins like an earlier one: caching has little to work on"
    elif reachable - rates.token_hit_rate >= _NOTABLE:
        lost = reachable - rates.token_hit_rate
        said = f"{points(lost).removeprefix('+')} of the {percent(reachable)} that could hit"
        is_eviction = _share_of(baseline, MissReason.EVICTED) >= lost / 2
        verdict = f"Evictions lose {said}" if is_eviction else f"{said} are lost"
        sentences += _eviction_advice(baseline, results)
    else:
        verdict = "The cache is big enough: more capacity would not help"
        sentences += _smaller(baseline, results)
    sentences += _by_reason(baseline)
    sentences += _flattery(baseline, rates)
    sentences += _trouble(baseline)
    return Headline(verdict, sentences, options)


def _reachable(baseline: Result, results: Sequence[Result], bounds: Bounds | None) -> float | None:
    """What a cache that never evicts would hit: replayed with the same setting, or else from the bounds.

    The bounds are of whole blocks; the radix index also hits parts of blocks, and what it says that it lost
    to evictions may be more.
    """
    for one in results:
        if one.setting == replace(baseline.setting, capacity_blocks=None):
            return one.rates.token_hit_rate
    if bounds is None:
        return None
    kept = baseline.rates.token_hit_rate + _share_of(baseline, MissReason.EVICTED)
    unbounded = bounds.unbounded.token_hit_rate
    return max(unbounded, kept) if baseline.setting.prefix_index == "radix" else unbounded


def _share_of(baseline: Result, reason: MissReason) -> float:
    """Of all prompt tokens."""
    tokens = baseline.rates.num_prompt_tokens
    return baseline.misses.get(reason, 0) / tokens if tokens else 0.0


def _now(baseline: Result, rates: Rates, reachable: float | None) -> str:
    setting = baseline.setting
    hits = f"hits {percent(rates.token_hit_rate)} of prompt tokens"
    size = f"of {count(setting.block_size)} tokens"
    if setting.capacity_blocks is None:
        return f"A cache that never evicts, in blocks {size}, {hits}."
    sentence = f"At {capacity(setting)} {size} {policy_name(setting.policy)} {hits}"
    if reachable is not None:
        sentence += f"; a cache that never evicts would hit {percent(reachable)}"
    return f"{sentence}."


def _options(baseline: Result, results: Sequence[Result]) -> list[tuple[Result, Option]]:
    """All that differs from the present state in one respect alone, the best first."""
    before = baseline.rates.token_hit_rate
    found = []
    for one in results:
        words = difference(baseline.setting, one.setting)
        if words is not None:
            found.append((one, Option(words, one.rates.token_hit_rate - before)))
    return sorted(found, key=lambda pair: -pair[1].gain)


def _eviction_advice(baseline: Result, results: Sequence[Result]) -> Iterator[str]:
    before = baseline.rates.token_hit_rate
    larger = list(_larger(baseline, results))
    others = [
        option
        for one, option in _options(baseline, results)
        if option.gain >= _WORTH_MENTION and one.setting.capacity_blocks == baseline.setting.capacity_blocks
    ]
    said = [
        f"{option.words}, gives {points(option.gain)}"
        for option in _steps(baseline.setting.capacity_blocks, before, larger)
    ]
    said += [f"{option.words} gives {points(option.gain)}" for option in others[:3]]
    if said:
        sentence = "; ".join(said)
        yield f"{sentence[0].upper()}{sentence[1:]}."
    if not larger:
        yield "No larger capacity was tried: sweep some to see what they would give."
    if not others and _has_others(baseline, results):
        yield "Nothing else that was tried at this capacity does better."
    best = next(
        (one for one in results if one.setting.policy == OPTIMAL and _same_cache(one, baseline)), None
    )
    if best is not None:
        rate = best.rates.token_hit_rate
        yield (
            f"No policy can hit more than {percent(rate)} at this capacity ({points(rate - before)}), and "
            "that takes knowing the future."
        )


def _larger(baseline: Result, results: Sequence[Result]) -> Iterator[Result]:
    """The same with more capacity, the smallest first."""
    own = baseline.setting.capacity_blocks or 0
    for one in sorted(results, key=lambda one: one.setting.capacity_blocks or 0):
        blocks = one.setting.capacity_blocks
        if (
            blocks is not None
            and blocks > own
            and replace(one.setting, capacity_blocks=own) == baseline.setting
        ):
            yield one


def _steps(own: int | None, before: float, larger: Sequence[Result]) -> Iterator[Option]:
    """The next capacity, and the smallest one that is within a point of the largest one's rate."""
    if not larger:
        return
    best = max(one.rates.token_hit_rate for one in larger)
    enough = next(one for one in larger if one.rates.token_hit_rate >= best - _NOTABLE)
    for one in [larger[0]] if enough is larger[0] else [larger[0], enough]:
        words = capacity_change(own, one.setting.capacity_blocks)
        if words is not None:
            yield Option(words, one.rates.token_hit_rate - before)


def _has_others(baseline: Result, results: Sequence[Result]) -> bool:
    own = baseline.setting
    return any(
        one.setting.policy != OPTIMAL and one.setting.capacity_blocks == own.capacity_blocks
        for one in results
        if one.setting != own
    )


def _same_cache(one: Result, other: Result) -> bool:
    here, there = one.setting, other.setting
    return (here.block_size, here.capacity_blocks, here.replicas) == (
        *(there.block_size, there.capacity_blocks, there.replicas),
    )


def _smaller(baseline: Result, results: Sequence[Result]) -> Iterator[str]:
    """How much less would do as well."""
    enough = baseline.rates.token_hit_rate - _NOTABLE
    own = baseline.setting.capacity_blocks
    same = [
        one.setting.capacity_blocks
        for one in results
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


def _by_reason(baseline: Result) -> Iterator[str]:
    """The largest causes besides evictions."""
    replicas = baseline.setting.replicas
    for reason in sorted(baseline.misses, key=lambda reason: -baseline.misses[reason]):
        share = _share_of(baseline, reason)
        if reason not in _ADVICE or share < _WORTH_SAYING:
            continue
        advice = _ADVICE[reason]
        if reason is MissReason.COLD and replicas > 1:
            advice = f"text that its replica, one of {count(replicas)}, never saw; another one may have it"
        yield f"{percent(share)} of tokens are {REASON_WORDS[reason]}: {advice}."


def _flattery(baseline: Result, rates: Rates) -> Iterator[str]:
    """Where the token rate looks better than what most requests get."""
    middle = median(hit_shares(baseline.outcome.served))
    if rates.token_hit_rate - middle >= 0.1:
        least = f"{percent(middle)} of their prompt or less" if middle else "nothing at all"
        yield (
            f"The token rate flatters: half of the requests hit {least}. "
            f"{percent(rates.request_full_hit_rate)} of requests hit all they could."
        )


def _trouble(baseline: Result) -> Iterator[str]:
    if baseline.outcome.refused:
        yield (
            f"{count(baseline.outcome.refused)} of the trace's requests do not fit into the cache at all: "
            "they hit nothing."
        )
    if baseline.outcome.num_preemptions:
        times = count(baseline.outcome.num_preemptions)
        yield f"{times} times a running request had to make room for another."
