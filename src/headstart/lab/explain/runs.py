"""Runs of tokens: where two of them part and meet again, and where one lies in another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headstart.cache.tokens import TOKEN_BYTES

GRAM = 16
"""So many tokens in a row are taken for a place that can be found again."""
SHORTEST_RUN = 32
"""Fewer equal tokens in a row, behind a difference, are chance; the reason ``diverged`` begins here, too."""
_MOST_DIFFERENCES = 24
_FACTORS = tuple(np.uint64(factor) for factor in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))
_LEVELS = (*_FACTORS, np.uint64(0xD6E8FEB86659FD93))

Tokens = npt.NDArray[np.int32]
Grams = npt.NDArray[np.uint64]


def tokens_of(run: bytes) -> Tokens:
    """The tokens of a run, without a copy."""
    tokens: Tokens = np.frombuffer(run, "<i4")
    return tokens


def grams(tokens: Tokens) -> Grams:
    """A hash of each `GRAM` tokens in a row, at every position; the same tokens have the same one."""
    if len(tokens) < GRAM:
        return np.empty(0, np.uint64)
    values = tokens.astype(np.uint64) + np.uint64(1)
    for level, factor in enumerate(_LEVELS):
        step = 1 << level
        values = values[:-step] * factor + values[step:]
    mixed: Grams = (values ^ (values >> np.uint64(31))) * _FACTORS[0]
    return mixed


def num_common(a: Tokens, b: Tokens) -> int:
    """How many leading tokens are equal."""
    size = min(len(a), len(b))
    differs = a[:size] != b[:size]
    return int(differs.argmax()) if differs.any() else size


def find_run(run: bytes, part: bytes, start: int = 0) -> int | None:
    """At which token of ``run`` a part of it begins, from token ``start`` on; None if it is not there."""
    at = run.find(part, start * TOKEN_BYTES)
    while at >= 0 and at % TOKEN_BYTES:
        at = run.find(part, at + 1)
    return at // TOKEN_BYTES if at >= 0 else None


@dataclass(frozen=True, slots=True)
class Difference:
    """``a[start:stop]`` stands where ``b[other_start:other_stop]`` does; behind it ``run`` tokens are equal."""

    start: int
    stop: int
    other_start: int
    other_stop: int
    run: int


def differences(a: Tokens, b: Tokens) -> list[Difference]:
    """Where two prompts differ though their text goes on alike, in order; what never meets again is left out.

    Of the places where they may meet again the one that skips least is taken.
    """
    grams_a, grams_b = grams(a), grams(b)
    start = other_start = num_common(a, b)
    found: list[Difference] = []
    while len(found) < _MOST_DIFFERENCES:
        meeting = _meeting(grams_a[start:], grams_b[other_start:])
        if meeting is None:
            break
        stop, other_stop = start + meeting[0], other_start + meeting[1]
        run = num_common(a[stop:], b[other_stop:])
        back = num_common(a[start:stop][::-1], b[other_start:other_stop][::-1])
        found.append(Difference(start, stop - back, other_start, other_stop - back, run + back))
        start, other_start = stop + run, other_stop + run
    return found


def _meeting(a: Grams, b: Grams) -> tuple[int, int] | None:
    """The first place in ``a`` that is in ``b``, or the first in ``b`` that is in ``a``: what is nearer."""
    in_b = np.isin(a, b)
    if not in_b.any():
        return None
    first = int(in_b.argmax())
    one = (first, int((b == a[first]).argmax()))
    second = int(np.isin(b, a).argmax())
    other = (int((a == b[second]).argmax()), second)
    return min(one, other, key=sum)
