"""What a request may ask of the cache, and the terms that come of it.

Nothing of this enters the prompt, and only the salt is a part of what identifies cached content: hints
change how long something is kept and who leaves what behind, never who may find it.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from headstart.engine.request import CacheTerms, Retention
from headstart.server.caller import Caller
from headstart.server.fields import CacheSalt, Flag, must_be

IN_MEMORY_S = 600.0
"""What OpenAI says of prompts kept in memory: 5 to 10 minutes after their last use."""
TTL_S = 1800.0
"""The default of OpenAI's ``prompt_cache_options.ttl``."""
LONGEST_S = 86_400.0
"""24 hours, which is also the most that anybody can ask for."""
_UNITS = {"s": 1, "m": 60, "h": 3600}
_TTL = re.compile(r"([1-9][0-9]{0,4})([smh])")

CacheKey = Annotated[
    Annotated[str, Field(min_length=1, max_length=256)] | None, must_be("a string of 1 to 256 characters")
]


class CacheOptions(BaseModel):
    """OpenAI's ``prompt_cache_options``.

    With ``mode`` "explicit" only marked parts would be kept; as no marks are read, that is none.
    """

    mode: Annotated[Literal["implicit", "explicit"] | None, must_be('"implicit" or "explicit"')] = None
    ttl: Annotated[
        Annotated[str, Field(pattern=rf"^{_TTL.pattern}$")] | None,
        must_be('a time of at most a day, like "90s", "30m" or "24h"'),
    ] = None


class CacheHints(BaseModel):
    """The fields of a request's body that are about the cache."""

    cache_salt: CacheSalt = None
    skip_reading_prefix_cache: Flag = None
    skip_writing_prefix_cache: Flag = None
    prompt_cache_key: CacheKey = None
    prompt_cache_retention: Annotated[
        Literal["in_memory", "in-memory", "24h"] | None, must_be('"in_memory" or "24h"')
    ] = None
    prompt_cache_options: Annotated[CacheOptions | None, must_be('an object like {"ttl": "30m"}')] = None

    @property
    def retention_s(self) -> float | None:
        """How many seconds the prompt is to be kept, by the longest of what is asked; None if nobody asks."""
        times: list[float] = []
        if self.prompt_cache_retention is not None:
            times.append(LONGEST_S if self.prompt_cache_retention == "24h" else IN_MEMORY_S)
        options = self.prompt_cache_options
        if options is not None and options.mode != "explicit":
            times.append(TTL_S if options.ttl is None else seconds_of(options.ttl))
        if self.prompt_cache_key is not None:
            times.append(IN_MEMORY_S)
        return max(times, default=None)


def seconds_of(ttl: str) -> float:
    """``30m`` as 1800.0, and nothing above `LONGEST_S`.  Raises ``ValueError`` for what is no such time."""
    found = _TTL.fullmatch(ttl)
    if found is None:
        raise ValueError(ttl)
    return min(float(found[1]) * _UNITS[found[2]], LONGEST_S)


def retention(seconds: float, *, key: str | None = None, salt: str | None = None) -> Retention:
    """Keep a prompt for ``seconds``, in the place of the last one of the same ``key`` and ``salt``.

    The key is told to the engine as a digest, which a decision log may have in it.
    """
    name = None
    if key is not None:
        name = f"key-{blake2b(repr((salt, key)).encode(), digest_size=12).hexdigest()}"
    return Retention(min(seconds, LONGEST_S), name)


def terms_of(hints: CacheHints, caller: Caller) -> CacheTerms:
    """The terms of a caller's request with these hints, under the salt that really keeps its cache apart.

    All whom nobody knows have one share of the pool together: a flood of them is one tenant's.
    """
    salt = caller.salt(hints.cache_salt)
    skip_writing = bool(hints.skip_writing_prefix_cache)
    seconds = None if skip_writing else hints.retention_s
    return CacheTerms(
        salt=salt,
        tenant=None if caller.is_anonymous else caller.tenant,
        skip_reading=bool(hints.skip_reading_prefix_cache),
        skip_writing=skip_writing,
        retention=None if seconds is None else retention(seconds, key=hints.prompt_cache_key, salt=salt),
    )
