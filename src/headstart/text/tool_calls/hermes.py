"""Hermes' form, which Qwen and SmolLM have, too: JSON between ``<tool_call>`` and ``</tool_call>``."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headstart.text.tool_calls.grammar import Spell, choice_of, json_call, repeated
from headstart.text.tool_calls.json_calls import calls
from headstart.text.tool_calls.parts import Output
from headstart.text.tool_calls.reader import Broken, CallParser, Characters, Reading
from headstart.text.tool_calls.tools import Tool

BEGIN, FINISH = "<tool_call>", "</tool_call>"


class Hermes:
    """``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, or a list in place of the one object."""

    name = "hermes"
    markers = frozenset({BEGIN, FINISH})
    short_ids = False

    def parser(
        self,
        tools: Sequence[Tool],  # noqa: ARG002
        hidden: Collection[str] = (),
        *,
        several: bool = True,
    ) -> CallParser:
        """A reader of calls of whichever tools."""
        return CallParser({"<": Tagged().start}, hidden, several=several)

    def grammar(self, tools: Sequence[Tool], spell: Spell, *, several: bool) -> str:
        """One call of these tools; ``several``: or more."""
        start = f"start: {repeated('tagged', chr(10), several=several)}"
        tagged = rf'tagged: {spell(BEGIN)} "\n" call "\n" {spell(FINISH)}'
        return "\n".join([start, tagged, choice_of(tools, json_call("arguments"), "}")])


class Tagged:
    """Reads calls in their tags.

    An end tag that the JSON before it did not lead up to, because a bracket was missing, is no text either.
    """

    def __init__(self) -> None:
        self._end_is_due = False

    def start(self, chars: Characters, out: Output) -> Reading[None]:
        """From ``<`` on."""
        if (yield from chars.peek()) == "/":
            yield from chars.literal(FINISH[1:])
            if not self._end_is_due:
                raise Broken
            self._end_is_due = False
            return
        yield from chars.literal(BEGIN[1:])
        before = out.num_calls
        try:
            yield from self.inside(chars, out)
            yield from chars.skip_space()
            yield from chars.literal(FINISH)
        except Broken:
            self._end_is_due = out.num_calls > before
            raise
        self._end_is_due = False

    def inside(self, chars: Characters, out: Output) -> Reading[None]:
        """What is between the tags."""
        yield from calls(chars, out)
