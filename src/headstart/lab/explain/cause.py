"""Causes: what in the prompts costs hits, before anybody knows how much."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headstart.lab.explain.finding import Evidence, FindingKind
from headstart.lab.traces.trace import Trace


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that could be otherwise.

    ``change`` gives the traffic without it; what ``rewrites_bodies`` must come before what works on tokens.
    ``position`` is the token at which it usually does its harm: of two causes the later one costs nothing
    before the earlier one is gone.
    """

    kind: FindingKind
    what: str
    fix: str
    position: float
    change: Callable[[Trace], Trace]
    evidence: tuple[Evidence, ...] = ()
    rewrites_bodies: bool = False
