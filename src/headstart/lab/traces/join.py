"""Drafts of all files to the requests of one trace: one clock, one order, and who may share with whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from headstart.cache import Adapter, Namespace
from headstart.cache.keys import SHARED
from headstart.lab.traces.draft import Part
from headstart.lab.traces.trace import TraceRequest


def finished(parts: Sequence[Part]) -> list[TraceRequest]:
    """The requests by their arrival, the first at 0, if all have times; else as they stand in the files.

    Of requests that came at once the one that stands first comes first.
    """
    drafts = [(part.file, draft) for part in parts for draft in part.drafts]
    times = [draft.time for _, draft in drafts if draft.time is not None]
    if len(times) == len(drafts):
        drafts.sort(key=lambda one: one[1].time or 0.0)
    begin = min(times, default=0.0)
    namespace = _namespaces(by_model=len(models_of(parts)) > 1)
    return [
        TraceRequest(
            symbols=draft.symbols,
            num_prompt_tokens=draft.num_prompt_tokens,
            arrival_s=None if draft.time is None else draft.time - begin,
            num_output_tokens=draft.num_output_tokens,
            namespace=namespace(draft.model, draft.salt),
            session=draft.session,
            output=draft.output,
            body=draft.body,
            line=draft.line,
            file=file,
        )
        for file, draft in drafts
    ]


def models_of(parts: Sequence[Part]) -> list[str]:
    """The names of the models that were asked, in the order in which they are met."""
    return list(dict.fromkeys(draft.model or "" for part in parts for draft in part.drafts))


def _namespaces(*, by_model: bool) -> Callable[[str | None, str | None], Namespace]:
    """The namespace of a model and a salt; equal ones are one object.

    What one model computed is of no use to another.  Names are all that a log tells of them, so that they
    are adapters without a digest; a trace of a single model needs none.
    """

    @cache
    def namespace(model: str | None, salt: str | None) -> Namespace:
        adapter = Adapter(model, digest="") if by_model and model else None
        return Namespace(adapter, salt) if adapter or salt else SHARED

    return namespace
