"""Pieces sorted into blocks of text and calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest

from headstart.errors import EngineError
from headstart.server.blocks import Blocks, CallBlock, TextBlock
from headstart.server.choice import CallDelta, Piece

PIECES = [
    Piece(0, "", None),
    Piece(0, "Let me ", None),
    Piece(0, "look.", None, calls=(CallDelta(0, id="call_a", name="weather"),)),
    Piece(0, "", None, calls=(CallDelta(0, '{"city": '), CallDelta(0, '"Oslo"}'))),
    Piece(0, "", None, calls=(CallDelta(1, "{}", id="call_b", name="time"),)),
    Piece(0, "", "tool_calls"),
]


def changes(blocks: Blocks, pieces: Sequence[Piece]) -> list[tuple[str, int, str]]:
    return [
        (change.kind, change.block.index, change.delta) for piece in pieces for change in blocks.take(piece)
    ]


def test_one_block_after_another() -> None:
    blocks = Blocks()
    assert changes(blocks, PIECES) == [
        ("opened", 0, ""),
        ("grown", 0, "Let me "),
        ("grown", 0, "look."),
        ("closed", 0, ""),
        ("opened", 1, ""),
        ("grown", 1, '{"city": '),
        ("grown", 1, '"Oslo"}'),
        ("closed", 1, ""),
        ("opened", 2, ""),
        ("grown", 2, "{}"),
        ("closed", 2, ""),
    ]
    assert blocks.all == [
        TextBlock(0, "Let me look."),
        CallBlock(1, 0, "call_a", "weather", '{"city": "Oslo"}'),
        CallBlock(2, 1, "call_b", "time", "{}"),
    ]
    assert blocks.finish_reason == "tool_calls"


def test_text_after_a_call_is_another_block() -> None:
    blocks = Blocks()
    call = Piece(0, "", None, calls=(CallDelta(0, "{}", id="a", name="f"),))
    changes(blocks, [call, Piece(0, "done", "stop")])
    assert blocks.all == [CallBlock(0, 0, "a", "f", "{}"), TextBlock(1, "done")]


def test_only_the_last_block_is_closed_with_a_reason_known() -> None:
    blocks = Blocks()
    last = Piece(0, "text", "length", calls=(CallDelta(0, '{"a', id="a", name="f"),))
    known = [
        (change.block.index, blocks.finish_reason) for change in blocks.take(last) if change.kind == "closed"
    ]
    assert known == [(0, None), (1, "length")]


@pytest.mark.parametrize(("never_none", "count"), [(False, 0), (True, 1)])
def test_an_answer_without_a_word(never_none: bool, count: int) -> None:
    blocks = Blocks(never_none=never_none)
    changes(blocks, [Piece(0, "", "stop")])
    assert blocks.all == [TextBlock(0)][:count]


def test_all_at_once_closes_the_pieces() -> None:
    closed = []

    async def pieces() -> AsyncGenerator[Piece, None]:
        try:
            yield Piece(0, "half", None)
            yield Piece(0, "", "abort")
        finally:
            closed.append(True)

    async def scene() -> None:
        with pytest.raises(EngineError, match="gave this request up"):
            await Blocks().take_all(pieces())

    asyncio.run(scene())
    assert closed == [True]
