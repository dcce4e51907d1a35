"""Mistral's forms: behind ``[TOOL_CALLS]``, a list of calls as JSON, or a name and its arguments."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headstart.text.tool_calls.grammar import Spell, choice_of, json_call, quoted, repeated
from headstart.text.tool_calls.json_calls import MAX_NAME, calls, stream_object
from headstart.text.tool_calls.parts import Output
from headstart.text.tool_calls.reader import Broken, CallParser, Characters, Reading
from headstart.text.tool_calls.tools import Tool

MARKER, ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


class Mistral:
    """``[TOOL_CALLS][{"name": …, "arguments": {…}}, …]``, and the newer ``[TOOL_CALLS]name[ARGS]{…}``.

    All of them are read.  ``named`` says which of them is written where a call is asked for.
    """

    name = "mistral"
    markers = frozenset({MARKER, ID, ARGUMENTS})
    short_ids = True  # its templates take ids of nine letters and digits, and no others

    def __init__(self, *, named: bool = False) -> None:
        self._named = named

    def parser(
        self,
        tools: Sequence[Tool],  # noqa: ARG002
        hidden: Collection[str] = (),
        *,
        several: bool = True,
    ) -> CallParser:
        """A reader of calls of whichever tools."""
        return CallParser({MARKER: _start}, hidden, several=several)

    def grammar(self, tools: Sequence[Tool], spell: Spell, *, several: bool) -> str:
        """One call of these tools; ``several``: or more."""
        if self._named:
            one = choice_of(tools, lambda name: f"{spell(MARKER)} {quoted(name)} {spell(ARGUMENTS)}", "")
            return f"start: {'call+' if several else 'call'}\n{one}"
        many = repeated("call", ", ", several=several)
        start = f'start: {spell(MARKER)} "[" {many} "]"'
        return f"{start}\n{choice_of(tools, json_call('arguments'), '}')}"


def _start(chars: Characters, out: Output) -> Reading[None]:
    """What follows the marker."""
    if (yield from chars.skip_space()) in "[{":
        yield from calls(chars, out)
        return
    name = yield from _word(chars)
    if (yield from chars.peek()) == "[":
        yield from chars.next()
        if (yield from chars.peek()) == ID[1]:
            yield from chars.literal(ID[1:])
            yield from _word(chars)
            yield from chars.literal("[")
        yield from chars.literal(ARGUMENTS[1:])
    if (yield from chars.skip_space()) != "{":
        raise Broken
    chars.release()
    out.open(name)
    yield from stream_object(chars, out)


def _word(chars: Characters) -> Reading[str]:
    """A name or an id, as far as the next bracket."""
    word: list[str] = []
    while (char := (yield from chars.peek())) not in "[{":  # nor is END
        if char.isspace() or not char.isprintable() or len(word) >= MAX_NAME:
            break
        word.append((yield from chars.next()))
    if not word:
        raise Broken
    return "".join(word)
