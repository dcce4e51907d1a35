"""Secrets that stood on our command line or in our environment, made unreadable there."""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from pathlib import Path


def blot_out(words: Collection[str], variables: Collection[str]) -> bool:
    """Overwrite the arguments of this process that are one of ``words``, and what ``variables`` are set to.

    Process lists then show as many x; what Python has read of them stays as it is.  False where the
    system does not say where they are (only Linux does).
    """
    try:
        # Fields 48 to 51 of proc(5): where arguments and environment begin and end.  The second one may hold
        # spaces and parentheses, so counting begins after it, with the third.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        arguments, arguments_end, environment, environment_end = map(int, fields[45:49])
    except (OSError, ValueError):
        return False
    if not (0 < arguments < arguments_end and 0 < environment <= environment_end):
        return False
    secrets = {word.encode() for word in words}
    place = arguments
    for item in _items(arguments, arguments_end):
        value = item.partition(b"=")[2] if item.startswith(b"--") and item not in secrets else item
        if value in secrets:
            _cover(place + len(item) - len(value), len(value))
        place += len(item) + 1
    place = environment
    for item in _items(environment, environment_end):
        name, _, value = item.partition(b"=")
        if name.decode("utf-8", "replace") in variables:
            _cover(place + len(item) - len(value), len(value))
        place += len(item) + 1
    return True


def _items(start: int, end: int) -> list[bytes]:
    return ctypes.string_at(start, end - start).split(b"\0")


def _cover(address: int, num_bytes: int) -> None:
    ctypes.memset(address, ord("x"), num_bytes)
