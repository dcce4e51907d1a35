"""Shared beginnings, or the ends of them, that are shorter than a block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headstart.lab.explain.finding import Candidate, FindingKind
from headstart.lab.explain.traffic.case import Case, Gain

_WON_BACK = 0.9


def find_short_prefix(case: Case) -> Iterator[Candidate]:
    """What the `hash` index loses because it shares whole blocks alone.

    The `radix` index shares to the symbol: what its hit has beyond a whole number of blocks is lost.  The
    same hits say what smaller blocks would lose.
    """
    if case.setting.prefix_index != "hash" or case.block_symbols == 1:
        return
    radix = replace(case.setting, prefix_index="radix")
    size = case.setting.block_size
    served = {one.number for one in case.outcome.served}
    hits = {
        one.number: one.num_hit_tokens
        for one in case.replay(case.trace, radix).served
        if one.number in served
    }
    lost = Gain({number: hit % size for number, hit in hits.items()})
    if not case.is_worth(lost.num_tokens):
        return
    num_nothing = sum(0 < hit < size for hit in hits.values())
    what = (
        f"the hash index shares whole blocks of {size:,} tokens: {lost.num_tokens:,} tokens "
        f"({case.share(lost.num_tokens)} of all) equal what is cached and are lost to the block boundary"
    )
    if num_nothing:
        what += f"; in {num_nothing:,} requests the whole shared beginning is shorter than a block"
    fix = "use the radix index (--prefix-index radix), which shares to the token"
    smaller, left = _smaller(size, case.trace.tokens_per_symbol, list(hits.values()), lost.num_tokens)
    if smaller < size:
        fix += (
            f"; where an engine shares whole blocks alone, blocks of {smaller:,} tokens would win back "
            f"{1 - left / lost.num_tokens:.0%} of it"
        )
    yield case.candidate(FindingKind.SHORT_PREFIX, what, f"{fix}.", lost, setting=radix)


def _smaller(size: int, least: int, hits: list[int], lost: int) -> tuple[int, int]:
    """The largest half, quarter … of a block that wins back most, and what it still loses."""
    left = lost
    while size % 2 == 0 and (size // 2) % least == 0 and left > (1 - _WON_BACK) * lost:
        size //= 2
        left = sum(hit % size for hit in hits)
    return size, left
