"""A small server with a fault of each kind, and the line that finds it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import httpx
import pytest

from headstart.lab.audit import Audit, AuditError, Target, Word, audit

TODAY = date(2026, 12, 1)
URL = "http://gpu-box:8000"
HEADSTART = """
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{block_size="{block_size}",num_gpu_blocks="{num_blocks}",prefix_index="{index}"}} 1
# TYPE vllm:request_prompt_tokens histogram
vllm:request_prompt_tokens_bucket{{le="+Inf",model_name="m"}} 4
vllm:request_prompt_tokens_count{{model_name="m"}} 4
vllm:request_prompt_tokens_sum{{model_name="m"}} 400
# TYPE vllm:num_preemptions counter
vllm:num_preemptions_total{{model_name="m"}} {preemptions}
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{model_name="m"}} 0.25
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{model_name="m"}} 2
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{model_name="m"}} {waiting}
# TYPE headstart:prefix_cache_miss_tokens counter
headstart:prefix_cache_miss_tokens_total{{reason="cold",model_name="m"}} 60
headstart:prefix_cache_miss_tokens_total{{reason="evicted",model_name="m"}} {evicted}
# TYPE headstart:prefix_cache_hit_rate_estimate gauge
headstart:prefix_cache_hit_rate_estimate{{capacity="2x",model_name="m"}} 0.75
"""


def plain(messages: list[Any], tools: Any, opened: bool) -> str:
    """A well-behaved template; tools in any order are the same."""
    names = json.dumps(sorted(tools, key=str), sort_keys=True) if tools else ""
    told = "".join(f"<{one['role']}>{one['content']}" for one in messages)
    return names + told + ("<assistant>" if opened else "")


@dataclass
class Server:
    """Every character is a token; hits end at a block's end."""

    template: Callable[[list[Any], Any, bool], str] = plain
    keys: tuple[str, ...] = ()
    ignores_salts: bool = False
    isolates_keys: bool = False
    caches: bool = True
    tells: tuple[bool, bool] = (True, True)  # cached tokens: whole, streamed
    tokenizes: bool = True
    metrics: dict[str, Any] | None = field(default_factory=dict)
    max_model_len: int = 4096
    own_beginning: int = 0  # characters that every key has cached itself
    known: set[tuple[Any, str]] = field(default_factory=set)
    seen: list[httpx.Request] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        key = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self.keys and key not in self.keys:
            return httpx.Response(401, json={"error": {"message": "who are you?"}})
        body = json.loads(request.content) if request.content else {}
        match request.url.path:
            case "/v1/models":
                card = {"id": "m", "max_model_len": self.max_model_len}
                return httpx.Response(200, json={"data": [card]})
            case "/tokenize" if self.tokenizes:
                text = self.template(body["messages"], body.get("tools"), body["add_generation_prompt"])
                return httpx.Response(200, json={"tokens": [ord(letter) for letter in text]})
            case "/detokenize" if self.tokenizes:
                return httpx.Response(200, json={"prompt": "".join(map(chr, body["tokens"]))})
            case "/v1/chat/completions":
                return self._answer(body, key)
            case "/metrics" if self.metrics is not None:
                fields = {
                    "block_size": 16,
                    "num_blocks": 1000,
                    "index": "hash",
                    "preemptions": 0,
                    "waiting": 0,
                }
                return httpx.Response(200, text=HEADSTART.format(**fields | {"evicted": 0} | self.metrics))
        return httpx.Response(404, json={"error": {"message": "no such page"}})

    def _answer(self, body: dict[str, Any], key: str) -> httpx.Response:
        text = self.template(body["messages"], None, True)
        space = (
            None if self.ignores_salts else body.get("cache_salt"),
            key if self.isolates_keys else None,
        )
        cached = (len(text) - 1) // 16 * 16 if self.caches and (space, text) in self.known else 0
        if body.get("cache_salt") is None:
            cached = max(cached, self.own_beginning)
        self.known.add((space, text))
        usage: dict[str, Any] = {"prompt_tokens": len(text)}
        stream = body.get("stream", False)
        if self.tells[stream]:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        if stream:
            return httpx.Response(200, text=f"data: {json.dumps({'usage': usage})}\n\ndata: [DONE]\n\n")
        return httpx.Response(200, json={"usage": usage})


