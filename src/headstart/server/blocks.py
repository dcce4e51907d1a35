"""An answer as a row of blocks: a run of text or a tool call, one after another.

`/v1/responses` calls them items of its output, `/v1/messages` blocks of its content.  Both tell when one
begins, how it grows and when it has ended.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Literal

from headstart.errors import EngineError
from headstart.server.choice import CallDelta, Piece
from headstart.server.logprobs import SpelledToken
from headstart.server.replies import EndReason


@dataclass(slots=True)
class TextBlock:
    """Text; ``tokens`` are those it is of, if log-probabilities were asked for."""

    index: int
    text: str = ""
    tokens: list[SpelledToken] = field(default_factory=list)


@dataclass(slots=True)
class CallBlock:
    """A tool call, the ``number``-th of the answer; ``arguments`` are JSON once it has ended."""

    index: int
    number: int
    id: str
    name: str
    arguments: str = ""


Block = TextBlock | CallBlock


@dataclass(frozen=True, slots=True)
class Change:
    """What became of a block: it was ``opened`` empty, grew by a ``delta``, or was ``closed`` for good."""

    kind: Literal["opened", "grown", "closed"]
    block: Block
    delta: str = ""
    tokens: tuple[SpelledToken, ...] = ()


class Blocks:
    """Sorts one choice's pieces into blocks; at most one is open at any time.

    ``finish_reason`` is known before the last block is closed.  With ``never_none`` an answer without a word
    is an empty text.
    """

    def __init__(self, *, never_none: bool = False) -> None:
        self.all: list[Block] = []
        self.finish_reason: EndReason | None = None
        self._never_none = never_none
        self._open: Block | None = None
        self._untold: tuple[SpelledToken, ...] = ()  # tokens whose text is held back

    def take(self, piece: Piece) -> Iterator[Change]:
        """What the piece changes.  Raises `EngineError` for an answer that the engine gave up."""
        if piece.finish_reason == "abort":
            raise EngineError("the engine gave this request up before its answer had ended")
        if piece.text and not isinstance(self._open, TextBlock):
            yield from self._open_another(TextBlock(len(self.all)))
        self._untold += piece.tokens
        if piece.text:
            yield from self._grow(piece.text)
        for part in piece.calls:
            if not isinstance(self._open, CallBlock) or self._open.number != part.number:
                yield from self._open_another(_begun(part, len(self.all)))
            if part.arguments:
                yield from self._grow(part.arguments)
        if piece.finish_reason is not None:
            if self._never_none and not self.all:
                yield from self._open_another(TextBlock(0))
            self.finish_reason = piece.finish_reason
            yield from self._close()

    async def take_all(self, pieces: AsyncGenerator[Piece, None]) -> None:
        """The whole answer at once; ``pieces`` are closed.  Raises as they and `take` do."""
        async with aclosing(pieces):
            async for piece in pieces:
                for _ in self.take(piece):
                    pass

    def _open_another(self, block: Block) -> Iterator[Change]:
        yield from self._close()
        self._open = block
        self.all.append(block)
        yield Change("opened", block)

    def _grow(self, delta: str) -> Iterator[Change]:
        block = self._open
        if isinstance(block, TextBlock):
            block.text += delta
            block.tokens.extend(self._untold)
            yield Change("grown", block, delta, self._untold)
            self._untold = ()
        elif block is not None:
            block.arguments += delta
            yield Change("grown", block, delta)

    def _close(self) -> Iterator[Change]:
        block, self._open = self._open, None
        if isinstance(block, TextBlock):
            block.tokens.extend(self._untold)
        if block is not None:
            self._untold = ()  # of a call they are told nowhere
            yield Change("closed", block)


def _begun(call: CallDelta, index: int) -> CallBlock:
    assert call.id is not None, "a call begins with its id"
    assert call.name is not None, "a call begins with its name"
    return CallBlock(index, call.number, call.id, call.name)
