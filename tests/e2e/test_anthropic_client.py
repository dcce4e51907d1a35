"""The ``anthropic`` client, unmodified, against a real server with SmolLM2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import anthropic
import pytest

if TYPE_CHECKING:
    from conftest import Server

MODEL = "smollm2-135m"
QUESTION: Any = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
RULES = "Answer like a pirate who has read a great many books about the sea. " * 8
WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Oslo", "Paris"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def client(smollm2_server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=smollm2_server.url, api_key="none", max_retries=0) as client:
        yield client


def marked(text: str, ttl: str | None = None) -> Any:
    control = {"type": "ephemeral"} if ttl is None else {"type": "ephemeral", "ttl": ttl}
    return {"type": "text", "text": text, "cache_control": control}


def prompt_tokens(usage: anthropic.types.Usage) -> int:
    """All of the prompt, in three parts."""
    assert usage.cache_creation_input_tokens is not None
    assert usage.cache_read_input_tokens is not None
    return usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens


def test_create(client: anthropic.Anthropic) -> None:
    reply = client.messages.create(
        model=MODEL, messages=QUESTION, max_tokens=20, extra_body={"temperature": 0}
    )
    (block,) = reply.content
    assert block.type == "text"
    assert "Paris" in block.text
    assert (reply.stop_reason, reply.stop_sequence, reply.model) == ("end_turn", None, MODEL)
    counted = client.messages.count_tokens(model=MODEL, messages=QUESTION)
    assert counted.input_tokens == prompt_tokens(reply.usage)


def test_stream(client: anthropic.Anthropic) -> None:
    asked: Any = {"model": MODEL, "messages": QUESTION, "max_tokens": 20, "extra_body": {"temperature": 0}}
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    whole = client.messages.create(**asked)
    assert [block.to_dict() for block in final.content] == [block.to_dict() for block in whole.content]
    assert "Paris" in text
    assert final.stop_reason == whole.stop_reason == "end_turn"
    assert prompt_tokens(final.usage) == prompt_tokens(whole.usage)
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_a_marked_system_prompt_is_created_once_and_read_from_then_on(client: anthropic.Anthropic) -> None:
    bills = []
    for question in ("Hello!", "Who are you?", "Where is the treasure?"):
        said: Any = [{"role": "user", "content": question}]
        with client.messages.stream(
            model=MODEL,
            system=[marked(RULES)],
            messages=said,
            max_tokens=4,
            extra_body={"cache_salt": "created"},
        ) as stream:
            (start,) = [event for event in stream if event.type == "message_start"]
            bills.append(stream.get_final_message().usage)
        told = [start.message.usage, bills[-1]]
        assert (
            len(
                {
                    (one.input_tokens, one.cache_creation_input_tokens, one.cache_read_input_tokens)
                    for one in told
                }
            )
            == 1
        )
        assert (
            prompt_tokens(bills[-1])
            == client.messages.count_tokens(model=MODEL, system=RULES, messages=said).input_tokens
        )
    created, read = bills[0].cache_creation_input_tokens, bills[0].cache_read_input_tokens
    assert created is not None
    assert created > 100
    assert read == 0
    assert bills[0].cache_creation is not None
    assert bills[0].cache_creation.ephemeral_5m_input_tokens == created
    for bill in bills[1:]:
        assert bill.cache_creation_input_tokens == 0
        assert bill.cache_read_input_tokens is not None
        assert bill.cache_read_input_tokens >= created


def test_a_marker_moves_without_moving_a_token(client: anthropic.Anthropic) -> None:
    said: Any = [{"role": "user", "content": "Hello!"}]
    moved: Any = [{"role": "user", "content": [marked("Hello!", "1h")]}]
    asked: Any = {"model": MODEL, "max_tokens": 4, "extra_body": {"temperature": 0, "cache_salt": "moved"}}
    first = client.messages.create(system=[marked(RULES)], messages=said, **asked)
    second = client.messages.create(system=RULES, messages=moved, **asked)
    assert prompt_tokens(second.usage) == prompt_tokens(first.usage)
    assert second.usage.cache_read_input_tokens == prompt_tokens(first.usage) - 1
    assert first.content == second.content


def test_a_conversation_hits_what_a_chat_left(client: anthropic.Anthropic, smollm2_server: Server) -> None:
    said: Any = [{"role": "user", "content": "Hello!"}]
    chat = smollm2_server.http.post(
        "/v1/chat/completions",
        json={
            "messages": [{"role": "system", "content": RULES}, *said],
            "max_tokens": 4,
            "cache_salt": "chat",
        },
    ).json()
    reply = client.messages.create(
        model=MODEL, system=RULES, messages=said, max_tokens=4, extra_body={"cache_salt": "chat"}
    )
    assert prompt_tokens(reply.usage) == chat["usage"]["prompt_tokens"]
    assert reply.usage.cache_read_input_tokens == chat["usage"]["prompt_tokens"] - 1


def test_tools_that_must_be_called(client: anthropic.Anthropic) -> None:
    question: Any = {"role": "user", "content": "Is it raining in Oslo?"}
    asked: Any = {"model": MODEL, "tools": [WEATHER], "max_tokens": 80, "extra_body": {"temperature": 0}}
    forced: Any = {"type": "tool", "name": "get_weather"}
    reply = client.messages.create(messages=[question], tool_choice=forced, **asked)
    (use,) = reply.content
    assert use.type == "tool_use"
    assert (use.name, reply.stop_reason) == ("get_weather", "tool_use")
    assert use.input in ({"city": "Oslo"}, {"city": "Paris"})
    with client.messages.stream(messages=[question], tool_choice=forced, **asked) as stream:
        (streamed,) = stream.get_final_message().content
    assert streamed.type == "tool_use"
    assert streamed.input == use.input
    result: Any = {"type": "tool_result", "tool_use_id": use.id, "content": "Rain, 4 degrees."}
    answered: Any = [
        question,
        {"role": "assistant", "content": reply.content},
        {"role": "user", "content": [result]},
    ]
    last = client.messages.create(messages=answered, tool_choice={"type": "none"}, **asked)
    assert last.content[0].type == "text"


def test_an_answer_goes_on_where_the_last_message_ends(client: anthropic.Anthropic) -> None:
    said: Any = [*QUESTION, {"role": "assistant", "content": "The capital of France is"}]
    reply = client.messages.create(model=MODEL, messages=said, max_tokens=8, extra_body={"temperature": 0})
    (block,) = reply.content
    assert block.type == "text"
    assert block.text.startswith(" Paris")


def test_stop_sequences(client: anthropic.Anthropic) -> None:
    said: Any = [{"role": "user", "content": "Count: 1, 2, 3,"}, {"role": "assistant", "content": "1, 2, 3,"}]
    reply = client.messages.create(
        model=MODEL,
        messages=said,
        max_tokens=40,
        stop_sequences=["6", "never"],
        extra_body={"temperature": 0},
    )
    assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", "6")


def test_errors_are_the_clients_own(client: anthropic.Anthropic) -> None:
    asked: Any = {"model": MODEL, "messages": QUESTION, "max_tokens": 20}
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(**asked | {"model": "claude"})
    assert missing.value.type == "not_found_error"
    with pytest.raises(anthropic.BadRequestError) as hot:
        client.messages.create(**asked, extra_body={"temperature": -1})
    assert hot.value.type == "invalid_request_error"
    assert "temperature must be between" in hot.value.message
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(**asked, system=[marked("a")] * 5)


def test_a_client_that_leaves_amid_a_stream_frees_its_blocks(
    client: anthropic.Anthropic, smollm2_server: Server
) -> None:
    said: Any = [{"role": "user", "content": "Tell a long story."}]
    with client.messages.create(model=MODEL, messages=said, max_tokens=2000, stream=True) as events:
        assert next(iter(events)).type == "message_start"
        assert smollm2_server.metric("kv_cache_usage_perc") > 0
    smollm2_server.until_idle()
