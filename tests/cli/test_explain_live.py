"""``headstart explain --live`` against a server that answers what it is told to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from headstart.cli import app
from headstart.lab.explain.live import LiveError, explain_url

REASONS = [
    {"reason": "diverged", "tokens": 1710, "meaning": "cached behind [another] beginning", "advice": "look"},
    {"reason": "last_token", "tokens": 1, "meaning": "always computed", "advice": "nothing"},
]
PROMPT = {
    "index": 0,
    "status": "complete",
    "prompt_tokens": 2351,
    "hit_tokens": 640,
    "missed_tokens": 1711,
    "reasons": REASONS,
    "first_difference_at": 640,
    "evicted_s": None,
}
REPLY: dict[str, Any] = {
    "object": "cache.explanation",
    "request_id": "chatcmpl-7",
    "status": "complete",
    "prompts": [PROMPT],
}
PENDING = REPLY | {
    "status": "pending",
    "prompts": [{"index": 0, "status": "pending"}, PROMPT | {"index": 1, "evicted_s": 61.25}],
    "note": "a report comes shortly",
}


class Server(ThreadingHTTPServer):
    """``status`` and ``body`` are what it answers, ``asked`` what it was asked: path, key and body."""

    status = 200
    body = json.dumps(REPLY)

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, str | None, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append((self.path, self.headers["authorization"], body))
        data = self.server.body.encode()
        self.send_response(self.server.status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as one:
        thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield one
        one.shutdown()
        thread.join()


def explain(*arguments: str, **env: str) -> Result:
    return CliRunner(env={"COLUMNS": "100", **env}).invoke(app, ["explain", *arguments])


def test_a_miss_is_told_in_a_table(server: Server) -> None:
    done = explain("--live", server.url, "chatcmpl-7")
    assert done.exit_code == 0, done.output
    assert [line.rstrip() for line in done.stdout.splitlines()] == [
        "chatcmpl-7",
        "2,351 prompt tokens, 640 hit (27.2%), 1,711 computed",
        "",
        "diverged    1,710  cached behind [another] beginning",
        "                   look",
        "last_token  1      always computed",
        "                   nothing",
        "",
        "The first difference is at token 640.",
        "",
    ]
    assert server.asked == [("/v1/cache/explain", None, {"request_id": "chatcmpl-7"})]


def test_several_prompts_some_of_which_are_not_reported(server: Server) -> None:
    server.body = json.dumps(PENDING)
    lines = explain("--live", f"{server.url}/v1/", "chatcmpl-7").stdout.splitlines()
    assert lines[:4] == ["chatcmpl-7, prompt 0", "not reported", "", "chatcmpl-7, prompt 1"]
    assert "What was evicted had gone 61.2 s before." in lines
    assert lines[-1] == "a report comes shortly"
    assert server.asked[0][0] == "/v1/cache/explain"


def test_json_is_a_list_with_one_for_each_id_and_nothing_else(server: Server) -> None:
    done = explain("--live", server.url, "--json", "a", "b")
    told = json.loads(done.stdout)
    assert [one["prompts"] for one in told] == [REPLY["prompts"]] * 2
    assert [body["request_id"] for _, _, body in server.asked] == ["a", "b"]


@pytest.mark.parametrize("way", ["option", "environment"])
def test_the_key_is_sent_and_never_shown(server: Server, way: str) -> None:
    if way == "option":
        done = explain("--live", server.url, "--api-key", "sk-secret", "a")
    else:
        done = explain("--live", server.url, "a", HEADSTART_API_KEY="sk-secret")
    assert server.asked[0][1] == "Bearer sk-secret"
    assert "sk-secret" not in done.output
    assert "sk-secret" not in explain("--help", HEADSTART_API_KEY="sk-secret").output


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (404, json.dumps({"error": {"message": "none of your requests …"}}), "none of your requests …"),
        (401, json.dumps({"error": {"message": "a key is needed"}}), "a key is needed"),
        (404, json.dumps({"detail": "Not Found"}), "only headstart explains live requests"),
        (500, "oops", "answered 500"),
        (200, "[]", "something else than an explanation"),
        (200, "<html>", "something else than an explanation"),
    ],
)
def test_what_goes_wrong_is_told_in_a_sentence(server: Server, status: int, body: str, words: str) -> None:
    server.status, server.body = status, body
    done = explain("--live", server.url, "a")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.startswith("headstart explain: ")
    assert words in done.stderr


def test_nobody_there(server: Server) -> None:
    url = server.url
    server.server_close()
    done = explain("--live", url, "a")
    assert done.exit_code == 1
    assert "cannot be reached" in done.stderr


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/v1/cache/explain"),
        ("gpu-box:30000", "http://gpu-box:30000/v1/cache/explain"),
        ("https://host/prefix/v1?x=1#y", "https://host/prefix/v1/cache/explain"),
    ],
)
def test_addresses(given: str, url: str) -> None:
    assert str(explain_url(given)) == url


@pytest.mark.parametrize("given", ["", "ftp://host", "http://", "http://host:port"])
def test_no_addresses(given: str) -> None:
    with pytest.raises(LiveError):
        explain_url(given)
