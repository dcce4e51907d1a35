"""An answer in Anthropic's words: its blocks, the events that tell them, and why it ended."""

from __future__ import annotations

from typing import Any

import pydantic_core

from headstart.server.blocks import Block, Blocks, CallBlock, Change, TextBlock
from headstart.server.generation import Generation
from headstart.server.messages_protocol import (
    BlockDelta,
    BlockStart,
    BlockStop,
    Content,
    Ending,
    InputJsonDelta,
    TextContent,
    TextDelta,
    ToolUse,
)
from headstart.server.replies import Event


def content_of(block: Block) -> Content:
    """A block that has ended.  What a limit has cut off a tool's input is missing there."""
    if isinstance(block, TextBlock):
        return TextContent(type="text", text=block.text)
    return ToolUse(type="tool_use", id=block.id, name=block.name, input=_input(block.arguments))


def _input(arguments: str) -> dict[str, Any]:
    try:
        value = pydantic_core.from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def event_of(change: Change) -> Event:
    """What is told of a change to a block."""
    block = change.block
    match change.kind:
        case "opened":
            return BlockStart(type="content_block_start", index=block.index, content_block=_empty(block))
        case "grown":
            delta: TextDelta | InputJsonDelta
            if isinstance(block, CallBlock):
                delta = InputJsonDelta(type="input_json_delta", partial_json=change.delta)
            else:
                delta = TextDelta(type="text_delta", text=change.delta)
            return BlockDelta(type="content_block_delta", index=block.index, delta=delta)
        case "closed":
            return BlockStop(type="content_block_stop", index=block.index)


def _empty(block: Block) -> Content:
    if isinstance(block, TextBlock):
        return TextContent(type="text", text="")
    return ToolUse(type="tool_use", id=block.id, name=block.name, input={})


def ending_of(blocks: Blocks, generation: Generation, max_tokens: int) -> Ending:
    """Why the answer ended, once it has; ``max_tokens`` is the limit that was asked for."""
    match blocks.finish_reason:
        case "tool_calls":
            return Ending(stop_reason="tool_use", stop_sequence=None)
        case "length" if generation.num_completion_tokens < max_tokens:
            return Ending(stop_reason="model_context_window_exceeded", stop_sequence=None)
        case "length":
            return Ending(stop_reason="max_tokens", stop_sequence=None)
    if (stop := generation.stop_string) is not None:
        return Ending(stop_reason="stop_sequence", stop_sequence=stop)
    return Ending(stop_reason="end_turn", stop_sequence=None)
