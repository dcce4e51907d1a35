"""The ``openai`` client, unmodified, against a real server with SmolLM2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import openai
import pytest

if TYPE_CHECKING:
    from conftest import Server

MODEL = "smollm2-135m"
# Long enough that most of it is worth caching.
HANDBOOK = "\n".join(
    f"Rule {number}: station {number} closes at {number % 12 + 1} o'clock and opens again the next morning."
    for number in range(1, 11)
)
QUESTION = "What is the capital of France? Answer in one word."


@pytest.fixture(scope="module")
def client(smollm2_server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{smollm2_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "headstart"


def test_chat(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=20
    )
    choice = reply.choices[0]
    assert choice.message.role == "assistant"
    assert "Paris" in (choice.message.content or "")
    assert choice.finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_chat_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_tokens=20,
        stream=True,
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "Paris" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"
    assert all(chunk.usage is None for chunk in chunks)


def test_completions(client: openai.OpenAI) -> None:
    text = client.completions.create(model=MODEL, prompt="1, 2, 3, 4, 5, 6,", temperature=0, max_tokens=6)
    assert text.choices[0].text.startswith(" 7, 8")
    assert text.choices[0].finish_reason == "length"
    several = client.completions.create(
        model=MODEL, prompt=["1, 2, 3,", "a, b, c,"], temperature=0, max_tokens=4
    )
    assert [choice.index for choice in several.choices] == [0, 1]
    streamed = client.completions.create(
        model=MODEL, prompt="1, 2, 3, 4, 5, 6,", temperature=0, max_tokens=6, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in streamed) == text.choices[0].text


def ask(client: openai.OpenAI, way: str, stream: bool, salt: str) -> tuple[str, Any]:
    """The answer's text and usage: the same prompt in each of the four ways."""
    common: dict[str, Any] = {
        "model": MODEL,
        "temperature": 0,
        "max_tokens": 8,
        "extra_body": {"cache_salt": salt},
        "stream": stream,
    }
    if stream:
        common["stream_options"] = {"include_usage": True}
    question = "When does station 7 close?"
    if way == "chat":
        messages: list[Any] = [
            {"role": "system", "content": HANDBOOK},
            {"role": "user", "content": question},
        ]
        reply: Any = client.chat.completions.create(messages=messages, **common)
    else:
        reply = client.completions.create(prompt=f"{HANDBOOK}\n{question}", **common)
    if not stream:
        choice = reply.choices[0]
        return (choice.message.content if way == "chat" else choice.text), reply.usage
    *chunks, last = list(reply)
    assert last.choices == []
    choices = [chunk.choices[0] for chunk in chunks]
    text = "".join((choice.delta.content or "") if way == "chat" else choice.text for choice in choices)
    return text, last.usage


@pytest.mark.parametrize("way", ["chat", "completions"])
def test_a_long_prompt_hits_the_second_time_in_every_way(client: openai.OpenAI, way: str) -> None:
    answers = [ask(client, way, stream, salt) for salt in ("a", "b") for stream in (salt == "b", False, True)]
    texts = {text for text, _ in answers}
    assert len(texts) == 1, texts
    assert texts != {""}
    length = answers[0][1].prompt_tokens
    cached = [usage.prompt_tokens_details.cached_tokens for _, usage in answers]
    assert length > 200
    assert cached == [0, length - 1, length - 1] * 2
    assert len({(usage.prompt_tokens, usage.completion_tokens) for _, usage in answers}) == 1


def test_stop_strings(client: openai.OpenAI) -> None:
    reply = client.completions.create(
        model=MODEL, prompt="1, 2, 3, 4, 5, 6,", temperature=0, max_tokens=40, stop=[" 9", "never"]
    )
    assert reply.choices[0].text == " 7, 8,"
    assert reply.choices[0].finish_reason == "stop"


def test_several_choices(client: openai.OpenAI, smollm2_server: Server) -> None:
    messages: list[Any] = [{"role": "system", "content": HANDBOOK}, {"role": "user", "content": QUESTION}]
    common: dict[str, Any] = {"model": MODEL, "seed": 5, "max_tokens": 8, "n": 3}
    common["extra_body"] = {"cache_salt": "several choices"}
    before = smollm2_server.metric("prefix_cache_queries_total")
    reply = client.chat.completions.create(messages=messages, **common)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    texts = [choice.message.content for choice in reply.choices]
    assert len(set(texts)) == 3
    assert reply.usage is not None
    assert smollm2_server.metric("prefix_cache_queries_total") - before == reply.usage.prompt_tokens
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(messages=messages, stream=True, **common):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == texts
    alone = client.chat.completions.create(messages=messages, **common | {"n": 1})
    assert alone.choices[0].message.content == texts[0]
    best = client.completions.create(
        prompt=["1, 2, 3,", "a, b, c,"], best_of=4, **common | {"n": 2, "extra_body": None}
    )
    assert [choice.index for choice in best.choices] == [0, 1, 2, 3]
    assert best.usage is not None
    assert best.usage.completion_tokens == 2 * 4 * 8


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4", messages=messages)
    assert missing.value.code == "model_not_found"
    assert MODEL in missing.value.message
    with pytest.raises(openai.BadRequestError) as hot:
        client.chat.completions.create(model=MODEL, messages=messages, temperature=-1)
    assert hot.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as empty:
        client.chat.completions.create(model=MODEL, messages=[])
    assert empty.value.param == "messages"
    with pytest.raises(openai.BadRequestError) as many:
        client.chat.completions.create(model=MODEL, messages=messages, n=129)
    assert many.value.param == "n"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=MODEL, prompt=[1] * 9000)
    assert "9000" in long.value.message
    assert "8192" in long.value.message
    with pytest.raises(openai.BadRequestError) as salt:
        client.completions.create(model=MODEL, prompt="hi", extra_body={"cache_salt": ""})
    assert salt.value.param == "cache_salt"


def test_a_client_that_leaves_amid_a_stream_frees_its_blocks(
    client: openai.OpenAI, smollm2_server: Server
) -> None:
    stream = client.completions.create(
        model=MODEL, prompt="Once upon a time", max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
    )
    next(stream)
    assert smollm2_server.metric("kv_cache_usage_perc") > 0
    stream.close()
    smollm2_server.until_idle()


def test_the_clients_own_words_for_retention_and_opt_outs(client: openai.OpenAI) -> None:
    asked: Any = {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": "Retained. " + HANDBOOK},
            {"role": "user", "content": "Why?"},
        ],
        "max_tokens": 1,
        "prompt_cache_key": "handbook",
        "prompt_cache_options": {"mode": "implicit", "ttl": "30m"},
    }

    def hits(**extra: Any) -> int:
        reply = client.chat.completions.create(**asked, extra_body=extra)
        assert reply.usage is not None
        assert reply.usage.prompt_tokens_details is not None
        return reply.usage.prompt_tokens_details.cached_tokens or 0

    assert hits(skip_writing_prefix_cache=True, cache_salt="own words") == 0
    assert hits(cache_salt="own words") == 0
    assert hits(cache_salt="own words", prompt_cache_retention="24h") > 100
    assert hits(cache_salt="own words", skip_reading_prefix_cache=True) == 0
