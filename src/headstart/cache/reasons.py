"""The words for a miss: its reasons, and the report that a request gets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum


class MissReason(StrEnum):
    """Why a prompt token was computed.  Where several apply, the first in this order is the reason.

    docs/misses.md has an example of each, and what to do about it.
    """

    SKIPPED = "skipped"
    """Nothing was looked up: caching is off, or the request does not read the cache."""
    LAST_TOKEN = "last_token"  # noqa: S105  # a reason, not a password
    """The prompt's last token is always computed, for its logits."""
    UNALIGNED = "unaligned"
    """Equal to what is cached, and lost to the block boundary."""
    IN_FLIGHT = "in_flight"
    """Another request is computing the same prefix right now."""
    EVICTED = "evicted"
    """The prefix was cached, and given up for its slots."""
    ISOLATED = "isolated"
    """The prefix is cached in another namespace.  Not to be told to a client: see `MissReport.for_client`."""
    DIVERGED = "diverged"
    """The text is or was lately cached behind another beginning: at least 32 equal tokens in a row."""
    COLD = "cold"
    """The text was not seen before, as far as a bounded memory can tell."""


@dataclass(frozen=True, slots=True)
class MissReport:
    """Where a request's prompt tokens came from, at its first admission.

    ``num_hit_tokens`` and the counts in ``tokens`` (reasons that apply, in their order) add up to
    ``num_prompt_tokens``: law I12.  ``diverged_at`` is the position of the first token that differs from all
    that is cached, where any token ``diverged``, or would if it were not isolated.  ``evicted_s`` is how many
    seconds ago the first missing block was evicted, ``evicted_blocks`` how many blocks have been taken since;
    None if nothing was.  So many as ``isolated_diverged`` of the isolated tokens ``diverged``, as far as the
    prompt's own namespace is concerned.
    """

    request_id: str
    num_prompt_tokens: int
    num_hit_tokens: int
    tokens: dict[MissReason, int] = field(default_factory=dict, hash=False)
    diverged_at: int | None = None
    evicted_s: float | None = None
    evicted_blocks: int | None = None
    isolated_diverged: int = 0

    def for_client(self) -> MissReport:
        """What may be told to whoever sent the prompt: the report as it were if nobody else held anything."""
        hidden = self.tokens.get(MissReason.ISOLATED, 0)
        if not hidden:
            return self
        tokens = dict(self.tokens)
        del tokens[MissReason.ISOLATED]
        told = self.isolated_diverged
        for reason, count in ((MissReason.DIVERGED, told), (MissReason.COLD, hidden - told)):
            known = tokens.pop(reason, 0)
            if count + known:
                tokens[reason] = count + known
        return replace(self, tokens=tokens, isolated_diverged=0)
