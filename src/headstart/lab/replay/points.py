"""The points of a sweep: every setting that is asked for, once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from headstart.config import PolicyName, PrefixIndexName
from headstart.errors import ConfigError
from headstart.lab.replay.capacity import Capacity, distinct
from headstart.lab.replay.outcome import OPTIMAL, Bounds, Setting
from headstart.lab.replay.routers import Routing

POLICIES = (*get_args(PolicyName), OPTIMAL)
ROUTINGS = tuple(map(str, Routing))
INDEXES = get_args(PrefixIndexName)
ONLINE = get_args(PolicyName)
"""Those that know no future."""
ALL = "all"


@dataclass(frozen=True, slots=True)
class Axes:
    """What a sweep varies; each point is one of each.

    ``max_num_seqs`` None is one request after the other; with one replica there is nothing to route.
    Raises ``ConfigError`` for names that are none, and for the optimum where it is not defined.
    """

    policies: Sequence[str]
    indexes: Sequence[str]
    capacities: Sequence[Capacity]
    max_num_seqs: Sequence[int | None] = (None,)
    replicas: int = 1
    routings: Sequence[str] = ("prefix",)

    def __post_init__(self) -> None:
        _known("policy", self.policies, POLICIES)
        _known("prefix index", self.indexes, INDEXES)
        _known("routing", self.routings, ROUTINGS)
        if OPTIMAL in self.policies and not (self.replicas == 1 and None in self.max_num_seqs):
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
                Setting(policy, index, block_size, capacity, seqs, self.replicas, routing)
                for policy in self.policies
                for index in (self.indexes if policy != OPTIMAL else ("hash",))
                for routing in (self.routings if self.replicas > 1 else ("prefix",))
                for seqs in (self.max_num_seqs if policy != OPTIMAL else (None,))
                for capacity in capacities
            ]
        return found


def names(text: str, everything: Sequence[str]) -> list[str]:
    """A list with commas, each name once; ``all`` is everything."""
    given = [part.strip() for part in text.split(",")]
    return list(dict.fromkeys(everything if ALL in given else given))


def parse_seqs(text: str | None) -> list[int | None]:
    """How many requests overlap, with commas between the numbers; ``none`` is one after the other.

    Raises ``ConfigError`` for what is neither.
    """
    found: list[int | None] = []
    for part in ("none" if text is None else text).split(","):
        word = part.strip().lower()
        if word == "none":
            found.append(None)
        elif word.isascii() and word.isdigit() and len(word) < 10 and int(word) > 0:
            found.append(int(word))
        else:
            raise ConfigError(f"--max-num-seqs takes numbers of requests from 1 on, or none, not {part!r}")
    return list(dict.fromkeys(found))


def _known(what: str, given: Sequence[str], known: Sequence[str]) -> None:
    for each in given:
        if each not in known:
            raise ConfigError(f"there is no {what} {each!r}: there are {', '.join(known)}, or {ALL}")
