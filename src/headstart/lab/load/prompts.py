"""Prompts made of random token ids, which share what they are meant to share and nothing else."""

from __future__ import annotations

import random
import re

from headstart.errors import ConfigError


class PromptSource:
    """Token ids drawn from ``vocab``; the same seed gives the same prompts again.

    No two of its prefixes begin with the same token, so none can hit what another left behind.
    """

    def __init__(self, vocab: range, seed: int) -> None:
        self._vocab = vocab
        self._random = random.Random(seed)  # noqa: S311 - load, not secrets
        self._first_tokens = iter(self._random.sample(vocab, len(vocab)))

    def prefix(self, length: int) -> list[int]:
        """A prefix that no earlier prompt began with."""
        if length == 0:
            return []
        first = next(self._first_tokens, None)
        if first is None:
            raise ConfigError(
                f"a vocabulary range of {len(self._vocab)} ids has too few first tokens for this many prompts"
            )
        return [first, *self._random.choices(self._vocab, k=length - 1)]

    def tails(self, count: int, length: int) -> list[list[int]]:
        """``count`` endings for one prefix, which part from each other at their first token."""
        if count > len(self._vocab):
            raise ConfigError(f"a vocabulary range of {len(self._vocab)} ids has no {count} different tails")
        return [
            [first, *self._random.choices(self._vocab, k=length - 1)]
            for first in self._random.sample(self._vocab, count)
        ]


def parse_vocab(text: str) -> range:
    """``LOW:HIGH`` as a range: ids of at least LOW and below HIGH.  Raises ``ConfigError``."""
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if not found or int(found[1]) >= int(found[2]):
        raise ConfigError(f"a vocabulary range is LOW:HIGH with LOW below HIGH, as 1000:20000, not {text!r}")
    return range(int(found[1]), int(found[2]))
