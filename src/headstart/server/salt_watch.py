"""Salts that clients choose: one that can be guessed protects nothing, and the operator is told once."""

from __future__ import annotations

import logging
import re

from headstart.server.caller import Caller

logger = logging.getLogger(__name__)

SHORTEST = 16
"""Characters: a random one of so many letters and digits has more than 90 bits."""
_WORD = "([A-Z]?[a-z]+|[A-Z]+)"
_WORDS = re.compile(f"{_WORD}([ ._:-]{_WORD})*")
_LONGEST_WORDS = 32


def is_guessable(salt: str) -> bool:
    """Whether ``salt`` is short, repeats itself, is a number or looks like words: a guess, not a measure."""
    if len(salt) < SHORTEST or len(set(salt)) < SHORTEST // 2:
        return True
    if re.fullmatch(r"[0-9 ._:-]*", salt):
        return True
    return len(salt) < _LONGEST_WORDS and _WORDS.fullmatch(salt) is not None


class SaltWatch:
    """Warns of the first salt that can be guessed, without saying it."""

    def __init__(self) -> None:
        self._warned = False

    def look(self, salt: str, caller: Caller) -> None:
        """Look at the salt that ``caller`` sent."""
        if self._warned or not is_guessable(salt):
            return
        self._warned = True
        whose = "a client" if caller.tenant is None else f"a client of tenant {caller.tenant}"
        logger.warning(
            "%s sent a cache_salt that is short or can be guessed, and others could find out what is cached "
            "under it; salts should be random, of at least 22 letters and digits (this is said once)",
            whose,
        )
