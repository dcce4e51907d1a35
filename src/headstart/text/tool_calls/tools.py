"""Tools as a format's reader and its grammar need them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool's name and the JSON schema of its arguments; None takes none.

    Where a schema has a keyword that cannot be enforced, a ``strict`` tool is an error; others go without.
    """

    name: str
    parameters: Mapping[str, Any] | None = None
    strict: bool = False

    @classmethod
    def all_of(cls, tools: Sequence[Mapping[str, Any]]) -> list[Tool]:
        """Those of a request, which has them in OpenAI's form."""
        functions = [tool["function"] for tool in tools]
        return [
            cls(function["name"], function.get("parameters"), function.get("strict") is True)
            for function in functions
        ]

    @property
    def properties(self) -> Mapping[str, Any]:
        """The schema of each argument, as far as the tool tells."""
        found = (self.parameters or {}).get("properties")
        return found if isinstance(found, Mapping) else {}
