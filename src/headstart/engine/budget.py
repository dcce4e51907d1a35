"""How many tokens a step may compute: a fixed number, or as many as decoding requests can bear.

A step that computes a chunk of a long prompt keeps every decoding request waiting for its next token.
`AdaptiveBudget` learns what a step costs without prompts and what each prompt token adds, and sizes the
chunks so that a step with decoding requests takes at most ``STRETCH`` times as long as without them.
"""

from __future__ import annotations

from typing import Protocol

STRETCH = 2.0
_SMALLEST_CHUNK = 16  # fewer rows cost a kernel as much
_FORGET = 0.2  # the weight of the newest measurement


class TokenBudget(Protocol):
    """Answers before a step, and learns after it."""

    def tokens(self, num_decoding: int) -> int:
        """How many tokens the next step may compute, if ``num_decoding`` requests decode in it."""
        ...

    def observe(self, num_decoding: int, num_prompt_tokens: int, seconds: float) -> None:
        """A step with so many decoding requests and prompt tokens took so long."""
        ...


class FixedBudget:
    """The same for every step."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def tokens(self, num_decoding: int) -> int:  # noqa: ARG002  # as the protocol has it
        """See `TokenBudget`."""
        return self._tokens

    def observe(self, num_decoding: int, num_prompt_tokens: int, seconds: float) -> None:
        """See `TokenBudget`; there is nothing to learn."""


class AdaptiveBudget:
    """At most ``limit`` tokens, and while others decode no more than they can bear.

    A line is fitted to the steps seen: ``seconds = decoding + per_token * prompt tokens``, both averages
    that forget.  Until both are known, a chunk beside decoding requests is small.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._decoding: float | None = None
        self._per_token: float | None = None

    def tokens(self, num_decoding: int) -> int:
        """See `TokenBudget`."""
        if num_decoding == 0:
            return self._limit
        chunk = _SMALLEST_CHUNK
        if self._decoding is not None and self._per_token is not None:
            chunk = max(chunk, int((STRETCH - 1.0) * self._decoding / self._per_token))
        return min(self._limit, num_decoding + chunk)

    def observe(self, num_decoding: int, num_prompt_tokens: int, seconds: float) -> None:
        """See `TokenBudget`."""
        if num_prompt_tokens == 0:
            if num_decoding:  # an empty step says nothing
                self._decoding = _average(self._decoding, seconds)
        else:
            beside = (self._decoding or 0.0) if num_decoding else 0.0
            added = max(seconds - beside, 1e-9) / num_prompt_tokens
            self._per_token = _average(self._per_token, added)


def _average(old: float | None, new: float) -> float:
    return new if old is None else old + _FORGET * (new - old)
