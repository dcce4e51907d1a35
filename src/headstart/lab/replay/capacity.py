"""Capacities as people give them, in blocks, tokens, bytes or per cent, and what they are in blocks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from headstart.errors import ConfigError


class Unit(Enum):
    """What a capacity counts."""

    BLOCKS = "blocks"
    TOKENS = "tokens"
    BYTES = "bytes"
    SHARE = "share"
    """Of the trace's unique blocks, 1 being all of them."""
    UNBOUNDED = "unbounded"


@dataclass(frozen=True, slots=True)
class Capacity:
    """One capacity: ``text`` as it was given, and so much of ``unit``."""

    text: str
    unit: Unit
    amount: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Capacity:
        """One of ``4096`` blocks, ``2000000t`` or ``2Mt`` tokens, ``8GiB``, ``10%``, ``unbounded``.

        Raises ``ConfigError`` with the forms that are allowed.
        """
        given = text.strip()
        if given.lower() in ("unbounded", "inf"):
            return cls(given, Unit.UNBOUNDED)
        found = _FORM.fullmatch(given)
        if found is None:
            raise ConfigError(f"{_FORMS}, not {text!r}")
        number, suffix = Fraction(found["number"].replace("_", "")), found["suffix"]
        unit, factor = _SUFFIXES[suffix.lower()]
        if number <= 0 or (unit is Unit.BLOCKS and number % 1):
            raise ConfigError(f"{_FORMS}, not {text!r}")
        return cls(given, unit, float(number * factor))  # exact until here: 0.26208Mt are 262,080 tokens

    @classmethod
    def parse_list(cls, text: str) -> list[Capacity]:
        """Several with commas between them.  Raises ``ConfigError``."""
        return [cls.parse(part) for part in text.split(",")]

    def blocks(self, block_size: int, num_unique_blocks: int, kv_bytes_per_token: int | None) -> int | None:
        """How many whole blocks of ``block_size`` tokens that is; None is unbounded.

        ``num_unique_blocks`` are the trace's, for shares; ``kv_bytes_per_token`` is the model's, for bytes.
        Raises ``ConfigError`` where that is not known, and for less than one block.
        """
        if self.unit is Unit.UNBOUNDED:
            return None
        if self.unit is Unit.BLOCKS:
            count = self.amount
        elif self.unit is Unit.TOKENS:
            count = self.amount / block_size
        elif self.unit is Unit.SHARE:
            return max(1, round(self.amount * num_unique_blocks))
        elif kv_bytes_per_token is None:
            raise ConfigError(
                f"how many blocks {self.text} holds depends on the model: name it with --model, or say with "
                "--kv-bytes-per-token how many bytes the K and V of a token take"
            )
        else:
            count = self.amount / (kv_bytes_per_token * block_size)
        if not 1 <= count <= _MOST_BLOCKS:
            raise ConfigError(
                f"a capacity of {self.text} is {int(count):,} blocks of {block_size} tokens: "
                f"it must be 1 to {_MOST_BLOCKS:,}"
            )
        return int(count)


def distinct(capacities: Sequence[int | None]) -> list[int | None]:
    """The same without those that come twice, small ones first and the unbounded one last."""
    bounded = sorted({each for each in capacities if each is not None})
    return [*bounded, *([None] if None in capacities else [])]


_MOST_BLOCKS = 2**31 - 1
_FORM = re.compile(
    r"(?P<number>\d[\d_]*(\.\d+)?)\s*(?P<suffix>%|[kKmMgG]?[tT]|tokens|blocks|[KMGTkmgt]i?B|)", re.ASCII
)
_SUFFIXES = {
    "": (Unit.BLOCKS, Fraction(1)),
    "blocks": (Unit.BLOCKS, Fraction(1)),
    "%": (Unit.SHARE, Fraction(1, 100)),
    "tokens": (Unit.TOKENS, Fraction(1)),
    "t": (Unit.TOKENS, Fraction(1)),
    **{f"{letter}t": (Unit.TOKENS, Fraction(1000**power)) for power, letter in enumerate("kmg", 1)},
    **{f"{letter}b": (Unit.BYTES, Fraction(1000**power)) for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": (Unit.BYTES, Fraction(1024**power)) for power, letter in enumerate("kmgt", 1)},
}
_FORMS = (
    "a capacity is a number of blocks (4096), of tokens (2000000t, 500kt, 2Mt), of bytes (8GiB, 500MB), "
    "a share of the trace's unique blocks (10%), or unbounded"
)
