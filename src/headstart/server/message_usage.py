"""The bill of `/v1/messages`: what was read from the cache, what was computed and is kept, and the rest."""

from __future__ import annotations

from collections.abc import Sequence

from headstart.errors import RequestError
from headstart.server.cache_markers import Marker, another_behind
from headstart.server.cache_usage import kept_tokens
from headstart.server.conversation import prompt_of
from headstart.server.front import Front
from headstart.server.generation import Generation
from headstart.server.messages_protocol import CacheCreation, MessagesRequest, MessageUsage
from headstart.server.stable import num_common


async def marked_tokens(
    front: Front, body: MessagesRequest, markers: Sequence[Marker], prompt: Sequence[int]
) -> dict[str, int]:
    """For each lifetime, how many of the prompt's tokens lie before its last marker.

    Those are the tokens that any prompt has which is the same up to the marker; what the template or the
    tokenizer makes of the marked block together with what comes next is not among them.  They are found by
    writing another prompt, so this takes as long as reading the request again.
    """
    last: dict[str, Marker] = {marker.ttl: marker for marker in markers}
    return {ttl: await _tokens_before(front, body, marker, prompt) for ttl, marker in last.items()}


async def _tokens_before(front: Front, body: MessagesRequest, marker: Marker, prompt: Sequence[int]) -> int:
    try:
        other = await prompt_of(front, another_behind(body, marker))
    except RequestError:  # the template will not have that: nothing is known of what it would share
        return 0
    return num_common(prompt, other)


def usage_of(front: Front, generation: Generation, marked: dict[str, int]) -> MessageUsage:
    """The bill as of now; ``marked`` are `marked_tokens`, or nothing where nothing is to be kept."""
    prompt, read = generation.num_prompt_tokens, generation.num_cached_tokens
    info = front.client.info
    # A prompt that is all there has its last token computed again, for what comes next: that is nothing new.
    is_new = read < prompt - 1
    kept = {ttl: kept_tokens(info, count) - read if is_new else 0 for ttl, count in marked.items()}
    for_an_hour = max(0, kept.get("1h", 0))
    created = max(for_an_hour, kept.get("5m", 0))
    return MessageUsage(
        input_tokens=prompt - read - created,
        cache_creation_input_tokens=created,
        cache_read_input_tokens=read,
        cache_creation=CacheCreation(
            ephemeral_5m_input_tokens=created - for_an_hour, ephemeral_1h_input_tokens=for_an_hour
        ),
        output_tokens=generation.num_completion_tokens,
    )
