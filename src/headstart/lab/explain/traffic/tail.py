"""What is asked once and never again: no cache can hit it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headstart.cache import MissReason
from headstart.lab.explain.finding import Candidate, Evidence, FindingKind
from headstart.lab.explain.traffic.case import Case, Gain
from headstart.lab.traces.paths import number_blocks

_LEAST_SHARE = 0.05
"""Every prompt ends with something new; only much of it is worth a word."""


def find_cold_tail(case: Case) -> Iterator[Candidate]:
    """Tokens behind the last block that any other prompt has, before or after, in whatever namespace.

    Only those that missed as `cold`: the same text may come back behind another beginning, and that is
    another finding.
    """
    paths = number_blocks(case.trace, case.block_symbols, namespaces=False)
    uses = paths.uses()
    size = case.setting.block_size
    once: dict[int, int] = {}
    num_alone = 0
    for one in case.outcome.served:
        num_shared = sum(uses[number] > 1 for number in paths.requests[one.number])
        cold = min(one.num_prompt_tokens - num_shared * size, one.misses.get(MissReason.COLD, 0))
        if cold > 0:
            once[one.number] = cold
            num_alone += num_shared == 0
    lost = Gain(once)
    if lost.num_tokens < max(_LEAST_SHARE, case.least_share) * case.num_tokens or not once:
        return
    share = f"{lost.num_tokens:,} tokens ({case.share(lost.num_tokens)} of all) come once and never again"
    what = f"the ends of the prompts, {share}"
    if num_alone:
        num_requests = len(case.outcome.served)
        rest = "with the ends of the rest, " if num_alone < num_requests else ""
        what = (
            f"{num_alone:,} of {num_requests:,} prompts ({num_alone / num_requests:.1%}) share no block of "
            f"{size:,} tokens with any other; {rest}{share}"
        )
    fix = (
        "nothing to win: no capacity, policy or block size can hit what does not come back. The other "
        f"{case.share(case.num_tokens - lost.num_tokens)} of the tokens bound the hit rate."
    )
    found = case.candidate(FindingKind.COLD_TAIL, what, fix, lost)
    lengths = {one.number: one.num_prompt_tokens for one in case.outcome.served}
    longest = sorted(once, key=lambda number: (-once[number], number))[:2]
    ends = [(case.trace.requests[number], lengths[number] - once[number]) for number in longest]
    evidence = tuple(Evidence(request.file, request.line, begin) for request, begin in ends)
    yield replace(found, finding=replace(found.finding, evidence=evidence))
