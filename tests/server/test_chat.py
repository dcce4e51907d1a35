"""Chat completions, whole and streamed, over the fake engine."""

from __future__ import annotations

import json
from typing import Any

from starlette.testclient import TestClient

URL = "/v1/chat/completions"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
PROMPT = "[system]Be brief.[user]hi[assistant]"


def ask(client: TestClient, **fields: Any) -> dict[str, Any]:
    response = client.post(URL, json={"model": "fake/model", "messages": MESSAGES, **fields})
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


def stream(client: TestClient, **fields: Any) -> list[Any]:
    """The events' data: parsed chunks, and ``[DONE]`` as it is."""
    body = {"model": "fake/model", "messages": MESSAGES, "stream": True, **fields}
    response = client.post(URL, json=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = response.text.split("\n\n")
    assert events.pop() == ""
    data = [event.removeprefix("data: ") for event in events]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


def test_whole_reply_has_openais_shape(client: TestClient) -> None:
    reply = ask(client)
    assert reply.pop("id").startswith("chatcmpl-")
    assert isinstance(reply.pop("created"), int)
    assert reply == {
        "object": "chat.completion",
        "model": "fake/model",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "fine, thanks", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": len(PROMPT),
            "completion_tokens": len("fine, thanks") + 1,  # the end token is counted
            "total_tokens": len(PROMPT) + len("fine, thanks") + 1,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def test_stream_has_openais_shape(client: TestClient) -> None:
    *chunks, done = stream(client, max_tokens=2)
    assert done == "[DONE]"
    assert len({chunk.pop("id") for chunk in chunks}) == 1
    assert len({chunk.pop("created") for chunk in chunks}) == 1

    def chunk(delta: dict[str, str], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {"object": "chat.completion.chunk", "model": "fake/model", "choices": [choice]}

    assert chunks == [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "f"}),
        chunk({"content": "i"}),
        chunk({}, "length"),
    ]


def test_stream_says_the_usage_in_a_last_chunk_when_asked(client: TestClient) -> None:
    whole = ask(client, cache_salt="a")
    *chunks, last, done = stream(client, cache_salt="b", stream_options={"include_usage": True})
    assert done == "[DONE]"
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    assert "usage" not in stream(client, stream_options={"include_usage": False})[0]


def test_the_second_time_tokens_come_from_the_cache_in_both_forms(client: TestClient) -> None:
    def cached(reply: dict[str, Any]) -> int:
        count: int = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
        return count

    assert cached(ask(client)) == 0
    assert cached(ask(client)) == len(PROMPT) - 1
    assert cached(stream(client, stream_options={"include_usage": True})[-2]) == len(PROMPT) - 1
    assert cached(ask(client, cache_salt="tenant")) == 0
    assert cached(ask(client, cache_salt="tenant")) == len(PROMPT) - 1


def test_a_stop_string_ends_the_text_and_the_count_at_its_last_token(client: TestClient, engine: Any) -> None:
    reply = ask(client, stop=[", t", "never"])
    assert reply["choices"][0]["message"]["content"] == "fine"
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["usage"]["completion_tokens"] == len("fine, t")
    assert len(engine.aborted) == 1  # the engine would have gone on
    deltas = [chunk["choices"][0]["delta"] for chunk in stream(client, stop=", t")[:-1]]
    assert "".join(delta.get("content", "") for delta in deltas) == "fine"


def test_text_held_for_a_stop_string_that_never_came_is_sent(client: TestClient, engine: Any) -> None:
    engine.answer = "wait, th"
    assert ask(client, stop=", than")["choices"][0]["message"]["content"] == "wait, th"


def test_no_half_character_is_streamed(client: TestClient, engine: Any) -> None:
    engine.answer = "naïve 👍🏽!"
    chunks = stream(client)[:-1]
    texts = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(texts) == engine.answer
    assert "�" not in "".join(texts)


def test_fields_reach_the_engine(client: TestClient, engine: Any) -> None:
    ask(client, temperature=0.25, top_p=0.5, top_k=7, seed=11, stop="x", max_tokens=5, cache_salt="s")
    prompt, params, terms = engine.submitted[-1]
    assert engine.tokenizer.decode(prompt) == PROMPT
    assert (params.temperature, params.top_p, params.top_k, params.seed) == (0.25, 0.5, 7, 11)
    assert (params.stop, params.max_tokens, terms.salt) == (("x",), 5, "s")
    assert set(params.stop_token_ids) == engine.tokenizer.eos_token_ids


def test_biases_and_penalties_reach_the_engine(client: TestClient, engine: Any) -> None:
    fields = {"min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -0.5, "repetition_penalty": 1.5}
    ask(client, **fields, logit_bias={"7": -100, "8": 2.5}, min_tokens=2, ignore_eos=True)
    _, params, _ = engine.submitted[-1]
    assert {name: getattr(params, name) for name in fields} == fields
    assert (params.logit_bias, params.min_tokens, params.ignore_eos) == ({7: -100, 8: 2.5}, 2, True)


def test_defaults_are_those_of_vllm(client: TestClient, engine: Any) -> None:
    ask(client)
    _, params, terms = engine.submitted[-1]
    assert (params.temperature, params.top_p, params.top_k, params.seed) == (1.0, 1.0, 0, None)
    assert (params.stop, params.max_tokens, terms.salt) == ((), None, None)


def test_zero_is_a_value_and_not_a_default(client: TestClient, engine: Any) -> None:
    ask(client, temperature=0, seed=0)
    assert (engine.submitted[-1][1].temperature, engine.submitted[-1][1].seed) == (0, 0)


def test_stop_tokens_are_the_models_unless_told_otherwise(client: TestClient, engine: Any) -> None:
    eos = engine.tokenizer.eos_token_ids

    def stops(**fields: Any) -> set[int]:
        ask(client, **fields)
        return set(engine.submitted[-1][1].stop_token_ids)

    assert stops() == eos
    assert stops(stop_token_ids=[7, 8]) == eos | {7, 8}
    assert stops(ignore_eos=True, max_tokens=3) == set()


def test_max_completion_tokens_wins_over_its_older_name(client: TestClient, engine: Any) -> None:
    ask(client, max_completion_tokens=3, max_tokens=9)
    assert engine.submitted[-1][1].max_tokens == 3


def test_the_template_gets_what_was_asked(client: TestClient, engine: Any) -> None:
    def prompt(**fields: Any) -> str:
        ask(client, **fields)
        text: str = engine.tokenizer.decode(engine.submitted[-1][0])
        return text

    assert prompt(add_generation_prompt=False) == "[system]Be brief.[user]hi"
    assert prompt(chat_template_kwargs={"extra": "!"}).endswith("[assistant]!")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert prompt(messages=[{"role": "user", "content": parts}]) == "[user]a\nb[assistant]"
    assert prompt(messages=[{"role": "developer", "content": "x"}]) == "[system]x[assistant]"


def test_the_model_may_be_left_out(client: TestClient) -> None:
    reply = client.post(URL, json={"messages": MESSAGES}).json()
    assert reply["model"] == "fake/model"


# -- log-probabilities -----------------------------------------------------------------------------


def test_logprobs_have_openais_shape_and_leave_the_end_token_out(client: TestClient, engine: Any) -> None:
    engine.answer = "é"  # two tokens, neither of them a character
    other = {"token": engine.tokenizer.decode([33]), "logprob": -0.25}
    other["bytes"] = list(other["token"].encode())
    own = {"token": "\ufffd", "logprob": -1.0, "bytes": [0xC3]}
    second = {"token": "\ufffd", "logprob": -2.0, "bytes": [0xA9]}
    expected = [own | {"top_logprobs": [other, own]}, second | {"top_logprobs": [other, second]}]
    choice = ask(client, logprobs=True, top_logprobs=2)["choices"][0]
    assert choice["message"]["content"] == "é"
    assert choice["logprobs"] == {"content": expected, "refusal": None}
    chunks = stream(client, logprobs=True, top_logprobs=2)[:-1]
    told = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [entry for one in told if one for entry in one["content"]] == expected


def test_logprobs_without_alternatives_and_none_unasked(client: TestClient) -> None:
    (content,) = ask(client, logprobs=True, max_tokens=1)["choices"][0]["logprobs"]["content"]
    assert (content["token"], content["logprob"], content["top_logprobs"]) == ("f", -1.0, [])
    for fields in ({}, {"logprobs": False}, {"logprobs": False, "top_logprobs": 0}):
        assert ask(client, **fields)["choices"][0]["logprobs"] is None


def test_the_logarithm_of_zero_can_be_told(client: TestClient) -> None:
    (content,) = ask(client, logprobs=True, top_logprobs=3, max_tokens=1)["choices"][0]["logprobs"]["content"]
    assert [top["logprob"] for top in content["top_logprobs"]] == [-0.25, -1.0, -9999.0]


def test_prompt_logprobs_stand_beside_the_choices(client: TestClient, engine: Any) -> None:
    reply = ask(client, prompt_logprobs=1, max_tokens=2)
    (prompt, params, _) = engine.submitted[-1]
    assert params.prompt_logprobs == 1
    assert "prompt_logprobs" not in reply["choices"][0]
    first, *others = reply["prompt_logprobs"]
    assert first is None
    assert [next(iter(place)) for place in others] == [str(token) for token in prompt[1:]]
    assert "prompt_logprobs" not in ask(client)
    silent = ask(client, prompt_logprobs=0, max_tokens=0)
    assert (silent["choices"][0]["message"]["content"], silent["usage"]["completion_tokens"]) == ("", 0)


# -- several choices of one prompt -----------------------------------------------------------------


def test_n_answers_and_one_prompt(client: TestClient, engine: Any) -> None:
    engine.others = ("so so", "no")
    reply = ask(client, n=3, logprobs=True)
    told = [(choice["index"], choice["message"]["content"]) for choice in reply["choices"]]
    assert told == [(0, "fine, thanks"), (1, "so so"), (2, "no")]
    for choice in reply["choices"]:
        tokens = choice["logprobs"]["content"]
        assert "".join(token["token"] for token in tokens) == choice["message"]["content"]
    assert reply["usage"]["prompt_tokens"] == len(PROMPT)
    assert reply["usage"]["completion_tokens"] == 13 + 6 + 3


def test_each_streamed_answer_has_its_role_text_and_end(client: TestClient, engine: Any) -> None:
    engine.others = ("so so", "no")
    *chunks, last, _ = stream(client, n=3, stop=" t", stream_options={"include_usage": True})
    texts = {}
    for index in range(3):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + ["stop"]
        texts[index] = "".join(choice["delta"].get("content", "") for choice in own[1:])
    assert texts == {0: "fine,", 1: "so so", 2: "no"}
    assert len(chunks) == len([chunk for chunk in chunks if len(chunk["choices"]) == 1])
    assert last["usage"]["prompt_tokens"] == len(PROMPT)
    assert last["usage"]["completion_tokens"] == len("fine, t") + 6 + 3


def test_an_assistants_message_may_have_no_content(client: TestClient, engine: Any) -> None:
    for silent in ({}, {"content": None}, {"content": None, "tool_calls": None, "refusal": "no"}):
        messages = [*MESSAGES, {"role": "assistant", **silent}, {"role": "user", "content": "go on"}]
        ask(client, messages=messages)
        prompt = engine.tokenizer.decode(engine.submitted[-1][0])
        assert prompt == "[system]Be brief.[user]hi[assistant][user]go on[assistant]"
