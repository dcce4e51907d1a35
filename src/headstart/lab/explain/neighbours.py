"""For each prompt the earlier one that has most in common with it, wherever that stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from headstart.lab.explain.runs import grams, tokens_of

_WINDOW = 16
_MOST_CANDIDATES = 6


def neighbours(runs: Iterable[bytes], wanted: set[int]) -> Iterator[tuple[int, int]]:
    """Pairs (number, number of the earlier prompt) for the ``wanted`` prompts that have one.

    What shares the most anchors is taken, the latest of equals.  Only the latest prompt with an anchor is
    looked at, so that time stays linear.
    """
    latest: dict[int, int] = {}
    anchors: list[frozenset[int]] = []
    for number, run in enumerate(runs):
        own = _anchors(run)
        if number in wanted:
            votes = Counter(latest[anchor] for anchor in own if anchor in latest)
            candidates = sorted(votes.most_common(_MOST_CANDIDATES))
            if candidates:
                yield number, max(candidates, key=lambda one: (len(own & anchors[one[0]]), one[0]))[0]
        anchors.append(own)
        latest.update(dict.fromkeys(own, number))


def _anchors(run: bytes) -> frozenset[int]:
    """The least gram of each 16 in a row (winnowing): any 31 equal tokens have one of them in common."""
    names = grams(tokens_of(run))
    if len(names) < _WINDOW:
        return frozenset(names[:1].tolist())
    return frozenset(np.lib.stride_tricks.sliding_window_view(names, _WINDOW).min(axis=1).tolist())
