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
from headstart.server.caller import ANYONE, Caller
from headstart.server.choice import Piece, Telling
from headstart.server.expected_calls import ExpectedCalls, pieces_with_calls
from headstart.server.front import Front, Ticket
from headstart.server.generation import Generation
from headstart.text import ChatTemplate
from headstart.text.tool_calls import FORMAT_NAMES, Tool, format_named

# `ChatTemplate.render`'s own arguments, which a request's further variables must not touch.
RESERVED_VARIABLES = {"self", "messages", "tools", "add_generation_prompt", "continue_final_message"}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether tools may or must be called: ``required`` is at least one call.

    ``names`` are the tools that may be called then; None is all of them, and a single one is called once.
    With "none", whatever the model
    writes is text.
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

    def __init__(self, generation: Generation, expected: ExpectedCalls | None = None) -> None:
        self.generation = generation
        self._expected = expected

    def pieces(self) -> AsyncGenerator[Piece, None]:
        """The answer as it grows; to be run through once.  Raises as `Generation.pieces`."""
        if self._expected is None:
            return self.generation.pieces()
        return pieces_with_calls(self.generation, self._expected)


async def answer(
    front: Front, conversation: Conversation, params: SamplingParams, ticket: Ticket, *, shorten: bool = False
) -> Answer:
    """The conversation given to the engine; to ``shorten`` is to cut ``max_tokens`` to what fits.

    Raises `RequestError` for what cannot be rendered, is too long or can never be served.
    """
    prompt = await prompt_of(front, conversation, ticket.caller)
    if shorten:
        params = replace(params, max_tokens=front.fitting(params.max_tokens, prompt))
    expected = _expected_calls(front, conversation, ticket.telling)
    if expected is not None:
        params = expected.constrained(params)
        ticket = replace(ticket, telling=expected.telling(ticket.telling))
    await front.check_structure(params)
    return Answer(front.generate(prompt, params, ticket, prompt_field=conversation.origin), expected)


async def prompt_of(front: Front, conversation: Conversation, caller: Caller = ANYONE) -> list[int]:
    """The tokens that the model is given for the conversation.

    Raises `RequestError` for what cannot be rendered or is far too long.
    """
    text = await asyncio.to_thread(render, front, conversation, caller)  # a template may take its time
    # Templates write a model's special tokens themselves.
    special, origin = conversation.add_special_tokens, conversation.origin
    return await front.encode(text, add_special_tokens=special, field=origin)


def render(front: Front, conversation: Conversation, caller: Caller) -> str:
    """The conversation as the text that the model was trained on.

    Raises `RequestError` if there is no template, if the caller may not bring one, or if it cannot take it.
    """
    if conversation.chat_template is not None:
        _check_trust(front, caller)
    if reserved := RESERVED_VARIABLES & conversation.variables.keys():
        raise RequestError(
            f"chat_template_kwargs must not set {', '.join(sorted(reserved))}: they are fields of their own",
            param="chat_template_kwargs",
            code="invalid_value",
        )
    try:
        return _template(front, conversation).render(
            conversation.messages,
            tools=conversation.tools,
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
            **{"documents": conversation.documents, **conversation.variables},
        )
    except RequestError as error:
        if error.param == "messages":
            error.param = conversation.origin
        raise


def _template(front: Front, conversation: Conversation) -> ChatTemplate:
    """The request's own template, or else the model's."""
    if conversation.chat_template is not None:
        tokens = {"bos_token": front.tokenizer.bos_token, "eos_token": front.tokenizer.eos_token}
        named = {name: token for name, token in tokens.items() if token is not None}
        own = front.template.named if front.template is not None else {}
        return front.request_templates.get(conversation.chat_template, {**named, **own})
    if front.template is None:
        raise RequestError(
            f"the model {front.model!r} has no chat template; send a prompt to /v1/completions instead",
            param=conversation.origin,
            code="no_chat_template",
        )
    return front.template


def _check_trust(front: Front, caller: Caller) -> None:
    """Whether requests may bring templates.

    They are programs, whose time and output are bounded and whose memory is not; so strangers who are to be
    kept apart do not run theirs in the process that serves them all, unless the operator says so.
    """
    trusted = front.config.trust_request_chat_template
    if not (caller.tenant is None if trusted is None else trusted):
        raise RequestError(
            "chat_template is refused: this server was not started with --trust-request-chat-template",
            param="chat_template",
            code="untrusted_chat_template",
        )


def _expected_calls(front: Front, conversation: Conversation, telling: Telling) -> ExpectedCalls | None:
    """What calls of tools the answer may have; None for none.

    The model is told of its tools in any case, so that the prompt begins as it did the last time.
    """
    choice = conversation.tool_choice
    if not conversation.tools or choice.mode == "none":
        return None
    template, parser = _template(front, conversation), front.config.tool_call_parser
    tool_format = template.tool_format if parser == "auto" else format_named(parser, template.tool_source)
    if tool_format is None:
        raise RequestError(
            "the chat template writes tool calls in a form that this server cannot read: send tool_choice "
            f"'none', or start it with --tool-call-parser and one of {', '.join(FORMAT_NAMES)}",
            param="tools",
            code="unsupported_tool_format",
        )
    forced = choice.mode == "required"
    return ExpectedCalls(
        tool_format,
        Tool.all_of(conversation.tools),
        front.tokenizer.special_ids(tool_format.markers),
        forced=forced,
        allowed=choice.names,
        several=conversation.parallel_tool_calls and not (forced and len(choice.names or ()) == 1),
        hides_markers=telling.skip_special_tokens,
    )
