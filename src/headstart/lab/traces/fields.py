"""What a line's fields may be, and how to say that they are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from headstart.cache import Namespace

_MOST = 2**31 - 1  # tokens of one request, by far
Count = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
"""A number of tokens."""
Length = Annotated[int, msgspec.Meta(ge=1, le=_MOST)]
"""How many tokens a prompt has."""


def first_of(names: Sequence[str], *mappings: Mapping[str, Any]) -> Any:
    """The first of these fields that is there and not null, mapping after mapping."""
    for mapping in mappings:
        for name in names:
            value = mapping.get(name)
            if value is not None:
                return value
    return None


def text_of(value: object) -> str | None:
    """A name, which may be spelled as a number; None for what can be neither."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return str(value) or None


def count_of(value: object) -> int | None:
    """A number of tokens; None for what can be none."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        return None
    return value


def salt_of(value: Any) -> str | None:
    """A cache salt.  Raises ``RequestError`` for one that the cache refuses."""
    return Namespace(salt=value).salt


def told(error: Exception) -> str:
    """Why a line could not be decoded, as msgspec, or Python for what it leaves to Python, says it."""
    match error:
        case RecursionError():
            return "it is nested too deeply"
        case OverflowError():
            return "a number needs more than 64 bits"
        case msgspec.ValidationError():
            return str(error)
        case _:
            return f"it is no JSON: {str(error).removeprefix('JSON is malformed: ')}"
