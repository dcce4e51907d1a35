"""A conversation, in whichever API's words it was asked for, on its way to the model and back.

`/v1/chat/completions`, `/v1/responses` and `/v1/messages` each read their own bodies and write their own
answers; between the two they all do what is here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from headstart.engine.request import SamplingParams
from headstart.errors import RequestError
from headstart.server.choice import Piece
from headstart.server.front import Front, Ticket
from headstart.server.generation import Generation

# `ChatTemplate.render`'s own arguments, which a request's further variables must not touch.
RESERVED_VARIABLES = {"self", "messages", "tools", "add_generation_prompt"}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether tools may or must be called: ``required`` is at least one call.

    ``names`` are the tools that may be called then; None is all of them.
    """

    mode: Literal["none", "auto", "required"] = "auto"
    names: tuple[str, ...] | None = None


AUTO = ToolChoice()
"""The model decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What the model is to continue.

    ``messages`` and ``tools`` have the form of OpenAI's chat, which chat templates know; a tool call's
    arguments are JSON text, as on the wire.  An answer has at most one call unless ``parallel_tool_calls``.

    ``add_generation_prompt`` opens a new turn of the assistant.  ``continue_final_message`` leaves the last
    message open instead, so that the answer goes on where it ends.  ``chat_template`` takes the place of the
    model's own.  ``documents`` and ``variables`` are further ones for the template.  ``origin`` is what the
    client calls the field that the messages are in.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice = AUTO
    parallel_tool_calls: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: str | None = None
    documents: list[dict[str, Any]] | None = None
    variables: dict[str, Any] = field(default_factory=dict)
    origin: str = "messages"


class Answer:
    """What comes back: its choices' texts and tool calls as they are settled, and the bill."""

    def __init__(self, generation: Generation) -> None:
        self.generation = generation

    def pieces(self) -> AsyncGenerator[Piece, None]:
        """The answer as it grows; to be run through once.  Raises as `Generation.pieces`."""
        return self.generation.pieces()


async def answer(
    front: Front, conversation: Conversation, params: SamplingParams, ticket: Ticket, *, shorten: bool = False
) -> Answer:
    """The conversation given to the engine; to ``shorten`` is to cut ``max_tokens`` to what fits.

    Raises `RequestError` for what cannot be rendered, is too long or can never be served.
    """
    prompt = await prompt_of(front, conversation)
    if shorten:
        params = replace(params, max_tokens=front.fitting(params.max_tokens, prompt))
    return Answer(front.generate(prompt, params, ticket, prompt_field=conversation.origin))


async def prompt_of(front: Front, conversation: Conversation) -> list[int]:
    """The tokens that the model is given for the conversation.

    Raises `RequestError` for what cannot be rendered or is far too long.
    """
    text = await asyncio.to_thread(_render, front, conversation)  # the model's template may take its time
    # Templates write a model's special tokens themselves.
    special, origin = conversation.add_special_tokens, conversation.origin
    return await front.encode(text, add_special_tokens=special, field=origin)


def _render(front: Front, conversation: Conversation) -> str:
    """The conversation as the text that the model was trained on."""
    if front.template is None:
        raise RequestError(
            f"the model {front.model!r} has no chat template; send a prompt to /v1/completions instead",
            param=conversation.origin,
            code="no_chat_template",
        )
    if reserved := RESERVED_VARIABLES & conversation.variables.keys():
        raise RequestError(
            f"chat_template_kwargs must not set {', '.join(sorted(reserved))}: they are fields of their own",
            param="chat_template_kwargs",
            code="invalid_value",
        )
    try:
        return front.template.render(
            conversation.messages,
            add_generation_prompt=conversation.add_generation_prompt,
            **conversation.variables,
        )
    except RequestError as error:
        if error.param == "messages":
            error.param = conversation.origin
        raise
