"""Logits → tokens.

A row's token depends on its logits, its parameters and one number drawn for it, never on the other
rows.  The number is a hash, not the state of a generator: preemption and restart change nothing.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from headstart.engine.request import MAX_LOGPROBS, SamplingParams, ScheduledRow, StepResult, TokenLogprob
from headstart.errors import EngineError

logger = logging.getLogger(__name__)

NO_CHOICE = "the model's output for this request is not a number, so no token can be chosen"

# Candidates looked at first where top_k or top_p narrow the choice: sorting a whole vocabulary costs
# eight times as much, and seldom finds more.  A constant, so that ties fall alike in every batch.
_CANDIDATES = 1024


class Sampler:
    """Chooses tokens.  ``seed`` draws for requests that bring no seed of their own."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def choose(self, logits: Tensor, rows: Sequence[ScheduledRow]) -> StepResult:
        """A token, or why there is none, for each row of ``logits`` [R, vocab_size] (float32) and its forks.

        Row i belongs to ``rows[i]``.  Changes the logits of rows that ask for it in place.
        """
        logits, rows = _for_each_choice(logits, rows)
        asking = [i for i, row in enumerate(rows) if row.params.logprobs is not None]
        unmodified = logits[asking] if asking else None
        result = StepResult(failed=adjust(logits, rows))
        result.failed.update(mask(logits, rows))
        for row, token in zip(rows, self.sample(logits, rows), strict=True):
            if row.request_id in result.failed:
                continue
            if token is None:
                result.failed[row.request_id] = NO_CHOICE
            else:
                result.sampled[row.request_id] = token
        if unmodified is not None:
            chosen = {i: result.sampled.get(rows[i].request_id) for i in asking}
            for i, told in zip(asking, _logprobs(unmodified, list(chosen.values())), strict=True):
                if chosen[i] is not None:
                    wanted = rows[i].params.logprobs
                    result.logprobs[rows[i].request_id] = TokenLogprob(told.logprob, told.top[:wanted])
        return result

    def sample(self, logits: Tensor, rows: Sequence[ScheduledRow]) -> list[int | None]:
        """One token for each row of ``logits`` [R, vocab_size] (float32); row i belongs to ``rows[i]``.

        ``None`` where no choice is possible: logits that are NaN, +inf, or all -inf.
        """
        if not rows:
            return []
        highest, tokens = logits.max(dim=-1)  # NaN counts as the highest, so one pass finds it
        possible = highest.isfinite().tolist()
        drawn = [i for i, row in enumerate(rows) if possible[i] and row.params.temperature > 0]
        plain = [i for i in drawn if not _narrows(rows[i].params)]
        narrowed = [i for i in drawn if _narrows(rows[i].params)]
        for chosen, draw in ((plain, _draw), (narrowed, _draw_narrowed)):
            if chosen:
                some = [rows[i] for i in chosen]
                where = torch.tensor(chosen, device=logits.device)
                heat = logits.new_tensor([row.params.temperature for row in some])[:, None]
                heat.clamp_(min=torch.finfo(heat.dtype).tiny)  # 1e-300 is allowed, and 0 in float32
                # Shifted before it is divided: a tiny temperature must not overflow.
                scaled = (logits[where] - highest[where, None]) / heat
                if any(row.params.min_p > 0.0 for row in some):
                    least = [math.log(row.params.min_p) if row.params.min_p else -math.inf for row in some]
                    scaled.masked_fill_(scaled < logits.new_tensor(least)[:, None], -math.inf)
                numbers = logits.new_tensor([self._number(row) for row in some])[:, None]
                tokens[where] = draw(scaled, numbers, [row.params for row in some])
        return [token if ok else None for token, ok in zip(tokens.tolist(), possible, strict=True)]

    def _number(self, row: ScheduledRow) -> float:
        """In [0, 1), in steps that float32 can tell apart; the same for the same seed and output position."""
        seed = row.params.seed
        source = f"engine {self._seed} {row.request_id}" if seed is None else f"request {seed}"
        digest = hashlib.blake2b(f"{source} {row.num_output_tokens}".encode(), digest_size=3).digest()
        return int.from_bytes(digest, "little") / 2**24


def _for_each_choice(logits: Tensor, rows: Sequence[ScheduledRow]) -> tuple[Tensor, Sequence[ScheduledRow]]:
    """Every fork of a row as a row of its own, with the same logits."""
    if not any(row.forks for row in rows):
        return logits, rows
    counts = torch.tensor([1 + len(row.forks) for row in rows], device=logits.device)
    return logits.repeat_interleave(counts, dim=0), [choice for row in rows for choice in row.choices()]


def _logprobs(logits: Tensor, tokens: Sequence[int | None]) -> list[TokenLogprob]:
    """What ``logits`` [R, V] say of one token each (for None, of any), with `MAX_LOGPROBS` alternatives."""
    logprobs = logits.log_softmax(dim=-1)
    where = torch.tensor([token or 0 for token in tokens], device=logits.device)
    own = logprobs.gather(1, where[:, None])[:, 0].tolist()
    # As many for all, so that ties fall alike in every batch.
    values, ids = logprobs.topk(min(MAX_LOGPROBS, logits.shape[1]), dim=-1)
    return [
        TokenLogprob(logprob, tuple(zip(best, highest, strict=True)))
        for logprob, best, highest in zip(own, ids.tolist(), values.tolist(), strict=True)
    ]


