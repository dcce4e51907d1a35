"""Money per day, with and without prompt caching.

A hit rate here is a token rate, what share of all prompt tokens was read from the cache.  Of a prompt of P
tokens with hit rate h, of which share c is marked for the cache (c is at least h):

* discount (OpenAI):     P · (h · cached + (1 - h) · input)
* surcharge (Anthropic): P · (h · cached + (c - h) · write + (1 - c) · input)

The surcharge is paid for what was marked and not found, so caching can cost money.  It is even where
``h / c = (write - input) / (write - cached)``: 21.7 % of the marked tokens
at 1.25 and 0.1 times the input, 52.6 % at 2 times.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import floor

from headstart.errors import ConfigError
from headstart.lab.calc.prices import Price

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests of one kind.  ``hit_rate`` and ``cacheable`` are shares of the prompt's tokens.

    ``ttl`` is how long a write lasts, ``5m`` or ``1h``: for style "surcharge" alone.
    """

    requests_per_day: int
    prompt_tokens: int
    output_tokens: int
    hit_rate: float
    cacheable: float = 1.0
    ttl: str = "5m"

    def __post_init__(self) -> None:
        if self.ttl not in ("5m", "1h"):
            raise ConfigError(f"--ttl must be 5m or 1h, not {self.ttl!r}")
        if self.hit_rate > self.cacheable:
            raise ConfigError(
                f"a hit rate of {self.hit_rate:.1%} is more than the {self.cacheable:.1%} of the prompt "
                "that are marked for the cache (--cacheable)"
            )


@dataclass(frozen=True, slots=True)
class Bill:
    """Dollars per day.  ``uncached`` is what the same would cost without caching.

    ``hit_rate`` is what is left of the asked one where the provider does not cache such prompts.
    """

    model: str
    hit_rate: float
    read: float
    written: float
    plain: float
    output: float
    uncached: float

    @property
    def total(self) -> float:
        """With caching."""
        return self.read + self.written + self.plain + self.output

    @property
    def saved(self) -> float:
        """Below zero where caching costs more than it brings."""
        return self.uncached - self.total


def bill(price: Price, traffic: Traffic) -> Bill:
    """What a day of the traffic costs."""
    marked = traffic.cacheable if price.style == "surcharge" else 1.0
    is_cached = traffic.prompt_tokens * marked >= price.min_tokens
    hit = traffic.hit_rate if is_cached else 0.0
    if not is_cached or price.style == "discount":
        marked = hit  # nothing is written at a price of its own
    tokens = traffic.requests_per_day * traffic.prompt_tokens / _MILLION
    output = traffic.requests_per_day * traffic.output_tokens / _MILLION * price.output
    return Bill(
        model=price.model,
        hit_rate=hit,
        read=tokens * hit * price.cached,
        written=tokens * (marked - hit) * price.write(traffic.ttl),
        plain=tokens * (1 - marked) * price.input,
        output=output,
        uncached=tokens * price.input + output,
    )


def break_even_rate(price: Price, ttl: str) -> float:
    """The share of the marked tokens that must hit for caching to cost nothing; 0 where writing is free."""
    surcharge = price.write(ttl) - price.input
    return surcharge / (price.write(ttl) - price.cached) if surcharge > 0 else 0.0


def break_even_uses(price: Price, ttl: str) -> int | None:
    """With how many uses of one prefix, the writing one included, caching is first cheaper than without.

    n uses cost ``write + (n - 1) · cached`` against ``n · input``.  None where a cached token is no cheaper.
    """
    write, cached, plain = (Fraction(str(value)) for value in (price.write(ttl), price.cached, price.input))
    if cached >= plain:
        return None
    return floor((write - cached) / (plain - cached)) + 1


def worth_of_ten_points(price: Price, traffic: Traffic) -> float:
    """Dollars per day that a hit rate ten points higher saves."""
    instead = price.write(traffic.ttl) if price.style == "surcharge" else price.input
    return traffic.requests_per_day * traffic.prompt_tokens / _MILLION * 0.1 * (instead - price.cached)
