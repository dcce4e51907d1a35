"""Calls of tools that an answer may, or must, have: how the model is held to them, and how they are read."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from headstart.engine.request import SamplingParams
from headstart.engine.structured import StructuredOutputs
from headstart.server.choice import CallDelta, Piece, Telling
from headstart.server.generation import Generation
from headstart.text.tool_calls import CallPart, Parsed, Tool, ToolFormat
from headstart.text.tool_calls.grammar import quoted


@dataclass(frozen=True, slots=True)
class ExpectedCalls:
    """The tools of a request, and the form that its model writes calls in.

    ``special`` are the ids of those markers of the form that are special tokens.  With ``forced`` the answer
    is at least one call, of an ``allowed`` tool (None: of any).  Unless ``several``, it has at most one.
    ``hides_markers`` is for special tokens that turn out to be no call's.
    """

    form: ToolFormat
    tools: Sequence[Tool]
    special: Mapping[str, int]
    forced: bool = False
    allowed: Sequence[str] | None = None
    several: bool = True
    hides_markers: bool = True

    def constrained(self, params: SamplingParams) -> SamplingParams:
        """``params`` under which only calls can be written, if they are forced."""
        if not self.forced:
            return params
        tools = [tool for tool in self.tools if self.allowed is None or tool.name in self.allowed]
        grammar = self.form.grammar(tools, self._spell, several=self.several)
        return replace(params, structured_outputs=StructuredOutputs(grammar=grammar, origin="tools"))

    def telling(self, telling: Telling) -> Telling:
        """``telling``, with the markers that calls are recognised by."""
        return replace(telling, visible=frozenset(self.special.values()))

    def reader(self) -> CallReader:
        """A reader of one choice."""
        return CallReader(self, hidden=tuple(self.special) if self.hides_markers else ())

    def _spell(self, marker: str) -> str:
        """A special token by its id, since not every name can stand in a grammar; others are text."""
        return f"<[{self.special[marker]}]>" if marker in self.special else quoted(marker)


class CallReader:
    """Takes the calls out of the text of one choice."""

    def __init__(self, expected: ExpectedCalls, hidden: Sequence[str]) -> None:
        self._parser = expected.form.parser(expected.tools, hidden, several=expected.several)
        # A forced answer ends by itself, and the markers that do it are the beginning of the next prompt.
        self._ends_with_first = not expected.several and not expected.forced
        self._short_ids = expected.form.short_ids
        self._num_calls = 0
        self.ended = False
        """Whether nothing more is told of this choice."""

    def take(self, piece: Piece) -> Piece:
        """The piece with its calls apart from its text."""
        parsed = [self._parser.push(piece.text)]
        if piece.finish_reason is not None:
            parsed.append(self._parser.finish())
        calls = tuple(self._named(parsed))
        enough = self._ends_with_first and parsed[-1].num_complete > 0
        reason = "stop" if enough else piece.finish_reason
        if reason == "stop" and self._num_calls:
            reason = "tool_calls"
        self.ended = reason is not None
        text = "".join(one.text for one in parsed)
        return replace(piece, text=text, calls=calls, finish_reason=reason)

    def _named(self, parsed: Sequence[Parsed]) -> Iterator[CallDelta]:
        for part in (part for one in parsed for part in one.calls):
            yield self._delta(part)

    def _delta(self, part: CallPart) -> CallDelta:
        if part.name is None:
            return CallDelta(part.number, part.arguments)
        self._num_calls += 1
        random = uuid.uuid4().hex
        call_id = random[:9] if self._short_ids else f"call_{random[:24]}"
        return CallDelta(part.number, part.arguments, call_id, part.name)


async def pieces_with_calls(generation: Generation, expected: ExpectedCalls) -> AsyncGenerator[Piece, None]:
    """The pieces of ``generation`` with the calls apart; a choice that has all it may have ends early."""
    readers: dict[int, CallReader] = {}
    async with aclosing(generation.pieces()) as arriving:
        async for piece in arriving:
            if piece.index not in readers:
                readers[piece.index] = expected.reader()
            reader = readers[piece.index]
            if reader.ended:
                continue
            told = reader.take(piece)
            if told.finish_reason is not None:
                generation.end(piece.index)
            yield told
