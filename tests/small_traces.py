"""Traces made by hand, of a few symbols each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from headstart.cache.tokens import run_of
from headstart.lab.traces.trace import Trace, TraceFormat, TraceRequest

PUBLIC = Path(__file__).resolve().parents[2] / "shared" / "traces"
"""Beside the checkout; HEADSTART_TRACES names another folder."""


def by_tokens(prompts: Iterable[Sequence[int]], outputs: Iterable[Sequence[int]] | None = None) -> Trace:
    """Prompts of token ids, and what was answered."""
    prompts = list(prompts)
    answers = [None] * len(prompts) if outputs is None else [bytes(run_of(list(each))) for each in outputs]
    requests = [
        TraceRequest(bytes(run_of(list(prompt))), len(prompt), output=answer)
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    return Trace("by-tokens", TraceFormat.TOKENS, requests)


def by_ids(
    prompts: Iterable[Sequence[int]],
    *,
    lengths: Sequence[int] | None = None,
    times: Sequence[float] | None = None,
    size: int = 512,
) -> Trace:
    """Prompts of hash ids, each of ``size`` tokens, their last one too if no lengths in tokens are given."""
    prompts = list(prompts)
    requests = [
        TraceRequest(
            bytes(run_of(list(prompt))),
            len(prompt) * size if lengths is None else lengths[number],
            arrival_s=None if times is None else times[number],
        )
        for number, prompt in enumerate(prompts)
    ]
    return Trace("by-ids", TraceFormat.MOONCAKE, requests, tokens_per_symbol=size)


def tree_prompts(choices: Sequence[Sequence[int]]) -> list[list[int]]:
    """Runs of small numbers as hash ids: each number becomes one for itself and all before it."""
    known: dict[tuple[int, ...], int] = {}
    return [
        [known.setdefault(tuple(choice[: end + 1]), len(known)) for end in range(len(choice))]
        for choice in choices
    ]


def public_trace(name: str) -> Path:
    """One of Mooncake's published traces; the test is skipped where they are not at hand."""
    path = Path(os.environ.get("HEADSTART_TRACES", PUBLIC)) / f"mooncake_{name}.jsonl"
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    return path
