"""The latest reports on why prompts missed, for those who sent the prompts and for nobody else."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from headstart.cache import MissReport

MOST_PROMPTS = 4096
"""So many prompts are remembered, of all requests together; the oldest request goes first."""


@dataclass(slots=True)
class Explained:
    """A request's prompts by number, each with what may be told to its sender; None: not reported (yet)."""

    tenant: str | None
    prompts: dict[int, MissReport | None] = field(default_factory=dict)


class Explanations:
    """What became of the last prompts, by request: kept by the front, so no death of an engine loses it."""

    def __init__(self, most: int = MOST_PROMPTS) -> None:
        self.most = most
        self._requests: OrderedDict[str, Explained] = OrderedDict()
        self._num_prompts = 0

    def expect(self, tenant: str | None, request_id: str, number: int) -> None:
        """Prompt ``number`` of a request of ``tenant`` was given to the engine."""
        request = self._requests.setdefault(request_id, Explained(tenant))
        if number not in request.prompts:
            request.prompts[number] = None
            self._num_prompts += 1
        while self._num_prompts > self.most and len(self._requests) > 1:
            self._num_prompts -= len(self._requests.popitem(last=False)[1].prompts)

    def told(self, report: MissReport) -> None:
        """The engine's report on a prompt, which it calls by its request, number and perhaps choice."""
        request_id, _, number = report.request_id.partition("#")[0].rpartition("-")
        request = self._requests.get(request_id)
        if request is not None and number.isdecimal() and int(number) in request.prompts:
            request.prompts[int(number)] = report.for_client()

    def find(self, tenant: str | None, request_id: str) -> Explained | None:
        """The request, if it was this tenant's and is not forgotten."""
        request = self._requests.get(request_id)
        return request if request is not None and request.tenant == tenant else None
