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
    """``a[start:stop]`` is where ``b[other_start:other_stop]`` is; behind it ``run`` tokens are equal."""

    start: int
    stop: int
    other_start: int
    other_stop: int
    run: int


def differences(a: Tokens, b: Tokens) -> list[Difference]:
    """Where two prompts differ though their text goes on alike, in order; what never meets again is left out.

    Of the places where they may meet again the one that skips least is taken.
    """
    start = other_start = num_common(a, b)
    grams_a, grams_b = grams(a[start:]), grams(b[other_start:])
    meetings = _Meetings(grams_a, grams_b, start)
    found: list[Difference] = []
    while len(found) < _MOST_DIFFERENCES:
        meeting = meetings.next(start, other_start)
        if meeting is None:
            break
        stop, other_stop = meeting
        run = num_common(a[stop:], b[other_stop:])
        back = num_common(a[start:stop][::-1], b[other_start:other_stop][::-1])
        found.append(Difference(start, stop - back, other_start, other_stop - back, run + back))
        start, other_start = stop + run, other_stop + run
    return found


class _Meetings:
    """Where two texts have the same gram; both begin at ``base``, in their own tokens."""

    def __init__(self, a: Grams, b: Grams, base: int) -> None:
        self._a, self._b, self._base = a, b, base
        self._ends_in_b, self._ends_in_a = _last_ends(a, b), _last_ends(b, a)

    def next(self, start: int, other_start: int) -> tuple[int, int] | None:
        """Where the two meet next, from these tokens on; None if they do not."""
        at, other_at = start - self._base, other_start - self._base
        in_b = self._ends_in_b[at:] > other_at
        if not in_b.any():
            return None
        first = at + int(in_b.argmax())
        second = other_at + int((self._ends_in_a[other_at:] > at).argmax())
        one = (first, other_at + int((self._b[other_at:] == self._a[first]).argmax()))
        other = (at + int((self._a[at:] == self._b[second]).argmax()), second)
        nearer = min(one, other, key=sum)
        return nearer[0] + self._base, nearer[1] + self._base


def _last_ends(a: Grams, b: Grams) -> npt.NDArray[np.intp]:
    """For each gram of ``a`` one more than its last place in ``b``; 0 if it is not there."""
    if not len(b):
        return np.zeros(len(a), np.intp)
    order = np.argsort(b, kind="stable")
    places = np.searchsorted(b[order], a, side="right")
    last = order[np.maximum(places, 1) - 1]
    ends: npt.NDArray[np.intp] = np.where(b[last] == a, last + 1, 0)
    return ends
