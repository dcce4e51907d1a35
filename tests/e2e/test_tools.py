"""Tools with the ``openai`` client, unmodified, against a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import openai
import pytest

if TYPE_CHECKING:
    from conftest import Server

MODEL = "smollm2-135m"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "unit": {"enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
DICE = {
    "type": "function",
    "function": {
        "name": "throw_dice",
        "parameters": {
            "type": "object",
            "properties": {"sides": {"enum": [6, 20]}, "seen": {"type": "boolean"}},
            "required": ["sides", "seen"],
            "additionalProperties": False,
        },
    },
}
TOOLS: Any = [WEATHER, DICE]
QUESTION: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture(scope="module")
def client(smollm2_server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{smollm2_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def cached(completion: Any) -> int:
    count: int = completion.usage.prompt_tokens_details.cached_tokens
    return count


def prompt_ids(completion: Any) -> list[int]:
    return list(completion.model_extra["prompt_token_ids"])


def text_of(server: Server, token_ids: list[int]) -> str:
    text: str = server.http.post("/detokenize", json={"tokens": token_ids}).json()["prompt"]
    return text


def common_prefix(some: list[int], others: list[int]) -> int:
    """How many tokens the two begin with alike."""
    return next((place for place, (a, b) in enumerate(zip(some, others, strict=False)) if a != b), len(some))


def test_a_call_its_result_and_the_answer_share_one_prefix(
    client: openai.OpenAI, smollm2_server: Server
) -> None:
    common: Any = {"model": MODEL, "tools": TOOLS, "temperature": 0, "max_tokens": 60}
    common["extra_body"] = {"cache_salt": "round trip", "return_token_ids": True}
    asked = client.chat.completions.create(messages=QUESTION, tool_choice=NAMED, **common)
    choice = asked.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls or ()
    assert call.type == "function"
    arguments = json.loads(call.function.arguments)
    assert call.function.name == "get_weather"
    assert set(arguments) == {"city", "unit"}
    assert arguments["unit"] in ("celsius", "fahrenheit")
    assert len(arguments["city"]) <= 20
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"degrees": 21, "sky": "clear"}'}
    messages = [*QUESTION, choice.message.model_dump(exclude_none=True), result]
    answered = client.chat.completions.create(messages=messages, tool_choice="none", **common)
    assert answered.choices[0].message.content
    # What the model wrote is what the template writes, to the letter; not always in the same tokens.
    before = [*prompt_ids(asked), *(choice.model_extra or {})["token_ids"]]
    after = prompt_ids(answered)
    assert text_of(smollm2_server, after).startswith(text_of(smollm2_server, before))
    alike = common_prefix(before, after)
    assert cached(answered) == min(alike, len(before) - 1)  # the last token was never computed
    assert alike > len(prompt_ids(asked)) + 10


def test_a_stream_is_put_together_by_the_clients_own_helper(client: openai.OpenAI) -> None:
    common: Any = {"model": MODEL, "messages": QUESTION, "tools": TOOLS, "tool_choice": NAMED}
    common |= {"temperature": 0, "max_tokens": 60}
    whole = client.chat.completions.create(**common).choices[0]
    with client.chat.completions.stream(**common) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.delta" in kinds
    assert "tool_calls.function.arguments.done" in kinds
    assert final.finish_reason == whole.finish_reason == "tool_calls"
    assert final.message.content is whole.message.content is None
    (streamed,) = final.message.tool_calls or ()
    (told,) = whole.message.tool_calls or ()
    assert told.type == "function"
    assert streamed.function.arguments == told.function.arguments
    assert streamed.function.name == told.function.name
    assert streamed.id.startswith("call_")


@pytest.mark.parametrize("stream", [False, True])
def test_a_random_model_makes_valid_calls_where_it_must(tiny_server: Server, stream: bool) -> None:
    """Without training, temperature 1: what holds it to the tools is the grammar alone."""
    with openai.OpenAI(base_url=f"{tiny_server.url}/v1", api_key="none", max_retries=0) as client:
        for seed in range(4):
            body: Any = {"model": "tiny", "messages": QUESTION, "tools": TOOLS, "tool_choice": "required"}
            body |= {"seed": seed, "max_tokens": 400, "parallel_tool_calls": False}
            if stream:
                with client.chat.completions.stream(**body) as events:
                    choice: Any = events.get_final_completion().choices[0]
            else:
                choice = client.chat.completions.create(**body).choices[0]
            assert choice.finish_reason == "tool_calls"
            (call,) = choice.message.tool_calls
            arguments = json.loads(call.function.arguments)
            if call.function.name == "get_weather":
                assert set(arguments) == {"city", "unit"}
                assert len(arguments["city"]) <= 20
            else:
                assert call.function.name == "throw_dice"
                assert arguments["sides"] in (6, 20)
                assert arguments["seen"] in (True, False)


def test_a_message_left_open_goes_on(client: openai.OpenAI) -> None:
    begun: Any = [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "The capital of France is"},
    ]
    reply = client.chat.completions.create(
        model=MODEL,
        messages=begun,
        temperature=0,
        max_tokens=2,
        extra_body={"continue_final_message": True, "add_generation_prompt": False, "echo": True},
    )
    assert (reply.choices[0].message.content or "").startswith("The capital of France is Paris")
