"""Findings in what prompts say: everything that needs their tokens or their text."""

from __future__ import annotations

from collections.abc import Callable

from headstart.cache.reasons import MissReason
from headstart.lab.explain.answers import find_dropped, find_respelled, is_dropped_reasoning
from headstart.lab.explain.cause import Cause
from headstart.lab.explain.excerpts import Excerpts
from headstart.lab.explain.finding import Candidate
from headstart.lab.explain.neighbours import neighbours
from headstart.lab.explain.price import priced, without
from headstart.lab.explain.reach import reach
from headstart.lab.explain.retokenise import Retokeniser
from headstart.lab.explain.runs import SHORTEST_RUN, differences, tokens_of
from headstart.lab.explain.sites import Pair
from headstart.lab.explain.spellings import find_spellings
from headstart.lab.explain.varied import find_varied
from headstart.lab.replay.outcome import Outcome
from headstart.lab.traces.texts import PromptReader
from headstart.lab.traces.trace import Trace

LEAST_SHARE = 0.005
"""What costs less than half a percent of the prompt tokens is not worth a sentence."""


def find_content(
    trace: Trace,
    outcome: Outcome,
    reader: PromptReader | None = None,
    *,
    privacy: bool = False,
    warmup: int = 0,
    advance: Callable[[], None] = lambda: None,
) -> list[Candidate]:
    """What in the prompts costs hits, each with its price; nothing for a trace of hash ids.

    Without a ``reader`` there is no text: what varies is found, and not named.  ``advance`` is called now
    and then.
    """
    least = max(1, int(LEAST_SHARE * trace.num_prompt_tokens))
    if trace.tokens_per_symbol != 1 or not trace.requests:
        return []
    if sum(one.misses.get(MissReason.DIVERGED, 0) for one in outcome.served) < least and not _has_answers(
        trace
    ):
        return []
    excerpts = Excerpts(reader, privacy=privacy)
    causes: list[Cause] = []
    if reader is not None:
        causes += find_spellings(trace, Retokeniser(reader), excerpts)
        causes += find_respelled(trace, excerpts)
    advance()
    # What is left once all is spelled alike: another order, say, is not also a variable.
    alike = without(trace, causes)
    pairs = differing_pairs(alike)
    dropped = [pair for pair in pairs if is_dropped_reasoning(alike, pair, excerpts)]
    advance()
    causes += find_dropped(alike, dropped, excerpts)
    causes += find_varied(alike, [pair for pair in pairs if pair not in dropped], excerpts, least)
    return priced(trace, causes, warmup=warmup, least_tokens=least, advance=advance)


def differing_pairs(trace: Trace) -> list[Pair]:
    """Where prompts part from the earlier one that they have most in common with, though it goes on alike."""
    reached = reach(trace)
    wanted = {
        number
        for number, request in enumerate(trace.requests)
        if request.num_symbols - reached[number].num_tokens >= SHORTEST_RUN
    }
    runs = [request.symbols for request in trace.requests]
    return [
        Pair(number, other, difference)
        for number, other in neighbours(runs, wanted)
        for difference in differences(tokens_of(runs[number]), tokens_of(runs[other]))
        if difference.run >= SHORTEST_RUN and difference.stop + difference.run > reached[number].num_tokens
    ]


def _has_answers(trace: Trace) -> bool:
    return any(request.output is not None for request in trace.requests)
