"""vLLM's extensions with a real engine: what they promise of tokens, not only of JSON."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Server

TEXT = "/v1/completions"
PROMPT = "A prefix that was computed once need not be computed again."


def complete(server: Server, **fields: Any) -> dict[str, Any]:
    response = server.http.post(TEXT, json={"prompt": PROMPT, "temperature": 0, "max_tokens": 8} | fields)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


def test_tokens_there_and_back(tiny_server: Server) -> None:
    told = tiny_server.http.post("/tokenize", json={"prompt": PROMPT, "return_token_strs": True}).json()
    assert told["max_model_len"] == 20_000
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"])
    assert tiny_server.http.post("/detokenize", json={"tokens": told["tokens"]}).json() == {"prompt": PROMPT}
    reply = complete(tiny_server, return_token_ids=True)
    assert reply["choices"][0]["prompt_token_ids"] == told["tokens"]
    by_ids = complete(tiny_server, prompt=told["tokens"], return_token_ids=True)
    assert by_ids["choices"][0]["token_ids"] == reply["choices"][0]["token_ids"]


def test_a_cut_prompt_is_the_same_prompt_as_its_end(tiny_server: Server) -> None:
    tokens = tiny_server.http.post("/tokenize", json={"prompt": PROMPT}).json()["tokens"]
    cut = complete(tiny_server, truncate_prompt_tokens=5, prompt_logprobs=0, return_token_ids=True)
    end = complete(tiny_server, prompt=tokens[-5:], prompt_logprobs=0, return_token_ids=True)
    assert cut["choices"] == end["choices"]
    assert cut["usage"]["prompt_tokens"] == 5
    again = complete(tiny_server, truncate_prompt_tokens=5)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 4


def test_a_prompt_that_is_too_long_is_cut_to_what_fits(strict_server: Server) -> None:
    long = [7] * 3_000  # the pool has 64 blocks of 16 tokens, and the last token needs no slot
    assert strict_server.http.post(TEXT, json={"prompt": long}).status_code == 400
    reply = complete(strict_server, prompt=long, truncate_prompt_tokens=-1, max_tokens=2)
    assert reply["usage"]["prompt_tokens"] == 64 * 16 + 1 - 2


def test_an_answer_has_at_least_min_tokens(tiny_server: Server) -> None:
    end = complete(tiny_server, return_token_ids=True)["choices"][0]["token_ids"]
    stopped = complete(tiny_server, stop_token_ids=[end[0]])
    assert stopped["usage"]["completion_tokens"] == 1
    later = complete(tiny_server, stop_token_ids=[end[0]], min_tokens=6)
    assert later["usage"]["completion_tokens"] >= 6


def test_priorities_are_refused_where_they_do_not_count(tiny_server: Server) -> None:
    response = tiny_server.http.post(TEXT, json={"prompt": PROMPT, "priority": 3})
    assert response.status_code == 400
    assert "--scheduling-policy priority" in response.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_id_is_free_again_when_its_request_has_ended(tiny_server: Server, stream: bool) -> None:
    body = {"prompt": PROMPT, "max_tokens": 4, "request_id": "twice", "stream": stream, "n": 2}
    for _ in range(3):
        assert tiny_server.http.post(TEXT, json=body).status_code == 200
    refused = tiny_server.http.post(TEXT, json=body | {"temperature": -1})
    assert refused.status_code == 400
    assert tiny_server.http.post(TEXT, json=body).status_code == 200


def test_an_id_is_not_given_twice_at_a_time(tiny_server: Server) -> None:
    body = {"prompt": PROMPT, "request_id": "busy", "ignore_eos": True, "max_tokens": 15_000, "stream": True}
    with tiny_server.http.stream("POST", TEXT, json=body) as running:
        lines = running.iter_lines()  # forgotten, it would hang up
        assert next(lines).startswith("data: ")
        for stream in (False, True):
            second = tiny_server.http.post(TEXT, json=body | {"stream": stream, "max_tokens": 1})
            assert second.status_code == 409
            assert second.json()["error"]["code"] == "request_id_in_use"
        assert tiny_server.http.post(TEXT, json={"prompt": "a", "request_id": "free"}).status_code == 200
        assert next(line for line in lines if line).startswith("data: ")
    tiny_server.until_idle()
    assert tiny_server.http.post(TEXT, json=body | {"stream": False, "max_tokens": 1}).status_code == 200


def test_of_two_at_once_one_has_the_id(tiny_server: Server) -> None:
    """Whichever comes second is refused while the first is answered; else both are served."""
    body = {"prompt": [PROMPT] * 8, "request_id": "race", "max_tokens": 50, "ignore_eos": True}
    statuses: list[int] = []

    def post() -> None:
        statuses.append(tiny_server.http.post(TEXT, json=body).status_code)

    threads = [threading.Thread(target=post) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 200 in statuses
    assert set(statuses) <= {200, 409}
    tiny_server.until_idle()
