"""The same text under several salts or adapters, which never meet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from headstart.cache import Namespace
from headstart.lab.explain.finding import Candidate, FindingKind
from headstart.lab.explain.traffic.case import Case
from headstart.lab.traces.trace import Trace

_ISOLATION = (
    "This is the most that could be won, and a salt may be there on purpose: requests of one salt can tell "
    "from their first-token times what others of it have sent."
)


def find_split_namespaces(case: Case) -> Iterator[Candidate]:
    """What one salt for all would win, and what adapters cost, which cannot be won."""
    requests = case.trace.requests
    num_salts = len({request.namespace.salt for request in requests})
    num_adapters = len({request.namespace.adapter for request in requests})
    if num_salts > 1:
        rewritten = partial(_rewritten, case.trace, _without_salt)
        gain = case.gain(trace=rewritten())
        if case.is_worth(gain.num_tokens):
            what = (
                f"{num_salts:,} salts (no salt counts as one) split the traffic: {gain.num_tokens:,} tokens "
                f"({case.share(gain.num_tokens)} of all) miss that another salt's requests have cached"
            )
            fix = f"give one cache_salt to all that may share, one per tenant and not per user. {_ISOLATION}"
            yield case.candidate(FindingKind.SPLIT_NAMESPACES, what, fix, gain, rewritten=rewritten)
    if num_adapters > 1:
        gain = case.gain(trace=_rewritten(case.trace, _without_adapter))
        if case.is_worth(gain.num_tokens):
            what = (
                f"{num_adapters:,} adapters (the bare model counts as one) split the traffic: "
                f"{gain.num_tokens:,} tokens ({case.share(gain.num_tokens)} of all) miss that are cached for "
                "another one"
            )
            fix = (
                "nothing to win by sharing: K and V differ from adapter to adapter. Fewer adapters, or some "
                "of them on each replica, leave more room to each."
            )
            yield case.candidate(FindingKind.SPLIT_NAMESPACES, what, fix, gain)


def _without_salt(namespace: Namespace) -> Namespace:
    return Namespace(adapter=namespace.adapter)


def _without_adapter(namespace: Namespace) -> Namespace:
    return Namespace(salt=namespace.salt)


def _rewritten(trace: Trace, change: Callable[[Namespace], Namespace]) -> Trace:
    requests = [replace(request, namespace=change(request.namespace)) for request in trace.requests]
    return replace(trace, requests=requests)
