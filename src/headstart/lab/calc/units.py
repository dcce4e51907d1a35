"""Bytes as people write and read them."""

from __future__ import annotations

import re

from headstart.errors import ConfigError

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def parse_bytes(text: str, option: str) -> int:
    """``24GiB``, ``80 GB`` or a plain number as bytes.  Raises ``ConfigError`` that names the option."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", text.lower())
    if found is None or found[2] not in _UNITS:
        raise ConfigError(f"{option} must be a size such as 24GiB, 80GB or a number of bytes, not {text!r}")
    return int(float(found[1]) * _UNITS[found[2]])


def show_bytes(count: float) -> str:
    """In the binary unit that fits: ``22.5 KiB``, ``14.96 GiB``."""
    for unit, digits in (("TiB", 2), ("GiB", 2), ("MiB", 1), ("KiB", 1)):
        if count >= _UNITS[unit.lower()]:
            return f"{count / _UNITS[unit.lower()]:,.{digits}f} {unit}"
    return f"{count:,.0f} bytes"
