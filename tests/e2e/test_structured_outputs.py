"""Structured outputs through the ``openai`` client, unmodified, against a real server with SmolLM2."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field

if TYPE_CHECKING:
    from conftest import Server

MODEL = "smollm2-135m"
ASK: list[Any] = [{"role": "user", "content": "Alice, who is 30, likes red. Describe her."}]


class Pet(BaseModel):
    """An animal."""

    kind: Literal["cat", "dog"]
    name: str = Field(max_length=10)


class Person(BaseModel):
    """Somebody."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)
    colour: Literal["red", "green", "blue"]
    pet: Pet | None


@pytest.fixture(scope="module")
def client(smollm2_server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{smollm2_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_pydantic_model_comes_back(client: openai.OpenAI) -> None:
    reply = client.chat.completions.parse(
        model=MODEL, messages=ASK, response_format=Person, temperature=0, max_tokens=150
    )
    (choice,) = reply.choices
    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, Person)
    assert reply.usage is not None
    assert reply.usage.completion_tokens > 5


def test_a_pydantic_model_is_streamed(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=ASK, response_format=Person, temperature=0, max_tokens=150
    ) as stream:
        events = [event.type for event in stream]
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Person)
    assert events.count("content.delta") > 5


def test_json_mode(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "A small JSON object with one key, please."}],
        response_format={"type": "json_object"},
        temperature=0,
        max_tokens=100,
    )
    text = reply.choices[0].message.content or ""
    assert text.startswith("{")
    if reply.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text), dict)


def test_choices_of_a_completion(client: openai.OpenAI) -> None:
    reply = client.completions.create(
        model=MODEL,
        prompt="The sky is",
        n=4,
        seed=1,
        extra_body={"structured_outputs": {"choice": [" blue", " green", " grey"]}},
    )
    assert len(reply.choices) == 4
    assert {choice.text for choice in reply.choices} <= {" blue", " green", " grey"}
    assert {choice.finish_reason for choice in reply.choices} == {"stop"}


def test_a_streamed_regex(client: openai.OpenAI) -> None:
    stream = client.completions.create(
        model=MODEL, prompt="Call ", stream=True, extra_body={"guided_regex": r"\(\d{3}\) \d{3}"}
    )
    text = "".join(chunk.choices[0].text for chunk in stream)
    assert re.fullmatch(r"\(\d{3}\) \d{3}", text)


def test_a_bad_schema_is_the_clients_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt="hi", extra_body={"guided_json": {"type": "king"}})
    assert caught.value.param == "guided_json"
    assert "king" in caught.value.message
