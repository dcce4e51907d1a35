"""Fields of a chat that concern its template: messages left open, templates of requests, documents, echo."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from headstart.config import ServerConfig
from headstart.server.app import build_app
from headstart.server.caller import Caller
from headstart.text import ChatTemplate

URL = "/v1/chat/completions"
BEGUN = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "I am"}]


def ask(client: TestClient, **fields: Any) -> dict[str, Any]:
    response = client.post(URL, json={"messages": BEGUN, **fields})
    assert response.status_code == 200, response.text
    return dict(response.json()["choices"][0]["message"])


def error_of(client: TestClient, **fields: Any) -> dict[str, Any]:
    response = client.post(URL, json={"messages": BEGUN, **fields})
    assert response.status_code == 400, response.text
    return dict(response.json()["error"])


def prompt_of(engine: Any) -> str:
    text: str = engine.tokenizer.decode(engine.submitted[-1][0])
    return text


def test_a_final_message_is_continued(client: TestClient, engine: Any) -> None:
    for fields in ({}, {"add_generation_prompt": False}):
        ask(client, continue_final_message=True, **fields)
        assert prompt_of(engine) == "[user]hi[assistant]I am"
    ask(client, continue_final_message=False)
    assert prompt_of(engine) == "[user]hi[assistant]I am[assistant]"


def test_left_open_and_followed_is_a_contradiction(client: TestClient) -> None:
    error = error_of(client, continue_final_message=True, add_generation_prompt=True)
    assert error["param"] == "continue_final_message"
    assert "cannot both be true" in error["message"]


def test_nothing_cannot_be_continued(client: TestClient) -> None:
    messages = [*BEGUN[:1], {"role": "assistant", "content": ""}]
    assert error_of(client, messages=messages, continue_final_message=True)["param"] == "messages"


def test_echo_prepends_the_message_that_goes_on(client: TestClient) -> None:
    assert ask(client, echo=True, continue_final_message=True)["content"] == "I amfine, thanks"
    assert ask(client, echo=True)["content"] == "I amfine, thanks"  # vLLM's rule: of one role is enough
    assert ask(client, echo=True, messages=BEGUN[:1])["content"] == "fine, thanks"
    assert (
        ask(client, echo=True, messages=BEGUN[:1], add_generation_prompt=False)["content"] == "hifine, thanks"
    )
    assert ask(client, echo=False, continue_final_message=True)["content"] == "fine, thanks"


def test_echo_in_a_stream(client: TestClient) -> None:
    body = {"messages": BEGUN, "echo": True, "continue_final_message": True, "stream": True, "n": 2}
    text = client.post(URL, json=body).text
    assert text.count('"content":"I am"') == 2
    assert text.index('"content":"I am"') < text.index('"content":"f"')


def test_documents_and_reasoning_effort_reach_the_template(client: TestClient, engine: Any) -> None:
    template = "{{ documents }}|{{ reasoning_effort }}|{{ messages[0].content }}"
    ask(client, chat_template=template, documents=[{"text": "a"}], reasoning_effort="low")
    assert prompt_of(engine) == "[{'text': 'a'}]|low|hi"
    ask(client, chat_template=template, chat_template_kwargs={"reasoning_effort": "high"}, documents=[])
    assert prompt_of(engine) == "[]|high|hi"
    assert error_of(client, documents="a")["param"] == "documents"


def test_a_requests_template_takes_the_place_of_the_models(client: TestClient, engine: Any) -> None:
    ask(client, chat_template="{{ eos_token }}{{ messages | length }}{{ add_generation_prompt }}")
    assert prompt_of(engine) == "2True"  # the end token is special, and so not shown
    assert engine.submitted[-1][0][0] in engine.tokenizer.eos_token_ids


def test_a_model_without_a_template_serves_chats_that_bring_one(engine: Any) -> None:
    with TestClient(build_app(engine, engine.tokenizer, None)) as client:
        assert error_of(client)["code"] == "no_chat_template"
        ask(client, chat_template="{{ messages[0].content }}")
    assert prompt_of(engine) == "hi"


@pytest.mark.parametrize(
    ("template", "param", "words"),
    [
        ("{% for %}", "chat_template", "chat_template is no template"),
        ("{{ 1 | nonsense }}", "chat_template", "No filter named 'nonsense'"),
        ("x" * 70_000, "chat_template", "at most 65,536 characters, got 70,000"),
        ("(" * 60_000, None, ""),
        ("{{ " + "(" * 60_000 + " }}", "chat_template", "chat_template is no template"),
        ("{{ raise_exception('no') }}", "messages", "the request's chat template cannot render"),
        ("{{ messages.__class__.__mro__ }}", "messages", "the request's chat template cannot render"),
        (
            "{% for a in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
            "messages",
            "more than 16,777,216 characters",
        ),
        (3, "chat_template", "must be a string"),
    ],
)
def test_bad_templates(client: TestClient, template: Any, param: str | None, words: str) -> None:
    if param is None:  # brackets alone are text, if a long one for this model
        assert "maximum context length" in error_of(client, chat_template=template)["message"]
        return
    error = error_of(client, chat_template=template)
    assert error["param"] == param
    assert words in error["message"]


def test_a_template_that_loops_is_stopped(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headstart.text.request_templates.MAX_SECONDS", 0.25)
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    assert "longer than 0.25 seconds" in error_of(client, chat_template=loop)["message"]


def test_few_templates_are_kept_and_none_is_compiled_twice(engine: Any) -> None:
    app = build_app(engine, engine.tokenizer, None)
    with TestClient(app) as client:
        for _ in range(3):
            ask(client, chat_template="{{ messages[0].content }}")
        for number in range(20):
            ask(client, chat_template=f"{{{{ messages[0].content }}}}{number}")
            assert prompt_of(engine) == f"hi{number}"


def test_templates_are_refused_where_callers_are_told_apart(engine: Any) -> None:
    def app_for(tenant: str | None, trust: bool | None) -> Any:
        app = build_app(
            engine,
            engine.tokenizer,
            ChatTemplate("{{ messages[0].content }}"),
            ServerConfig(trust_request_chat_template=trust),
        )

        async def with_caller(scope: Any, receive: Any, send: Any) -> None:
            scope["headstart.caller"] = Caller(tenant)
            await app(scope, receive, send)

        return with_caller

    template = "{{ messages[0].content }}!"
    for tenant, trust, allowed in [
        (None, None, True),
        ("t", None, False),
        ("t", True, True),
        (None, False, False),
    ]:
        client = TestClient(app_for(tenant, trust))
        response = client.post(URL, json={"messages": BEGUN, "chat_template": template})
        assert response.status_code == (200 if allowed else 400)
        if not allowed:
            assert response.json()["error"]["code"] == "untrusted_chat_template"
            assert "--trust-request-chat-template" in response.json()["error"]["message"]
        tokens = client.post("/tokenize", json={"messages": BEGUN, "chat_template": template})
        assert tokens.status_code == response.status_code
