"""The ``openai`` client's ``responses``, unmodified, against a real server with SmolLM2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import openai
import pytest
from pydantic import BaseModel

if TYPE_CHECKING:
    from conftest import Server

MODEL = "smollm2-135m"
QUESTION = "What is the capital of France? Answer in one word."
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Oslo", "Paris"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Verdict(BaseModel):
    """What the model is made to say."""

    colour: Literal["red", "green"]
    sure: bool


@pytest.fixture(scope="module")
def client(smollm2_server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{smollm2_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_create(client: openai.OpenAI) -> None:
    reply = client.responses.create(model=MODEL, input=QUESTION, temperature=0, max_output_tokens=20)
    assert "Paris" in reply.output_text
    assert (reply.status, reply.model, reply.object) == ("completed", MODEL, "response")
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.input_tokens + reply.usage.output_tokens
    short = client.responses.create(model=MODEL, input=QUESTION, temperature=0, max_output_tokens=2)
    assert short.status == "incomplete"
    assert short.incomplete_details is not None
    assert short.incomplete_details.reason == "max_output_tokens"


def test_create_as_a_stream(client: openai.OpenAI) -> None:
    with client.responses.create(
        model=MODEL, input=QUESTION, temperature=0, max_output_tokens=20, stream=True
    ) as events:
        told = list(events)
    assert [event.sequence_number for event in told] == list(range(len(told)))
    assert told[-1].type == "response.completed"
    deltas = [event.delta for event in told if event.type == "response.output_text.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == told[-1].response.output_text
    assert "Paris" in told[-1].response.output_text


def test_the_clients_own_stream_and_parse(client: openai.OpenAI) -> None:
    asked: Any = {
        "model": MODEL,
        "input": "Is grass red or green?",
        "temperature": 0,
        "max_output_tokens": 60,
    }
    parsed = client.responses.parse(text_format=Verdict, **asked).output_parsed
    assert isinstance(parsed, Verdict)
    with client.responses.stream(text_format=Verdict, **asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_parsed == parsed
    assert kinds[-1] == "response.completed"


def test_tools_that_must_be_called(client: openai.OpenAI) -> None:
    question: Any = {"role": "user", "content": "Is it raining in Oslo?"}
    asked: Any = {"model": MODEL, "tools": [WEATHER], "temperature": 0, "max_output_tokens": 80}
    forced: Any = {"type": "function", "name": "get_weather"}
    reply = client.responses.create(input=[question], tool_choice=forced, **asked)
    (call,) = reply.output
    assert call.type == "function_call"
    assert call.name == "get_weather"
    assert call.arguments.startswith('{"city"')
    with client.responses.stream(input=[question], tool_choice=forced, **asked) as stream:
        parts = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        (streamed,) = stream.get_final_response().output
    assert streamed.type == "function_call"
    assert "".join(parts) == streamed.arguments == call.arguments
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain, 4 degrees."}
    last = client.responses.create(input=[question, call.to_dict(), result], tool_choice="none", **asked)
    assert last.output_text


def test_the_same_conversation_hits_what_a_chat_left(client: openai.OpenAI) -> None:
    rules = "Answer like a pirate who has read a great many books about the sea. " * 8
    said: Any = [{"role": "system", "content": rules}, {"role": "user", "content": "Hello!"}]
    chat = client.chat.completions.create(model=MODEL, messages=said, temperature=0, max_tokens=4)
    reply = client.responses.create(
        model=MODEL, instructions=rules, input="Hello!", temperature=0, max_output_tokens=4
    )
    assert reply.output_text == chat.choices[0].message.content
    assert chat.usage is not None
    assert reply.usage is not None
    assert reply.usage.input_tokens == chat.usage.prompt_tokens
    assert reply.usage.input_tokens_details.cached_tokens == chat.usage.prompt_tokens - 1


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as stored:
        client.responses.create(model=MODEL, input="hi", previous_response_id="resp_1")
    assert stored.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="gpt-4", input="hi")
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_1")


def test_a_client_that_leaves_amid_a_stream_frees_its_blocks(
    client: openai.OpenAI, smollm2_server: Server
) -> None:
    events = client.responses.create(model=MODEL, input="Tell a long story.", stream=True)
    assert next(iter(events)).type == "response.created"
    events.close()
    smollm2_server.until_idle()
