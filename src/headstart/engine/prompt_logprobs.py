"""Log-probabilities of prompt tokens: what the model thought of each before it was told.

All logits of a long prompt at once would be larger than the model (8,192 tokens of a vocabulary of 50,000
are 1.6 GB), so they are made and forgotten a slice of rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import torch
from torch import Tensor

from headstart.engine.request import MAX_LOGPROBS, PromptLogprob, ScheduledRow

NO_SCORE = "the model's output for this prompt is not a number, so it has no log-probabilities"

SLICE_LOGITS = 2**22
"""Logits that are made at once, over all rows of a slice: 16 MiB in float32."""


def score_prompts(
    logits: Callable[[Tensor], Tensor], hidden: Tensor, rows: Sequence[ScheduledRow], *, vocab_size: int
) -> tuple[dict[str, tuple[PromptLogprob, ...]], dict[str, str]]:
    """By request id: the log-probabilities of the targets of ``rows``, or why there are none.

    ``hidden`` [N, hidden_size] are the model's rows for all targets, in order; ``logits`` turns some of
    them into logits [n, vocab_size].
    """
    scored = [(row, row.targets) for row in rows if row.targets is not None]
    if not scored:
        return {}, {}
    token_ids = list(chain.from_iterable(targets.token_ids for _, targets in scored))
    size = max(1, SLICE_LOGITS // vocab_size)
    scores = chain.from_iterable(
        _score(logits(hidden[start : start + size]), token_ids[start : start + size])
        for start in range(0, len(token_ids), size)
    )
    told: dict[str, tuple[PromptLogprob, ...]] = {}
    failed: dict[str, str] = {}
    for row, targets in scored:
        own = [next(scores) for _ in targets.token_ids]
        if any(score.logprob != score.logprob for score in own):  # NaN
            failed[row.request_id] = NO_SCORE
        else:
            count = row.params.prompt_logprobs
            told[row.request_id] = tuple(PromptLogprob(s.logprob, s.rank, s.top[:count]) for s in own)
    return told, failed


def _score(logits: Tensor, token_ids: Sequence[int]) -> list[PromptLogprob]:
    """What ``logits`` [n, vocab_size] say of one token each, with `MAX_LOGPROBS` alternatives."""
    logprobs = logits.log_softmax(dim=-1)
    own = logprobs.gather(1, torch.tensor(token_ids, device=logits.device)[:, None])
    ranks = (logprobs > own).sum(dim=-1) + 1
    # As many for all, so that ties fall alike in every batch.
    values, ids = logprobs.topk(min(MAX_LOGPROBS, logits.shape[1]), dim=-1)
    return [
        PromptLogprob(logprob, rank, tuple(zip(best, highest, strict=True)))
        for logprob, rank, best, highest in zip(
            own[:, 0].tolist(), ranks.tolist(), ids.tolist(), values.tolist(), strict=True
        )
    ]
