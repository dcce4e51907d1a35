"""The latest reports on why prompts missed, for those who sent the prompts and for nobody else."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from headstart.cache import MissReport
from headstart.engine.choices import leader_of

MOST_PROMPTS = 4096
"""So many prompts are remembered, of all requests together; the oldest request goes first."""


@dataclass(slots=True)
class Explained:
    """A request's prompts by number, each with what may be told to its sender; None: not reported (yet).

    ``engine_ids`` are what the engine calls them.
    """

    prompts: dict[int, MissReport | None] = field(default_factory=dict)
    engine_ids: dict[int, str] = field(default_factory=dict)


class Explanations:
    """What became of the last prompts, by request: kept by the front, so no death of an engine loses it.

    Clients may name requests, so two of them may have one name: then the later one of a tenant counts, and
    that of another tenant is another's.
    """

    def __init__(self, most: int = MOST_PROMPTS) -> None:
        self.most = most
        self._requests: OrderedDict[tuple[str | None, str], Explained] = OrderedDict()
        self._prompts: dict[str, tuple[Explained, int]] = {}  # by what the engine calls them

    def expect(self, tenant: str | None, request_id: str, number: int, engine_id: str) -> None:
        """Prompt ``number`` of a request of ``tenant`` was given to the engine, as ``engine_id``."""
        key = (tenant, request_id)
        if number == 0:
            self._forget(key)
        request = self._requests.setdefault(key, Explained())
        request.prompts[number] = None
        request.engine_ids[number] = engine_id
        self._prompts[engine_id] = (request, number)
        while len(self._prompts) > self.most and len(self._requests) > 1:
            self._forget(next(iter(self._requests)))

    def told(self, report: MissReport) -> None:
        """The engine's report on a prompt, which it calls by one of its choices: the others may have left."""
        found = self._prompts.get(leader_of(report.request_id))
        if found is not None:
            request, number = found
            request.prompts[number] = report.for_client()

    def find(self, tenant: str | None, request_id: str) -> Explained | None:
        """The request, if it was this tenant's and is not forgotten."""
        return self._requests.get((tenant, request_id))

    def _forget(self, key: tuple[str | None, str]) -> None:
        request = self._requests.pop(key, None)
        for engine_id in () if request is None else request.engine_ids.values():
            del self._prompts[engine_id]
