"""A real server with a tiny model: hits, boundaries, clients that leave, bad input, and ends."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

if TYPE_CHECKING:
    from conftest import Server, StartServer

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
LONG = 15_000  # tokens: seconds of work, so that whoever looks meanwhile finds the request running
TEXT = "The server keeps the keys and the values of every block of tokens until the memory is wanted. "


def post(server: Server, path: str, **body: Any) -> dict[str, Any]:
    response = server.http.post(path, json={"model": "tiny", "temperature": 0, **body})
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


def ask(server: Server, path: str, prompt: str, *, stream: bool, **fields: Any) -> tuple[str, dict[str, Any]]:
    """The answer's text and its usage, however they are asked for."""
    body = {"messages": [{"role": "user", "content": prompt}]} if path == CHAT else {"prompt": prompt}
    body |= {"max_tokens": 12, "stream": stream, **fields}
    if stream:
        body["stream_options"] = {"include_usage": True}
        response = server.http.post(path, json={"model": "tiny", "temperature": 0, **body})
        *events, done, rest = response.text.split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        chunks = [json.loads(event.removeprefix("data: ")) for event in events]
        last = chunks.pop()
        choices = [chunk["choices"][0] for chunk in chunks]
        text = "".join(
            choice["delta"].get("content", "") if path == CHAT else choice["text"] for choice in choices
        )
        return text, last["usage"]
    reply = post(server, path, **body)
    choice = reply["choices"][0]
    return (choice["message"]["content"] if path == CHAT else choice["text"]), reply["usage"]


def cached(usage: dict[str, Any]) -> int:
    count: int = usage["prompt_tokens_details"]["cached_tokens"]
    return count


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_prompt_hits_the_second_time_and_its_answer_is_the_same(tiny_server: Server, path: str) -> None:
    for first in (False, True):
        salt = f"second time {path[4:8]} {first}"
        cold_text, cold = ask(tiny_server, path, TEXT * 4, stream=first, cache_salt=salt)
        for stream in (False, True):
            warm_text, warm = ask(tiny_server, path, TEXT * 4, stream=stream, cache_salt=salt)
            assert warm_text == cold_text
            assert cached(cold) == 0
            assert cached(warm) == warm["prompt_tokens"] - 1  # all but the one that gives logits
            assert warm | {"prompt_tokens_details": None} == cold | {"prompt_tokens_details": None}


def test_a_shared_beginning_hits_to_the_token(tiny_server: Server) -> None:
    shared = list(range(100, 150))
    first = post(tiny_server, COMPLETIONS, prompt=[*shared, 200, 201, 202], cache_salt="to-the-token")
    second = post(tiny_server, COMPLETIONS, prompt=[*shared, 300, 301, 302], cache_salt="to-the-token")
    assert cached(first["usage"]) == 0
    assert cached(second["usage"]) == 50


def test_prompts_are_scored_alike_cold_and_warm_and_leave_the_statistics_alone(tiny_server: Server) -> None:
    prompt = list(range(100, 180))
    asked: dict[str, Any] = {"prompt": prompt, "cache_salt": "scored", "max_tokens": 0}
    queries = tiny_server.metric("prefix_cache_queries_total")
    cold = post(tiny_server, COMPLETIONS, **asked, echo=True, logprobs=2)
    warm = post(tiny_server, COMPLETIONS, **asked, prompt_logprobs=0)
    assert tiny_server.metric("prefix_cache_queries_total") == queries
    assert (cached(cold["usage"]), cached(warm["usage"])) == (0, 0)
    logprobs = cold["choices"][0]["logprobs"]["token_logprobs"]
    again = warm["choices"][0]["prompt_logprobs"]
    assert len(logprobs) == len(again) == 80
    assert logprobs[0] is again[0] is None
    assert [entry[str(token)]["logprob"] for token, entry in zip(prompt[1:], again[1:], strict=True)] == (
        pytest.approx(logprobs[1:], abs=1e-4)
    )
    assert cached(post(tiny_server, COMPLETIONS, **asked | {"max_tokens": 1})["usage"]) == 79


def test_salts_do_not_share(tiny_server: Server) -> None:
    def hits(salt: str | None) -> int:
        _, usage = ask(tiny_server, CHAT, "salted " + TEXT, stream=False, cache_salt=salt)
        return cached(usage)

    one, other = "apart-one", "apart-other"
    assert [hits(one), hits(other)] == [0, 0]
    assert hits(None) < 10  # at most how every chat without a salt begins, which another test may have sent
    assert all(count > 10 for count in (hits(one), hits(other), hits(None)))


