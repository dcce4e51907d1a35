"""Edits: prompts rewritten in their tokens, and all later prompts that begin with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headstart.cache.tokens import TOKEN_BYTES
from headstart.lab.explain.reach import reach
from headstart.lab.traces.trace import Trace, TraceRequest


@dataclass(frozen=True, slots=True)
class Edit:
    """In the place of the prompt's tokens from ``start`` to ``stop``: another run."""

    start: int
    stop: int
    run: bytes


def edited(trace: Trace, edits: Mapping[int, Sequence[Edit]]) -> Trace:
    """The trace with these edits, by the number of the request.

    What a prompt has in common with an earlier one is edited as it was there: else the two would part.
    """
    all_edits: dict[int, list[Edit]] = {}
    for number, (shared, earlier) in enumerate(reach(trace)):
        own = edits.get(number, ())
        first = min((edit.start for edit in own), default=None)
        inherited = [
            edit
            for edit in all_edits.get(earlier if earlier is not None else number, ())
            if edit.stop <= shared and (first is None or edit.stop <= first)
        ]
        if inherited or own:
            all_edits[number] = [*inherited, *own]
    requests = [_apply(request, all_edits.get(number, ())) for number, request in enumerate(trace.requests)]
    return replace(trace, requests=requests)


def _apply(request: TraceRequest, edits: Sequence[Edit]) -> TraceRequest:
    if not edits:
        return request
    pieces, done = [], 0
    for edit in sorted(edits, key=lambda edit: edit.start):
        pieces += [request.symbols[done * TOKEN_BYTES : edit.start * TOKEN_BYTES], edit.run]
        done = edit.stop
    run = b"".join([*pieces, request.symbols[done * TOKEN_BYTES :]])
    return replace(request, symbols=run, num_prompt_tokens=len(run) // TOKEN_BYTES)