def adjust(logits: Tensor, rows: Sequence[ScheduledRow]) -> dict[str, str]:
    """Apply biases, penalties and ``min_tokens``, in place, to ``logits`` [R, vocab_size] of rows that ask.

    Where an output with a structure may end is its matcher's affair: see `mask`.

    Returns, by request id, why a row could not be adjusted; its logits then mean nothing.
    """
    failed: dict[str, str] = {}
    for values, row in zip(logits, rows, strict=True) if any(r.params.adjusts_logits for r in rows) else ():
        if not row.params.adjusts_logits:
            continue
        try:
            _adjust_row(values, row)
        except Exception as error:  # one request's parameters are no reason to end the others
            logger.exception("the logits of request %s cannot be adjusted", row.request_id)
            failed[row.request_id] = f"the sampling parameters cannot be applied: {error}"
    return failed


def _adjust_row(values: Tensor, row: ScheduledRow) -> None:
    params = row.params
    if row.num_output_tokens < params.min_tokens and row.matcher is None:
        stops = [token for token in params.stop_token_ids if 0 <= token < len(values)]
        values[_ids(stops, values)] = -math.inf
    if params.logit_bias:
        values[_ids(params.logit_bias, values)] += values.new_tensor(list(params.logit_bias.values()))
    if row.token_counts:
        seen = _ids(row.token_counts, values)
        counts = values.new_tensor(list(row.token_counts.values()))
        some = values[seen]
        some = torch.where(some > 0, some / params.repetition_penalty, some * params.repetition_penalty)
        some -= params.frequency_penalty * counts + params.presence_penalty * (counts > 0)
        values[seen] = some


def mask(logits: Tensor, rows: Sequence[ScheduledRow]) -> dict[str, str]:
    """Put -inf, in place, wherever a row's matcher lets no token of ``logits`` [R, vocab_size] come next.

    Returns, by request id, why a row's matcher could not say; its logits then mean nothing.
    """
    failed: dict[str, str] = {}
    allowed: dict[int, bytes] = {}
    for number, row in enumerate(rows):
        if row.matcher is None:
            continue
        try:
            may_end = row.num_output_tokens >= row.params.min_tokens
            allowed[number] = row.matcher.allowed(may_end=may_end)
        except EngineError as error:
            failed[row.request_id] = str(error)
        except Exception as error:  # one request's grammar is no reason to end the others
            logger.exception("the grammar of request %s failed", row.request_id)
            failed[row.request_id] = f"its grammar cannot be applied: {error}"
    if allowed:
        bits = np.frombuffer(b"".join(allowed.values()), np.uint8).reshape(len(allowed), -1)
        forbidden = np.unpackbits(~bits, axis=1, count=logits.shape[1], bitorder="little").view(np.bool_)
        some = torch.from_numpy(forbidden).to(logits.device)
        if len(allowed) == len(rows):
            logits.masked_fill_(some, -math.inf)
        else:
            where = torch.tensor(list(allowed), device=logits.device)
            logits[where] = logits[where].masked_fill_(some, -math.inf)
    return failed


def _ids(token_ids: Collection[int], values: Tensor) -> Tensor:
    """Indices into ``values``; checked here, because a GPU would end the process over a wrong one."""
    outside = [token for token in token_ids if not 0 <= token < len(values)]
    if outside:
        raise IndexError(f"token id {outside[0]} is outside the vocabulary of {len(values)}")
    return torch.tensor(list(token_ids), dtype=torch.int64, device=values.device)


def _narrows(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1.0


def _draw(scaled: Tensor, numbers: Tensor, _params: Sequence[SamplingParams]) -> Tensor:
    """Tokens [R] by inverting the distribution of ``scaled`` [R, V], whose maximum is 0 in each row."""
    return _invert(scaled.exp(), numbers)[:, 0]


def _draw_narrowed(scaled: Tensor, numbers: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """As `_draw` among each row's ``top_k`` largest, and of those the fewest that make up ``top_p``."""
    whole = scaled.exp().sum(dim=-1, keepdim=True)
    tokens, complete = _draw_sorted(scaled, numbers, params, whole, min(_CANDIDATES, scaled.shape[1]))
    if not complete.all():
        short = (~complete).nonzero()[:, 0]
        some = [params[i] for i in short.tolist()]
        tokens[short], _ = _draw_sorted(scaled[short], numbers[short], some, whole[short], scaled.shape[1])
    return tokens


def _draw_sorted(
    scaled: Tensor, numbers: Tensor, params: Sequence[SamplingParams], whole: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """Tokens [R] chosen among the ``count`` largest, and [R] whether these were all that may be chosen."""
    vocab_size = scaled.shape[1]
    largest, order = scaled.topk(count, dim=-1)
    top_k = torch.tensor([p.top_k or vocab_size for p in params], device=scaled.device)[:, None]
    top_p = scaled.new_tensor([p.top_p if p.top_p < 1.0 else torch.inf for p in params])[:, None]
    ranks = torch.arange(count, device=scaled.device)
    weights = largest.exp() * (ranks < top_k)
    up_to = weights.cumsum(dim=-1)
    limited = top_k < vocab_size  # then top_p is a share of the top_k, else of everything
    nucleus = top_p * torch.where(limited, up_to[:, -1:], whole)
    # The likeliest always stays: a top_p like 1e-300 is allowed, and 0 in float32.
    chosen = _invert(weights * ((up_to - weights < nucleus) | (ranks == 0)), numbers)
    complete = torch.where(limited, top_k <= count, up_to[:, -1:] >= nucleus)[:, 0] | (count == vocab_size)
    return order.gather(1, chosen)[:, 0], complete


def _invert(weights: Tensor, numbers: Tensor) -> Tensor:
    """Indices [R, 1]: where the running sum of ``weights`` [R, n] first exceeds ``numbers`` [R, 1] of all."""
    up_to = weights.cumsum(dim=-1)
    # Numbers end one float32 step short of 1, so the product stays below the total: some index is found.
    return torch.searchsorted(up_to, numbers * up_to[:, -1:], right=True)