def test_several_prompts_are_several_choices(tiny_server: Server) -> None:
    prompts = [[10, 20, 30], [40, 50], [60]]
    together = post(tiny_server, COMPLETIONS, prompt=prompts, max_tokens=8)
    alone = [post(tiny_server, COMPLETIONS, prompt=prompt, max_tokens=8) for prompt in prompts]
    texts = [reply["choices"][0]["text"] for reply in alone]
    assert [choice["text"] for choice in together["choices"]] == texts
    assert together["usage"]["prompt_tokens"] == 6


def test_answers_do_not_depend_on_what_else_is_served(tiny_server: Server) -> None:
    prompts = [f"{number} {TEXT}" for number in range(8)]

    def answer(prompt: str) -> str:
        return ask(tiny_server, COMPLETIONS, prompt, stream=True, max_tokens=30)[0]

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(answer, prompts))
    assert together == [answer(prompt) for prompt in prompts]


def test_a_seed_repeats_and_another_differs(tiny_server: Server) -> None:
    def sampled(seed: int) -> str:
        text, _ = ask(
            tiny_server, COMPLETIONS, "seeded", stream=False, temperature=1.0, seed=seed, max_tokens=30
        )
        return text

    assert sampled(1) == sampled(1)
    assert sampled(1) != sampled(2)


def test_prefix_metrics_are_the_sums_of_usages(tiny_server: Server) -> None:
    names = (
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "prompt_tokens_total",
        "generation_tokens_total",
    )
    tiny_server.until_idle()
    before = [tiny_server.metric(name) for name in names]
    usages = [ask(tiny_server, CHAT, f"sums {number % 2} {TEXT}", stream=False)[1] for number in range(4)]
    tiny_server.until_idle()
    grown = [tiny_server.metric(name) - value for name, value in zip(names, before, strict=True)]
    prompt = sum(usage["prompt_tokens"] for usage in usages)
    hits = sum(map(cached, usages))
    assert hits > 0
    assert grown == [prompt, hits, prompt, sum(usage["completion_tokens"] for usage in usages)]


def test_a_client_that_leaves_while_it_waits_frees_its_blocks(tiny_server: Server) -> None:
    tiny_server.until_idle()
    aborted = tiny_server.metric("request_success_total", finished_reason="abort")
    host, port = tiny_server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        body = json.dumps({"prompt": [7] * 50, "max_tokens": LONG, "ignore_eos": True}).encode()
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        tiny_server.until_busy()
    tiny_server.until_idle()
    assert tiny_server.metric("request_success_total", finished_reason="abort") == aborted + 1


def test_a_client_that_leaves_amid_a_stream_frees_its_blocks(tiny_server: Server) -> None:
    tiny_server.until_idle()
    aborted = tiny_server.metric("request_success_total", finished_reason="abort")
    body = {"prompt": [7] * 50, "max_tokens": LONG, "ignore_eos": True, "stream": True}
    with tiny_server.http.stream("POST", COMPLETIONS, json=body) as response:
        lines = response.iter_lines()  # to be kept: when it is dropped, httpx hangs up
        next(lines)
        assert tiny_server.metric("num_requests_running") == 1
        assert tiny_server.metric("kv_cache_usage_perc") > 0
    tiny_server.until_idle()
    assert tiny_server.metric("request_success_total", finished_reason="abort") == aborted + 1


def test_reset_is_refused_while_a_request_runs_and_then_forgets(tiny_server: Server) -> None:
    ask(tiny_server, CHAT, "reset " + TEXT, stream=False)
    body = {"prompt": [9] * 50, "max_tokens": LONG, "ignore_eos": True, "stream": True}
    with tiny_server.http.stream("POST", COMPLETIONS, json=body) as response:
        lines = response.iter_lines()  # to be kept: when it is dropped, httpx hangs up
        next(lines)
        refused = tiny_server.http.post("/reset_prefix_cache")
        assert refused.status_code == 409
        assert refused.json()["success"] is False
    tiny_server.until_idle()
    assert cached(ask(tiny_server, CHAT, "reset " + TEXT, stream=False)[1]) > 0
    assert tiny_server.http.post("/reset_prefix_cache").json() == {"success": True}
    assert cached(ask(tiny_server, CHAT, "reset " + TEXT, stream=False)[1]) == 0


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"prompt": [5] * 20_000}, "prompt", ["20000"]),
        ({"prompt": [5] * 50_000}, "prompt", ["50000", "20000"]),
        ({"prompt": TEXT * 2000}, "prompt", ["20000"]),
        ({"prompt": "hi", "max_tokens": 20_000}, "max_tokens", ["20000"]),
        ({"prompt": [512]}, "prompt", ["512"]),
        ({"prompt": [[1], [-1]]}, "prompt", ["-1"]),
        ({"prompt": [10**30]}, "prompt", ["vocabulary"]),
        ({"prompt": [5] * 17_000, "max_tokens": 10}, "prompt", ["1064 blocks", "has 1000"]),
    ],
)
def test_what_the_engine_can_never_serve(
    tiny_server: Server, body: dict[str, Any], param: str, words: list[str]
) -> None:
    response = tiny_server.http.post(COMPLETIONS, json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    for word in words:
        assert word in error["message"]
    assert tiny_server.http.get("/health").status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1e-300},
        {"temperature": 100},
        {"top_k": 2**31 - 1},
        {"top_p": 1e-30},
        {"seed": 2**64 - 1},
        {"logit_bias": {"511": -100}},
        {"presence_penalty": 2, "frequency_penalty": -2, "repetition_penalty": 0.01},
        {"min_tokens": 4, "stop_token_ids": [511]},
        {"logprobs": 5, "logit_bias": {"0": 100}},
    ],
)
def test_extreme_values_that_are_allowed_are_served(tiny_server: Server, fields: dict[str, Any]) -> None:
    body = {"prompt": "extreme", "max_tokens": 4, **fields}
    response = tiny_server.http.post(COMPLETIONS, json=body)
    assert response.status_code == 200, response.text
    assert tiny_server.http.get("/health").status_code == 200


