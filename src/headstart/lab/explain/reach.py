"""How far each prompt could be a hit, if nothing were ever evicted: the price of what stands in the way."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headstart.cache import Namespace
from headstart.cache.tokens import TOKEN_BYTES
from headstart.lab.explain.runs import Tokens, num_common, tokens_of
from headstart.lab.traces.trace import Trace, TraceRequest

_STEP = 16


class Reach(NamedTuple):
    """A prompt's first ``num_tokens`` are also those of an earlier request, or of its answer."""

    num_tokens: int
    earlier: int | None


def reach(trace: Trace) -> list[Reach]:
    """For each request the longest beginning that was there before, in its namespace.

    Never all of it: the last token must be computed.  Every 16 tokens the hash of all before leads to the
    latest request that begins so; from there on tokens are compared.  (An older one may share up to 15 more.)
    """
    latest: dict[tuple[Namespace, int], int] = {}
    found: list[Reach] = []
    for number, request in enumerate(trace.requests):
        tokens = tokens_of(request.symbols)
        keys = [(request.namespace, name) for name in _prefixes(tokens_of(cached_run(request)))]
        earlier = None
        for key in keys[: len(tokens) // _STEP]:
            if key not in latest:
                break
            earlier = latest[key]
        shared = 0
        if earlier is not None:
            shared = num_common(tokens, tokens_of(cached_run(trace.requests[earlier])))
        found.append(Reach(max(0, min(shared, len(tokens) - 1)), earlier))
        latest.update(dict.fromkeys(keys, number))
    return found


def cached_run(request: TraceRequest) -> bytes:
    """What an engine has computed once it has answered: all but the last token that it generated."""
    return request.symbols + request.output[:-TOKEN_BYTES] if request.output else request.symbols


def _prefixes(tokens: Tokens) -> list[int]:
    """A hash of all tokens up to each 16th position."""
    whole = tokens[: len(tokens) // _STEP * _STEP].astype(np.uint64) + np.uint64(1)
    factors = np.cumprod(np.full(len(whole), 0x9E3779B97F4A7C15, np.uint64), dtype=np.uint64)
    names: list[int] = np.cumsum(whole * factors, dtype=np.uint64)[_STEP - 1 :: _STEP].tolist()
    return names
