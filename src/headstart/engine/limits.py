"""What an engine can serve at all, checked once per request and before it is queued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headstart.engine.request import SamplingParams
from headstart.errors import RequestError, shown


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of one engine: context length, vocabulary, the KV pool, and whether priorities count."""

    max_model_len: int
    vocab_size: int
    num_blocks: int
    block_size: int
    priorities: bool = False

    def check(self, prompt_token_ids: Sequence[int], params: SamplingParams, priority: int = 0) -> int:
        """How many tokens the request may generate.

        Raises ``RequestError`` for what can never be served, with both numbers.
        """
        prompt = len(prompt_token_ids)
        if prompt == 0:
            raise RequestError(
                "the prompt must have at least one token", param="prompt", code="invalid_value"
            )
        if priority != 0 and not self.priorities:
            raise RequestError(
                f'priority is {priority}, but scheduling_policy is not "priority": leave it out or give 0, '
                "or start the server with --scheduling-policy priority",
                param="priority",
                code="invalid_value",
            )
        self._check_vocabulary(prompt_token_ids)
        self._check_bias(params.logit_bias)
        room = self.max_model_len - prompt
        if room < (0 if params.max_tokens == 0 else 1):
            raise RequestError(
                f"this model's maximum context length is {self.max_model_len} tokens, but the prompt has "
                f"{prompt} tokens and at least one must be generated; shorten the prompt",
                param="prompt",
                code="context_length_exceeded",
            )
        if params.max_tokens is not None and params.max_tokens > room:
            raise RequestError(
                f"this model's maximum context length is {self.max_model_len} tokens, but the prompt has "
                f"{prompt} tokens and max_tokens is {params.max_tokens}; at most {room} can be generated",
                param="max_tokens",
                code="context_length_exceeded",
            )
        pool = self.num_blocks * self.block_size + 1 - prompt  # the last token generated needs no slot
        wanted = params.max_tokens or 1
        if wanted > pool:
            blocks = -(-(prompt + wanted - 1) // self.block_size)
            raise RequestError(
                f"the request needs {blocks} blocks of KV memory ({prompt} prompt tokens and max_tokens "
                f"{wanted}, {self.block_size} tokens a block), but the pool has {self.num_blocks}; shorten "
                "it or start the server with more KV memory",
                param="prompt" if prompt >= self.num_blocks * self.block_size else "max_tokens",
                code="kv_cache_exceeded",
            )
        return params.max_tokens if params.max_tokens is not None else min(room, pool)

    def _check_bias(self, bias: Mapping[int, float]) -> None:
        outside = [token for token in bias if not 0 <= token < self.vocab_size]
        if outside:
            raise RequestError(
                f"logit_bias has token id {shown(outside[0])}, which is outside the vocabulary: "
                f"ids go from 0 to {self.vocab_size - 1}",
                param="logit_bias",
                code="invalid_value",
            )

    def _check_vocabulary(self, token_ids: Sequence[int]) -> None:
        if min(token_ids) >= 0 and max(token_ids) < self.vocab_size:
            return
        position = next(i for i, token in enumerate(token_ids) if not 0 <= token < self.vocab_size)
        raise RequestError(
            f"token id {shown(token_ids[position])} at position {position} is outside the vocabulary: "
            f"ids go from 0 to {self.vocab_size - 1}",
            param="prompt",
            code="invalid_value",
        )