def test_a_body_too_large_is_refused_over_a_real_socket(tiny_server: Server) -> None:
    body = b'{"prompt": "' + b"a" * (17 * 2**20) + b'"}'
    response = tiny_server.http.post(COMPLETIONS, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 413
    assert tiny_server.http.get("/health").status_code == 200


def test_the_http_process_has_no_torch_and_the_engine_has(tiny_server: Server) -> None:
    assert "libtorch" not in Path(f"/proc/{tiny_server.process.pid}/maps").read_text()
    assert tiny_server.engine.is_running()


def test_the_banners_curl_line_works_when_pasted(tiny_server: Server) -> None:
    if shutil.which("curl") is None:
        pytest.skip("this machine has no curl")
    line = tiny_server.banner.splitlines()[-1]
    result = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=True)
    assert json.loads(result.stdout)["choices"][0]["message"]["role"] == "assistant"


def test_a_second_server_on_the_port_ends_with_a_sentence(tiny_server: Server, tiny_llama_dir: Path) -> None:
    port = tiny_server.url.rpartition(":")[2]
    command = [sys.executable, "-m", "headstart", "serve", str(tiny_llama_dir), "--port", port]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stdout == ""
    assert f"port {port}" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_gracefully(start_server: StartServer, long_tiny_dir: Path, sig: int) -> None:
    with start_server(str(long_tiny_dir), "--dtype", "float32", "--num-blocks", "1000") as server:
        engine = server.engine
        body = {"prompt": [3] * 10, "max_tokens": 20, "ignore_eos": True, "stream": True}
        with server.http.stream("POST", COMPLETIONS, json=body) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(sig)
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert server.process.wait(60) == 0
        assert not psutil.pid_exists(engine.pid)
        (line,) = server.stderr.read_text().splitlines()
        assert line.startswith("INFO headstart.server.access_log: POST /v1/completions 200 ")


def test_an_engine_that_dies_is_told_to_everybody_and_comes_back(
    start_server: StartServer, long_tiny_dir: Path
) -> None:
    with start_server(str(long_tiny_dir), "--dtype", "float32", "--num-blocks", "1000") as server:
        greedy = {"prompt": "once upon a time", "temperature": 0, "max_tokens": 5}
        before = server.http.post(COMPLETIONS, json=greedy).json()["choices"]
        body = {"prompt": [3] * 10, "max_tokens": LONG, "ignore_eos": True, "stream": True}
        with server.http.stream("POST", COMPLETIONS, json=body) as response:
            lines = response.iter_lines()
            next(lines)
            server.engine.kill()
            last = [line for line in lines if line][-1]
        assert json.loads(last.removeprefix("data: "))["error"]["type"] == "server_error"
        sick = server.http.get("/health")
        assert sick.status_code == 503
        assert "killed by signal 9" in sick.json()["error"]["message"]
        refused = server.http.post(COMPLETIONS, json={"prompt": "hi"})
        assert refused.status_code == 503
        assert refused.json()["error"]["type"] == "server_error"
        assert server.http.get("/metrics").status_code == 200
        deadline = time.monotonic() + 60
        while server.http.get("/health").status_code == 503 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert server.http.post(COMPLETIONS, json=greedy).json()["choices"] == before
        assert server.stop() == 0
        assert "Traceback" not in server.stderr.read_text()
