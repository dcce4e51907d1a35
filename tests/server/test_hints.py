"""What requests ask of the cache, as terms; and that nothing of it touches the prompt or its key."""

from __future__ import annotations

import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from headstart.engine.request import PLAIN_TERMS, CacheTerms, Retention
from headstart.server.hints import LONGEST_S, retention, seconds_of

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def terms(client: TestClient, engine: Any, **fields: Any) -> CacheTerms:
    """Those of a chat and a completion with the fields, which must be the same; prompts stay as they are."""
    found = []
    for path, body, prompt in (
        ("/v1/chat/completions", CHAT, "[user]hi[assistant]"),
        ("/v1/completions", {"prompt": "hi"}, "hi"),
    ):
        response = client.post(path, json=body | fields)
        assert response.status_code == 200, response.text
        tokens, _, got = engine.submitted[-1]
        assert engine.tokenizer.decode(tokens) == prompt
        found.append(got)
    assert found[0] == found[1]
    return found[0]


def test_who_says_nothing_has_plain_terms(client: TestClient, engine: Any) -> None:
    assert terms(client, engine) == PLAIN_TERMS
    assert terms(client, engine, prompt_cache_options=None, prompt_cache_key=None) == PLAIN_TERMS


def test_opt_outs(client: TestClient, engine: Any) -> None:
    assert terms(client, engine, skip_reading_prefix_cache=True) == CacheTerms(skip_reading=True)
    assert terms(client, engine, skip_writing_prefix_cache=True) == CacheTerms(skip_writing=True)
    assert terms(client, engine, skip_writing_prefix_cache=False) == PLAIN_TERMS


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"prompt_cache_retention": "in_memory"}, 600.0),
        ({"prompt_cache_retention": "in-memory"}, 600.0),
        ({"prompt_cache_retention": "24h"}, 86_400.0),
        ({"prompt_cache_options": {}}, 1800.0),
        ({"prompt_cache_options": {"ttl": "30m"}}, 1800.0),
        ({"prompt_cache_options": {"ttl": "90s", "mode": "implicit"}}, 90.0),
        ({"prompt_cache_options": {"ttl": "99999h"}}, LONGEST_S),
        ({"prompt_cache_retention": "24h", "prompt_cache_options": {"ttl": "30m"}}, 86_400.0),
        ({"prompt_cache_retention": "in_memory", "prompt_cache_options": {"ttl": "30m"}}, 1800.0),
    ],
)
def test_the_longest_time_counts(
    client: TestClient, engine: Any, fields: dict[str, Any], seconds: float
) -> None:
    assert terms(client, engine, **fields).retention == Retention(seconds)


def test_explicit_marks_are_not_read_and_so_nothing_is_kept(client: TestClient, engine: Any) -> None:
    assert terms(client, engine, prompt_cache_options={"mode": "explicit", "ttl": "30m"}) == PLAIN_TERMS


def test_a_key_names_whose_prompt_is_kept_and_isolates_nobody(client: TestClient, engine: Any) -> None:
    alone = terms(client, engine, prompt_cache_key="chat-7")
    assert alone.salt is None
    assert alone.retention == retention(600.0, key="chat-7")
    assert alone.retention is not None
    assert alone.retention.name is not None
    assert "chat-7" not in alone.retention.name
    names = {
        terms(client, engine, prompt_cache_key=key, cache_salt=salt).retention
        for key, salt in (("chat-7", None), ("chat-8", None), ("chat-7", "a"), ("chat-7", "b"))
    }
    assert len(names) == 4  # what one namespace keeps is no other's to replace
    assert terms(client, engine, prompt_cache_key="chat-7", prompt_cache_retention="24h").retention == (
        retention(86_400.0, key="chat-7")
    )


def test_who_writes_nothing_keeps_nothing(client: TestClient, engine: Any) -> None:
    asked = {"skip_writing_prefix_cache": True, "prompt_cache_retention": "24h", "prompt_cache_key": "a"}
    assert terms(client, engine, **asked) == CacheTerms(skip_writing=True)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("skip_reading_prefix_cache", "yes", "true or false"),
        ("skip_writing_prefix_cache", 1, "true or false"),
        ("prompt_cache_key", "", "1 to 256 characters"),
        ("prompt_cache_key", "x" * 257, "1 to 256 characters"),
        ("prompt_cache_key", 7, "1 to 256 characters"),
        ("prompt_cache_retention", "7d", '"in_memory" or "24h"'),
        ("prompt_cache_options", "30m", '{"ttl": "30m"}'),
        ("prompt_cache_options", {"ttl": "soon"}, '{"ttl": "30m"}'),
        ("prompt_cache_options", {"ttl": "30m\n"}, '{"ttl": "30m"}'),
        ("prompt_cache_options", {"ttl": "0s"}, '{"ttl": "30m"}'),
        ("prompt_cache_options", {"mode": "always"}, '{"ttl": "30m"}'),
    ],
)
def test_nonsense_is_refused(client: TestClient, field: str, value: Any, words: str) -> None:
    response = client.post("/v1/completions", json={"prompt": "hi", field: value})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"].startswith(field)
    assert words in error["message"]


def test_times_in_words() -> None:
    assert [seconds_of(text) for text in ("5s", "5m", "1h", "24h", "25h")] == [5, 300, 3600, 86_400, 86_400]
    for text in ("5", "m", "-5m", "5 m", "1.5h", "05m"):
        with pytest.raises(ValueError, match=re.escape(text)):
            seconds_of(text)


def test_no_retention_is_longer_than_a_day() -> None:
    assert retention(1e9).seconds == LONGEST_S
