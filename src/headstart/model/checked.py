"""Reading of configurations that others wrote: every value is checked before it is used."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headstart.errors import CorruptModelError, UnsupportedModelError


class CheckedValues:
    """Checked access to a configuration; ``where`` names it in errors."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self.where = where

    def refuse(self, name: str, expected: object) -> None:
        """Raise `UnsupportedModelError` unless the option is absent or has the one value that is computed."""
        value = self._values.get(name)
        if value is not None and value != expected:
            raise UnsupportedModelError(
                f"{self.where}: {name} = {value!r} is not supported"
                + ("" if expected is None else f"; only {expected!r} is")
            )

    def refuse_window(self, name: str, context_length: int) -> None:
        """Raise `UnsupportedModelError` for attention that does not reach back over the whole context."""
        window = self._values.get(name)
        if window and self.integer(name) < context_length:
            raise UnsupportedModelError(
                f"{self.where}: {name} = {window!r} is not supported; "
                f"attention must reach back over the whole context of {context_length} tokens"
            )

    def text(self, *names: str) -> str | None:
        """The first of ``names`` that is given."""
        return next((str(self._values[name]) for name in names if self._values.get(name) is not None), None)

    def integer(self, name: str, default: int | None = None) -> int:
        """A positive integer; raises `CorruptModelError` for anything else."""
        value = self._get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CorruptModelError(f"{self.where}: {name} must be a positive integer, not {value!r}")
        return value

    def first_integer(self, *names: str, default: int | None = None) -> int:
        """As `integer`, of the first of ``names`` that is given."""
        return self.integer(
            next((name for name in names if self._values.get(name) is not None), names[0]), default
        )

    def number(self, name: str, default: float | None = None) -> float:
        """A positive finite number; raises `CorruptModelError` for anything else."""
        value = self._get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise CorruptModelError(f"{self.where}: {name} must be a positive number, not {value!r}")
        return float(value)

    def _get(self, name: str, default: float | None) -> Any:
        value = self._values.get(name)
        if value is None:
            value = default
        if value is None:
            raise CorruptModelError(f"{self.where}: {name} is missing")
        return value


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; raises `CorruptModelError` for anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CorruptModelError(f"{path} is not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise CorruptModelError(f"{path} is not a JSON object")
    return value
