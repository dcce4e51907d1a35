"""Grammars of calls that must be made, in llguidance's form of Lark."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from headstart.text.tool_calls.tools import Tool

Spell = Callable[[str], str]
"""A marker as the grammar has it: a special token of the model's vocabulary, or quoted text."""

# As `json.dumps` writes, and so as most templates will write the call into the next turn's prompt.
_AS_TEMPLATES_WRITE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def quoted(text: str) -> str:
    """Text as a grammar has it."""
    return json.dumps(text, ensure_ascii=False)


def choice_of(tools: Sequence[Tool], before: Callable[[str], str], after: str) -> str:
    """The rule ``call``: a call of one of ``tools``, and the rules of their arguments.

    ``before`` is what comes before the arguments of the tool of that name, ``after`` what comes behind them.
    """
    ways = [f"{before(tool.name)} args_{number} {quoted(after)}" for number, tool in enumerate(tools)]
    schemas = [json.dumps(_arguments(tool), ensure_ascii=False) for tool in tools]
    rules = [f"args_{number}: %json {schema}" for number, schema in enumerate(schemas)]
    return "\n".join([f"call: {' | '.join(ways)}", *rules])


def json_call(arguments: str) -> Callable[[str], str]:
    """What `choice_of` has before, in JSON: to the value of ``arguments``, or however they are called."""
    return lambda name: quoted(f'{{"name": {quoted(name)}, "{arguments}": ')


def repeated(rule: str, separator: str, *, several: bool) -> str:
    """A rule once, or ``several`` times."""
    return f"{rule} ({quoted(separator)} {rule})*" if several else rule


def _arguments(tool: Tool) -> dict[str, Any]:
    """The schema of an object without needless white space."""
    schema = dict(tool.parameters or {"properties": {}, "additionalProperties": False})
    options = {**_AS_TEMPLATES_WRITE, "lenient": not tool.strict}
    return {"type": "object", **schema, "x-guidance": options}
