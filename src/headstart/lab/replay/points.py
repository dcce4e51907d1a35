"""The points of a sweep: every setting that is asked for, once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from headstart.config import PolicyName, PrefixIndexName
from headstart.errors import ConfigError
from headstart.lab.replay.capacity import Capacity, distinct
from headstart.lab.replay.outcome import OPTIMAL, Bounds, Setting

POLICIES = (*get_args(PolicyName), OPTIMAL)
INDEXES = get_args(PrefixIndexName)
ALL = "all"


@dataclass(frozen=True, slots=True)
class Axes:
    """What a sweep varies; each point is one of each.

    ``max_num_seqs`` and ``replicas`` are the same at all points.  Raises ``ConfigError`` for names that are
    none, and for the optimum where it is not defined.
    """

    policies: Sequence[str]
    indexes: Sequence[str]
    capacities: Sequence[Capacity]
    max_num_seqs: int | None = None
    replicas: int = 1
    routing: str = "prefix"

    def __post_init__(self) -> None:
        _known("policy", self.policies, POLICIES)
        _known("prefix index", self.indexes, INDEXES)
        if OPTIMAL in self.policies and (self.max_num_seqs is not None or self.replicas > 1):
            raise ConfigError(
                "the optimum is that of one cache and one request after the other: with --max-num-seqs and "
                "--replicas leave --policy optimal out"
            )

    def points(self, bounds: Mapping[int, Bounds], kv_bytes_per_token: int | None = None) -> list[Setting]:
        """Every combination, by block size as in ``bounds``, then policy, index and capacity.

        The optimum is one of whole blocks, whatever the index: it comes once, as of the `hash` index.
        """
        found = []
        for block_size, bound in bounds.items():
            capacities = distinct(
                [
                    each.blocks(block_size, bound.num_unique_blocks, kv_bytes_per_token)
                    for each in self.capacities
                ]
            )
            found += [
                Setting(policy, index, block_size, capacity, self.max_num_seqs, self.replicas, self.routing)
                for policy in self.policies
                for index in (self.indexes if policy != OPTIMAL else ("hash",))
                for capacity in capacities
            ]
        return found


def names(text: str, everything: Sequence[str]) -> list[str]:
    """A list with commas, each name once; ``all`` is everything."""
    given = [part.strip() for part in text.split(",")]
    return list(dict.fromkeys(everything if ALL in given else given))


def _known(what: str, given: Sequence[str], known: Sequence[str]) -> None:
    for each in given:
        if each not in known:
            raise ConfigError(f"there is no {what} {each!r}: there are {', '.join(known)}, or {ALL}")
