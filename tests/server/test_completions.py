"""Completions of one prompt and of several, over the fake engine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

URL = "/v1/completions"


def complete(client: TestClient, prompt: Any, **fields: Any) -> dict[str, Any]:
    response = client.post(URL, json={"model": "fake/model", "prompt": prompt, **fields})
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


def stream(client: TestClient, prompt: Any, **fields: Any) -> list[dict[str, Any]]:
    response = client.post(URL, json={"prompt": prompt, "stream": True, **fields})
    assert response.status_code == 200, response.text
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def test_whole_reply_has_openais_shape(client: TestClient) -> None:
    reply = complete(client, "hello", max_tokens=4)
    assert reply.pop("id").startswith("cmpl-")
    assert isinstance(reply.pop("created"), int)
    assert reply == {
        "object": "text_completion",
        "model": "fake/model",
        "choices": [{"index": 0, "text": "fine", "logprobs": None, "finish_reason": "length"}],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 4,
            "total_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def test_sixteen_tokens_unless_more_are_asked_for(client: TestClient, engine: Any) -> None:
    engine.answer = "a" * 50
    assert complete(client, "hello")["choices"][0]["text"] == "a" * 16
    assert complete(client, "hello", max_tokens=50)["choices"][0]["text"] == "a" * 50


def test_text_and_token_ids_are_one_prompt(client: TestClient, engine: Any) -> None:
    complete(client, "hello")
    assert complete(client, engine.tokenizer.encode("hello"))["usage"]["prompt_tokens_details"] == {
        "cached_tokens": 4
    }


def test_a_text_gets_the_models_beginning_and_a_chat_has_its_own(
    client: TestClient, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = engine.tokenizer.encode
    begun: dict[str, bool] = {}

    def recorded(text: str, add_special_tokens: bool = True) -> list[int]:
        begun[text] = add_special_tokens
        ids: list[int] = encode(text, add_special_tokens)
        return ids

    monkeypatch.setattr(engine.tokenizer, "encode", recorded)
    complete(client, "hello")
    client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]})
    assert begun["hello"] is True
    assert begun["[user]hi[assistant]"] is False


def test_each_prompt_gives_its_choice_in_order(client: TestClient, engine: Any) -> None:
    for prompts in (["ab", "cde"], [[1, 2], [3, 4, 5]]):
        reply = complete(client, prompts, max_tokens=4)
        assert [choice["index"] for choice in reply["choices"]] == [0, 1]
        assert [choice["text"] for choice in reply["choices"]] == ["fine", "fine"]
        assert reply["usage"]["prompt_tokens"] == 5
        assert reply["usage"]["completion_tokens"] == 8
    assert [len(prompt) for prompt, _, _ in engine.submitted] == [2, 3, 2, 3]


def test_streamed_choices_add_up_to_the_whole_ones(client: TestClient) -> None:
    whole = complete(client, ["ab", "cde"], cache_salt="a")
    chunks = stream(client, ["ab", "cde"], cache_salt="b", stream_options={"include_usage": True})
    last = chunks.pop()
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    assert all(chunk["usage"] is None and chunk["object"] == "text_completion" for chunk in chunks)
    texts = {0: "", 1: ""}
    reasons: dict[int, str] = {}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        assert choice["index"] not in reasons, "text after the reason why it ended"
        texts[choice["index"]] += choice["text"]
        if choice["finish_reason"]:
            reasons[choice["index"]] = choice["finish_reason"]
    assert list(texts.values()) == [choice["text"] for choice in whole["choices"]]
    assert reasons == {0: "stop", 1: "stop"}


def test_prompts_after_a_bad_one_leave_nothing_running(client: TestClient, engine: Any) -> None:
    response = client.post(URL, json={"prompt": [[1, 2], [3, 4], [999]]})
    assert response.status_code == 400
    assert not engine.running


def test_logprobs_have_openais_shape(client: TestClient, engine: Any) -> None:
    engine.answer = "aéb"
    choice = complete(client, "hello", logprobs=1)["choices"][0]
    other = engine.tokenizer.decode([33])
    assert choice["text"] == "aéb"
    assert choice["logprobs"] == {
        "tokens": ["a", "bytes:\\xc3", "bytes:\\xa9", "b"],
        "token_logprobs": [-1.0, -2.0, -3.0, -4.0],
        "text_offset": [0, 1, 1, 2],
        "top_logprobs": [
            {"a": -1.0, other: -0.25},
            {"bytes:\\xc3": -2.0, other: -0.25},
            {"bytes:\\xa9": -3.0, other: -0.25},
            {"b": -4.0, other: -0.25},
        ],
    }
    told = [chunk["choices"][0]["logprobs"] for chunk in stream(client, "hello", logprobs=1)]
    for name, whole in choice["logprobs"].items():
        assert [entry for one in told if one for entry in one[name]] == whole


def test_logprobs_end_with_the_stop_string(client: TestClient) -> None:
    choice = complete(client, "hello", logprobs=0, stop=", t")["choices"][0]
    assert "".join(choice["logprobs"]["tokens"]) == "fine, t"
    assert choice["logprobs"]["top_logprobs"][0] == {"f": -1.0}
    assert complete(client, "hello")["choices"][0]["logprobs"] is None


def test_what_ended_the_text_is_left_out_of_it_unless_it_is_wanted(client: TestClient, engine: Any) -> None:
    (comma,) = engine.tokenizer.encode(",")
    for end, without in (({"stop_token_ids": [comma]}, "fine"), ({"stop": ", t"}, "fine")):
        for included in (False, True):
            reply = complete(client, "hello", include_stop_str_in_output=included, **end)
            (choice,) = reply["choices"]
            whole = without + str(end.get("stop", ","))
            assert (choice["text"], choice["finish_reason"]) == (whole if included else without, "stop")
            assert reply["usage"]["completion_tokens"] == len(whole)  # it was generated all the same


# -- echo ------------------------------------------------------------------------------------------


def test_an_echo_is_the_prompt_before_the_answer(client: TestClient, engine: Any) -> None:
    for prompt in ("hél lo", engine.tokenizer.encode("hél lo")):
        reply = complete(client, prompt, echo=True, max_tokens=4)
        (choice,) = reply["choices"]
        assert choice == {"index": 0, "text": "hél lofine", "logprobs": None, "finish_reason": "length"}
        assert (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]) == (7, 4)
    assert engine.submitted[-1][1].prompt_logprobs is None  # so it reads the cache
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 6
    texts = [choice["text"] for choice in complete(client, ["a", "b"], echo=True, max_tokens=1)["choices"]]
    assert texts == ["af", "bf"]


def test_markers_of_the_prompt_are_echoed_and_those_of_the_answer_are_not(
    client: TestClient, engine: Any
) -> None:
    prompt = [*engine.tokenizer.encode("a"), *engine.tokenizer.eos_token_ids, *engine.tokenizer.encode("b")]
    for given in (prompt, "a<end>b"):
        choice = complete(client, given, echo=True, logprobs=0)["choices"][0]
        assert choice["text"] == "a<end>bfine, thanks"
        assert choice["logprobs"]["tokens"][:4] == ["a", "<end>", "b", "f"]
        assert choice["logprobs"]["text_offset"][:4] == [0, 1, 6, 7]


def test_logprobs_of_an_echo_cover_prompt_and_answer(client: TestClient, engine: Any) -> None:
    engine.answer = "é"
    reply = complete(client, "añb", echo=True, logprobs=1)
    (choice,) = reply["choices"]
    other = engine.tokenizer.decode([33])
    assert choice["text"] == "añbé"
    assert choice["logprobs"] == {
        "tokens": ["a", "bytes:\\xc3", "bytes:\\xb1", "b", "bytes:\\xc3", "bytes:\\xa9", "<end>"],
        "token_logprobs": [None, -0.5, -1.0, -1.5, -1.0, -2.0, -3.0],
        "text_offset": [0, 1, 1, 2, 3, 3, 4],
        "top_logprobs": [
            None,
            {"bytes:\\xc3": -0.5, other: -0.25},
            {"bytes:\\xb1": -1.0, other: -0.25},
            {"b": -1.5, other: -0.25},
            {"bytes:\\xc3": -1.0, other: -0.25},
            {"bytes:\\xa9": -2.0, other: -0.25},
            {"<end>": -3.0, other: -0.25},
        ],
    }
    assert "prompt_logprobs" not in choice
    assert len(choice["logprobs"]["tokens"]) == reply["usage"]["total_tokens"]
    chunks = [chunk["choices"][0] for chunk in stream(client, "añb", echo=True, logprobs=1)]
    assert chunks[0]["text"] == "añb"
    assert "".join(chunk["text"] for chunk in chunks) == "añbé"
    told = [chunk["logprobs"] for chunk in chunks]
    for name, whole in choice["logprobs"].items():
        assert [entry for one in told if one for entry in one[name]] == whole


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_what_evaluation_harnesses_send(client: TestClient, engine: Any, max_tokens: int) -> None:
    prompts = [engine.tokenizer.encode("question yes"), engine.tokenizer.encode("question no")]
    reply = complete(client, prompts, echo=True, max_tokens=max_tokens, logprobs=1, temperature=0, seed=1234)
    for prompt, choice in zip(prompts, reply["choices"], strict=True):
        logprobs = choice["logprobs"]
        assert {len(entries) for entries in logprobs.values()} == {len(prompt) + max_tokens}
        assert logprobs["token_logprobs"][9 : len(prompt)] == [-i / 2 for i in range(9, len(prompt))]
        assert choice["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 2 * max_tokens
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_an_echo_alone_shows_nothing_else(client: TestClient, engine: Any) -> None:
    engine.answer = ""  # its first token is the end
    reply = complete(client, "hello", echo=True, max_tokens=0)
    assert reply["choices"] == [{"index": 0, "text": "hello", "logprobs": None, "finish_reason": "length"}]
    assert reply["usage"]["completion_tokens"] == 0
    chunks = [chunk["choices"][0] for chunk in stream(client, "hello", echo=True, max_tokens=0)]
    assert [(chunk["text"], chunk["finish_reason"]) for chunk in chunks] == [("hello", None), ("", "length")]


def test_stop_strings_are_not_looked_for_in_an_echo(client: TestClient) -> None:
    assert complete(client, "one, two", echo=True, stop=", t")["choices"][0]["text"] == "one, twofine"
    assert complete(client, "so", echo=True, stop=["of"])["choices"][0]["text"] == "sofine, thanks"


def test_stop_strings_wait_for_min_tokens(client: TestClient) -> None:
    assert complete(client, "hi", stop="n", min_tokens=3)["choices"][0]["text"] == "fine, tha"
    assert complete(client, "hi", stop="n", min_tokens=2)["choices"][0]["text"] == "fi"


# -- prompt_logprobs -------------------------------------------------------------------------------


def test_prompt_logprobs_have_vllms_shape(client: TestClient, engine: Any) -> None:
    a, b, other = (*engine.tokenizer.encode("ab"), 33)
    (choice,) = complete(client, "bab", prompt_logprobs=1, max_tokens=2)["choices"]
    likeliest = {"logprob": -0.25, "rank": 1, "decoded_token": engine.tokenizer.decode([other])}
    assert choice["text"] == "fi"
    assert choice["logprobs"] is None
    assert choice["prompt_logprobs"] == [
        None,
        {str(a): {"logprob": -0.5, "rank": 2, "decoded_token": "a"}, str(other): likeliest},
        {str(b): {"logprob": -1.0, "rank": 2, "decoded_token": "b"}, str(other): likeliest},
    ]
    (choice,) = complete(client, "bab", prompt_logprobs=3, max_tokens=0)["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("", "length")
    lowest = {"logprob": -9999.0, "rank": 3, "decoded_token": engine.tokenizer.decode([34])}
    assert choice["prompt_logprobs"][1] == {
        str(a): {"logprob": -0.5, "rank": 2, "decoded_token": "a"},
        str(other): likeliest,
        "34": lowest,
    }
    assert complete(client, "b", prompt_logprobs=0)["choices"][0]["prompt_logprobs"] == [None]


def test_who_asks_for_both_gets_each_with_its_own_alternatives(client: TestClient, engine: Any) -> None:
    (choice,) = complete(client, "ab", echo=True, logprobs=0, prompt_logprobs=3)["choices"]
    assert engine.submitted[-1][1].prompt_logprobs == 3
    assert choice["logprobs"]["top_logprobs"][:2] == [None, {"b": -0.5}]
    assert len(choice["prompt_logprobs"][1]) == 3
    (choice,) = complete(client, "ab", echo=True, logprobs=2, prompt_logprobs=0)["choices"]
    assert len(choice["logprobs"]["top_logprobs"][1]) == 2
    assert list(choice["prompt_logprobs"][1]) == [str(engine.tokenizer.encode("b")[0])]


# -- several choices of one prompt -----------------------------------------------------------------


def test_choices_are_numbered_through_the_prompts_and_the_prompts_counted_once(
    client: TestClient, engine: Any
) -> None:
    engine.others = ("so so", "no")
    reply = complete(client, ["ab", "cde"], n=3)
    assert [(choice["index"], choice["text"]) for choice in reply["choices"]] == [
        *((0, "fine, thanks"), (1, "so so"), (2, "no")),
        *((3, "fine, thanks"), (4, "so so"), (5, "no")),
    ]
    assert reply["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 2 * (13 + 6 + 3),
        "total_tokens": 5 + 44,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert complete(client, ["ab", "cde"], n=3)["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    assert [(len(prompt), params.n) for prompt, params, _ in engine.submitted[:2]] == [(2, 3), (3, 3)]


def test_streamed_choices_come_interleaved_each_with_its_end(client: TestClient, engine: Any) -> None:
    engine.others = ("so so", "no")
    whole = complete(client, ["ab", "cde"], n=3, cache_salt="a")
    chunks = stream(client, ["ab", "cde"], n=3, cache_salt="b", stream_options={"include_usage": True})
    assert chunks.pop()["usage"] == whole["usage"]
    choices = [chunk["choices"][0] for chunk in chunks]
    for told in whole["choices"]:
        own = [choice for choice in choices if choice["index"] == told["index"]]
        assert "".join(choice["text"] for choice in own) == told["text"]
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + ["stop"]
    assert [choice["index"] for choice in choices[:6]] != [0] * 6


def test_a_stop_string_ends_its_own_choice_and_the_engine_goes_on_with_the_others(
    client: TestClient, engine: Any
) -> None:
    engine.others = ("so so, and", "nothing of it")
    reply = complete(client, "hello", n=3, stop=", ", max_tokens=12)
    assert [(choice["text"], choice["finish_reason"]) for choice in reply["choices"]] == [
        ("fine", "stop"),
        ("so so", "stop"),
        ("nothing of i", "length"),
    ]
    assert len(engine.aborted) == 2
    assert reply["usage"]["completion_tokens"] == len("fine, ") + len("so so, ") + 12


def test_the_best_by_the_mean_of_their_logprobs_and_all_are_paid_for(client: TestClient, engine: Any) -> None:
    # A token's log-probability is minus its place: the shorter a text, the higher its mean.
    engine.others = ("so so", "no", "well")
    reply = complete(client, "hello", n=2, best_of=4)
    assert [(choice["index"], choice["text"]) for choice in reply["choices"]] == [(0, "no"), (1, "well")]
    assert reply["choices"][0]["logprobs"] is None
    assert reply["usage"]["completion_tokens"] == 13 + 6 + 3 + 5
    assert engine.submitted[-1][1].logprobs == 0
    told = complete(client, ["a", "b"], best_of=4, logprobs=1)
    assert [choice["text"] for choice in told["choices"]] == ["no", "no"]
    assert told["choices"][1]["logprobs"]["token_logprobs"] == [-1.0, -2.0]
    # A stop string shortens what is ranked, too.
    cut = complete(client, "hello", best_of=2, stop="i")
    assert cut["choices"][0]["text"] == "f"


def test_best_of_cannot_be_streamed_unless_it_is_n(client: TestClient) -> None:
    response = client.post(URL, json={"prompt": "hi", "stream": True, "best_of": 2})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("best_of", "invalid_value")
    assert "cannot be streamed" in error["message"]
    assert stream(client, "hi", n=2, best_of=2)


def test_choices_of_all_prompts_together_are_bounded(client: TestClient, engine: Any) -> None:
    response = client.post(URL, json={"prompt": ["hi"] * 103, "n": 10})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "n"
    assert "103 prompts with 10 choices each are 1030 choices" in error["message"]
    assert not engine.submitted


def test_the_prompts_of_a_body_are_taken_on_together_or_not_at_all(client: TestClient, engine: Any) -> None:
    body = {"prompt": ["a", "b", "c"], "n": 2}
    assert client.post("/v1/completions", json=body).status_code == 200
    assert engine.asked_for == [6]
    engine.full, engine.submitted = True, []
    assert client.post("/v1/completions", json=body).status_code == 429
    assert engine.submitted == []


@pytest.mark.parametrize(
    ("path", "body", "unless_asked"),
    [
        (URL, {"prompt": "hi"}, True),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, False),
    ],
)
def test_special_tokens_are_added_as_asked(
    client: TestClient, engine: Any, monkeypatch: pytest.MonkeyPatch, path: str, body: Any, unless_asked: bool
) -> None:
    encode, seen = type(engine.tokenizer).encode, []

    def watched(self: Any, text: str, *, add_special_tokens: bool = True) -> list[int]:
        if text != engine.answer:
            seen.append(add_special_tokens)
        return encode(self, text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(type(engine.tokenizer), "encode", watched)
    for asked in ({}, {"add_special_tokens": True}, {"add_special_tokens": False}):
        assert client.post(path, json=body | asked).status_code == 200
    assert seen == [unless_asked, True, False]
