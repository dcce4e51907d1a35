"""Several choices of one prompt: their names, their random streams, and which are the best.

The first choice is the request itself, as it would be with ``n`` 1.  The others follow it: see `Followers`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from headstart.engine.request import Request, SamplingParams


def choice_ids(request_id: str, count: int) -> list[str]:
    """The ids of a request's choices; the first has the request's own."""
    return [request_id, *(f"{request_id}#{number}" for number in range(1, count))]


def leader_of(request_id: str) -> str:
    """The id of the request that the choice of this id belongs to."""
    return request_id.partition("#")[0]


def of_choice(params: SamplingParams, number: int) -> SamplingParams:
    """The parameters of one choice alone; where there is a seed, one that follows from it and the number."""
    seed = params.seed
    if number and seed is not None:
        digest = hashlib.blake2b(f"choice {number} of {seed}".encode(), digest_size=8).digest()
        seed = int.from_bytes(digest, "little")
    return replace(params, n=1, best_of=None, seed=seed)


def as_ranked(params: SamplingParams) -> SamplingParams:
    """The same, asking for the log-probabilities without which the best choices are not known."""
    if params.num_choices == params.n or params.logprobs is not None:
        return params
    return replace(params, logprobs=0)


def best(mean_logprobs: Sequence[float], count: int) -> list[int]:
    """The numbers of the ``count`` best choices, best first; of equals, the earlier."""
    order = sorted(range(len(mean_logprobs)), key=lambda number: -mean_logprobs[number])
    return order[:count]


class Followers:
    """Choices that wait until the first one, their leader, has its prompt computed, to begin as its forks."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, Request]] = {}  # by the leader's id, then their own
        self._leaders: dict[str, str] = {}  # of each follower

    def __len__(self) -> int:
        return len(self._leaders)

    def __contains__(self, request: Request) -> bool:
        return request.request_id in self._leaders

    def add(self, leader: Request, followers: Iterable[Request]) -> None:
        """From now on these wait for ``leader``, in this order."""
        group = {follower.request_id: follower for follower in followers}
        if group:
            self._of[leader.request_id] = group
            self._leaders.update(dict.fromkeys(group, leader.request_id))

    def count(self, leader: Request) -> int:
        """How many wait for ``leader``."""
        return len(self._of.get(leader.request_id, ()))

    def of(self, leader: Request) -> list[Request]:
        """Who waits for ``leader``."""
        return list(self._of.get(leader.request_id, {}).values())

    def take(self, leader: Request) -> list[Request]:
        """Who waited for ``leader``, and now does no more."""
        group = self._of.pop(leader.request_id, {})
        for name in group:
            del self._leaders[name]
        return list(group.values())

    def remove(self, follower: Request) -> None:
        """It waits no more.  Raises ``KeyError`` if it did not."""
        leader = self._leaders.pop(follower.request_id)
        del self._of[leader][follower.request_id]
        if not self._of[leader]:
            del self._of[leader]
