"""What is known about one streamed request once it is over."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as the server reports them; ``None`` is what it does not say."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """One streamed request, in seconds of the client's clock.

    ``sent`` is when the request left, ``arrivals`` when each event with output came: one token each,
    unless the server packs several into an event.  ``num_sent`` prompt tokens were sent (``None``
    where text was sent) and at most ``num_asked`` tokens were asked for.
    """

    sent: float
    arrivals: tuple[float, ...]
    num_sent: int | None
    num_asked: int
    usage: Usage
    text: str = ""

    @property
    def first_token(self) -> float:
        """Seconds from sending to the first token."""
        return self.arrivals[0] - self.sent

    @property
    def end(self) -> float:
        """When the last token came."""
        return self.arrivals[-1]

    @property
    def gaps(self) -> list[float]:
        """Seconds between an event with output and the next."""
        return [after - before for before, after in pairwise(self.arrivals)]

    def tokens_between(self, start: float, end: float) -> float:
        """Tokens that came after ``start`` and not after ``end``: each event brings its share of them."""
        events = sum(start < arrival <= end for arrival in self.arrivals)
        return events * self.num_tokens / len(self.arrivals)

    @property
    def num_tokens(self) -> int:
        """Tokens that were generated: the server's count, else one for each event with output."""
        reported = self.usage.completion_tokens
        return len(self.arrivals) if reported is None else reported

    @property
    def rate(self) -> float | None:
        """Tokens per second after the first one; ``None`` if there was no second."""
        seconds = self.end - self.arrivals[0]
        return (self.num_tokens - 1) / seconds if seconds > 0 else None