def audited(server: Server, **options: Any) -> Audit:
    with Target(URL, transport=httpx.MockTransport(server), **options) as target:
        return audit(target, today=TODAY)


def line(found: Audit, name: str) -> tuple[Word, str]:
    (one,) = [one for one in found.lines if one.name == name]
    return one.word, one.why


def test_a_server_that_does_all_of_it_well() -> None:
    server = Server(keys=("a", "b"), isolates_keys=True)
    found = audited(server, api_key="a", other_api_key="b")
    assert {one.word for one in found.lines} - {Word.WARN} == {Word.OK}, found.lines
    assert [one.name for one in found.lines if one.word is Word.WARN] == ["block size against prompts"]
    assert (found.engine, found.model, found.url, found.worst) == ("headstart", "m", URL, Word.WARN)


def test_it_sends_little_and_nothing_twice() -> None:
    server = Server()
    audited(server)
    audited(server)
    prompts = [json.loads(r.content) for r in server.seen if r.url.path == "/v1/chat/completions"]
    assert len(prompts) <= 2 * 10
    assert all(body["max_tokens"] == 1 for body in prompts)
    assert len({body["messages"][0]["content"] for body in prompts}) == 4  # two in each run


class Clock:
    """A template that counts how often it was rendered."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, messages: list[Any], tools: Any, opened: bool) -> str:
        self.count += 1
        return f"{self.count}: {plain(messages, tools, opened)}"


def rewriting(messages: list[Any], tools: Any, opened: bool) -> str:
    return f"{len(messages)} messages: {plain(messages, tools, opened)}"


def opening(messages: list[Any], tools: Any, opened: bool) -> str:
    return plain(messages, tools, opened) + ("<think>" if opened else "")


def in_order(messages: list[Any], tools: Any, opened: bool) -> str:
    return json.dumps(tools) + plain(messages, None, opened) if tools else plain(messages, None, opened)


def dated(text: str) -> Callable[[list[Any], Any, bool], str]:
    return lambda messages, tools, opened: f"Today is {text}. {plain(messages, tools, opened)}"


@pytest.mark.parametrize(
    ("server", "name", "word", "why"),
    [
        (Server(template=Clock()), "same messages, same tokens", Word.FAIL, "differ from token 0 of "),
        (Server(template=dated("2026-12-01")), "no date in the template", Word.WARN, "'2026-12-01'), 9 char"),
        (Server(template=dated("01 Dec 2026")), "no date in the template", Word.WARN, "at midnight"),
        (Server(template=dated("2026-11-30")), "no date in the template", Word.OK, "neither"),
        (Server(template=dated("now, 15:04")), "no date in the template", Word.FAIL, "'15:04'"),
        (Server(template=rewriting), "the next turn begins with the last", Word.FAIL, "from token 0 of"),
        (Server(template=opening), "the next turn begins with the last", Word.WARN, "written otherwise"),
        (Server(template=in_order), "the order of tools", Word.WARN, "with the keys of their schemas"),
        (Server(tokenizes=False), "same messages, same tokens", Word.UNKNOWN, "no /tokenize"),
        (Server(caches=False), "equal prompts hit", Word.FAIL, "only 0 of"),
        (Server(tells=(False, False)), "usage tells of hits", Word.FAIL, "no answer has"),
        (Server(tells=(True, False)), "usage tells of hits", Word.WARN, "missing for a streamed hit"),
        (Server(ignores_salts=True), "isolation by cache_salt", Word.FAIL, "ignores cache_salt"),
        (Server(caches=False), "isolation by cache_salt", Word.WARN, "proves nothing"),
        (Server(tells=(False, False)), "isolation by cache_salt", Word.UNKNOWN, "no answer says"),
        (Server(), "isolation by key", Word.UNKNOWN, "no two keys"),
        (Server(), "who is served", Word.WARN, "without a key"),
        (Server(metrics={"num_blocks": 100}), "room for KV", Word.FAIL, "1,600 tokens, fewer than one"),
        (Server(metrics={"block_size": 64}), "block size against prompts", Word.FAIL, "cost 31.5 tokens"),
        (Server(metrics={"index": "radix"}), "block size against prompts", Word.OK, "to the token"),
        (Server(metrics={"preemptions": 3}), "evictions", Word.WARN, "3 requests were put back"),
        (Server(metrics={"evicted": 40}), "evictions", Word.WARN, "40.0% of the computed"),
        (Server(metrics={"waiting": 5}), "batching limits", Word.WARN, "though there is memory"),
        (Server(metrics=None), "metrics", Word.UNKNOWN, "404"),
    ],
)  # fmt: skip
def test_a_fault_has_its_line(server: Server, name: str, word: Word, why: str) -> None:
    found = line(audited(server), name)
    assert found[0] is word
    assert why in found[1]


def test_keys_that_share_are_found() -> None:
    server = Server(keys=("a", "b"))
    word, why = line(audited(server, api_key="a", other_api_key="b"), "isolation by key")
    assert word is Word.FAIL
    assert "of a prompt that only the first has sent" in why


def test_a_server_that_has_just_started_has_counted_nothing() -> None:
    page = "\n".join(
        f"{one.rsplit(' ', 1)[0]} 0"
        if one.startswith(("vllm:request", "headstart:prefix_cache_miss"))
        else one
        for one in HEADSTART.splitlines()
    ).format(block_size=16, num_blocks=1000, index="hash", preemptions=0, waiting=0)
    asked: list[str] = []
    server = Server()

    def fresh(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return httpx.Response(200, text=page) if request.url.path == "/metrics" else server(request)

    with Target(URL, transport=httpx.MockTransport(fresh)) as target:
        found = audit(target, today=TODAY)
    assert asked.index("/metrics") < asked.index("/v1/chat/completions")  # else it would count our own
    assert line(found, "block size against prompts")[0] is Word.UNKNOWN
    assert line(found, "room for KV") == (Word.OK, "16,000 tokens; no request has ended yet")
    assert line(found, "evictions")[0] is not Word.WARN


def test_the_metrics_may_be_elsewhere() -> None:
    server = Server()

    def at_two_ports(request: httpx.Request) -> httpx.Response:
        if (request.url.path == "/metrics") is (request.url.port == 9001):
            return server(request)
        return httpx.Response(404, json={"error": {"message": "no such page"}})

    with Target(URL, metrics="http://gpu-box:9001", transport=httpx.MockTransport(at_two_ports)) as target:
        assert audit(target, today=TODAY).engine == "headstart"
    with Target(URL, transport=httpx.MockTransport(at_two_ports)) as target:
        (unknown,) = [one for one in audit(target, today=TODAY).lines if one.name == "metrics"]
    assert "--metrics-url" in unknown.change


def long_opening(messages: list[Any], tools: Any, opened: bool) -> str:
    return "<system>You are a helpful assistant." + plain(messages, tools, opened)


def test_what_the_other_keys_own_chats_begin_with_is_no_leak() -> None:
    server = Server(template=long_opening, keys=("a", "b"), isolates_keys=True, own_beginning=32)
    found = audited(server, api_key="a", other_api_key="b")
    word, why = line(found, "isolation by key")
    assert word is Word.OK
    assert why.endswith("the other 32 (as its own chats begin)")


def test_few_conversations_fit() -> None:
    server = Server(metrics={"num_blocks": 20}, max_model_len=300)
    assert line(audited(server), "room for KV")[0] is Word.WARN


def test_a_server_that_cannot_be_asked_is_a_sentence() -> None:
    with pytest.raises(AuditError, match=r"wants a key: give --api-key \(who are you\?\)"):
        audited(Server(keys=("a",)))
    with pytest.raises(AuditError, match="does not know this --api-key"):
        audited(Server(keys=("a",)), api_key="b")

    def refuses(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(AuditError, match="cannot reach http://gpu-box:8000"):
        Target(URL, transport=httpx.MockTransport(refuses))


def test_checks_that_break_are_lines_and_the_others_go_on() -> None:
    server = Server()

    def broken(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/chat/completions":
            return httpx.Response(500, json={"error": {"message": "it broke"}})
        return server(request)

    with Target(URL, transport=httpx.MockTransport(broken)) as target:
        found = audit(target, today=TODAY)
    assert line(found, "cache") == (
        Word.FAIL,
        "it could not be checked: /v1/chat/completions says 500: it broke",
    )
    assert line(found, "same messages, same tokens")[0] is Word.OK
    assert line(found, "batching limits")[0] is Word.OK
