"""Llama 3's form: JSON with ``parameters``, with or without a ``<|python_tag|>`` before it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headstart.text.tool_calls.grammar import Spell, choice_of, json_call, repeated
from headstart.text.tool_calls.json_calls import call
from headstart.text.tool_calls.parts import Output
from headstart.text.tool_calls.reader import Broken, CallParser, Characters, Reading
from headstart.text.tool_calls.tools import Tool

TAG = "<|python_tag|>"


class LlamaJson:
    """``{"name": …, "parameters": {…}}``; several have a ``;`` between them.

    Without a marker, JSON is a call only if its first words are the name of a tool that was given.
    """

    name = "llama3_json"
    markers = frozenset({TAG})
    short_ids = False

    def parser(
        self,
        tools: Sequence[Tool],
        hidden: Collection[str] = (),
        *,
        several: bool = True,
    ) -> CallParser:
        """A reader of calls of these tools."""
        reader = _Reader(frozenset(tool.name for tool in tools))
        return CallParser(
            {TAG: reader.behind_tag, "{": reader.bare, ";": reader.another}, hidden, several=several
        )

    def grammar(self, tools: Sequence[Tool], spell: Spell, *, several: bool) -> str:  # noqa: ARG002
        """One call of these tools; ``several``: or more."""
        start = f"start: {repeated('call', '; ', several=several)}"
        return f"{start}\n{choice_of(tools, json_call('parameters'), '}')}"


class _Reader:
    def __init__(self, known: frozenset[str]) -> None:
        self._known = known

    def behind_tag(self, chars: Characters, out: Output) -> Reading[None]:
        yield from chars.skip_space()
        yield from call(chars, out, self._known)

    def bare(self, chars: Characters, out: Output) -> Reading[None]:
        chars.back()
        yield from call(chars, out, self._known)

    def another(self, chars: Characters, out: Output) -> Reading[None]:
        if not out.follows_call:
            raise Broken
        if (yield from chars.skip_space()) == TAG[0]:
            yield from chars.literal(TAG)
        yield from call(chars, out, self._known)
