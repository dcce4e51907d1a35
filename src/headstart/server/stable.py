"""What stays the same of a prompt whatever follows it: the tokens that every continuation begins with."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from headstart.errors import RequestError
from headstart.server.caller import Caller
from headstart.server.conversation import Conversation, render
from headstart.server.front import Front

_ENDINGS = ("", "a", " a", "0", ".", "\n")
"""Texts that may follow a prompt, one of each kind that tokenizers join to what stands before."""
_LAST_WORD = re.compile(r"\s*\S{0,32}\s*\Z")
"""Which may go on, and be other tokens then.  Where a script has no spaces, so many letters are enough."""


async def stable_tokens(front: Front, conversation: Conversation, caller: Caller) -> list[int]:
    """The tokens that the conversation and all that continue it have in common.

    Some continuations are rendered and tokenised, and what they share is kept: templates may write a
    message otherwise when others follow, and tokenizers may join the last characters to the next ones.
    Raises `RequestError` if nothing can be rendered, or nothing is common.
    """
    texts = await asyncio.to_thread(_texts, front, conversation, caller)
    return await _common(front, texts, special=conversation.add_special_tokens, origin=conversation.origin)


async def stable_text_tokens(front: Front, text: str, *, special: bool) -> list[int]:
    """The same for a text that may go on in any way: its last word is left out, unless it is all there is."""
    texts = [text + ending for ending in _ENDINGS]
    last = _LAST_WORD.search(text, max(0, len(text) - 256))
    if last is not None and last.start():
        texts.append(text[: last.start()])
    return await _common(front, texts, special=special, origin="prompt")


def _texts(front: Front, conversation: Conversation, caller: Caller) -> list[str]:
    """The conversation and some that continue it, as far as the template takes them."""
    texts: list[str] = []
    refusals: list[RequestError] = []

    def add(further: list[dict[str, Any]], *, opens: bool = True) -> None:
        messages = [*conversation.messages, *further]
        try:
            continued = replace(
                conversation, messages=messages, add_generation_prompt=opens, continue_final_message=False
            )
            texts.append(render(front, continued, caller))
        except RequestError as error:  # some want users and assistants to take turns
            refusals.append(error)

    add([])
    add([{"role": "user", "content": "a"}])
    add([{"role": "user", "content": "0"}])
    add([{"role": "assistant", "content": "a"}, {"role": "user", "content": "0"}])
    if len(texts) == 1:
        add([], opens=False)
    if not texts:
        raise refusals[0]
    return texts


async def _common(front: Front, texts: Sequence[str], *, special: bool, origin: str) -> list[int]:
    first, *others = [await front.encode(text, add_special_tokens=special, field=origin) for text in texts]
    count = min((num_common(first, tokens) for tokens in others), default=len(first))
    if not count:
        raise RequestError(
            f"nothing of {origin} stays the same whatever follows: there is nothing to keep",
            param=origin,
            code="invalid_value",
        )
    return first[:count]


def num_common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading tokens are equal."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
