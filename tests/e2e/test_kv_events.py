"""KV events of a real server, followed by a process of its own that knows nothing else of the cache."""

from __future__ import annotations

import itertools
import json
import random
import re
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import zmq

from headstart.cache.hashing import block_hash_chain
from headstart.engine.event_wire import number_of
from headstart.model.source import ModelFiles
from tests.e2e.conftest import PATIENCE, Server, StartServer, wait_until

SUBSCRIBER = str(Path(__file__).parent / "subscriber.py")
SIZE = 16
Blocks = dict[int, tuple[int | None, list[int]]]
Endpoints = tuple[str, str]


@pytest.fixture(autouse=True)
def unset_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)


@pytest.fixture
def endpoints(tmp_path: Path) -> Endpoints:
    return f"ipc://{tmp_path}/pub", f"ipc://{tmp_path}/again"


def events_option(endpoints: Endpoints) -> tuple[str, str]:
    names = ("endpoint", "replay_endpoint")
    config = {
        "enable_kv_cache_events": True,
        "topic": "kv@e2e@tiny",
        **dict(zip(names, endpoints, strict=True)),
    }
    return "--kv-events-config", json.dumps(config)


def ask(server: Server, prompt: list[int] | str, max_tokens: int = 1) -> int:
    """How many of the prompt's tokens were cached."""
    body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}
    response = server.http.post("/v1/completions", json=body)
    response.raise_for_status()
    cached: int = response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached


def last_batch(endpoints: Endpoints) -> int:
    """The number of the newest batch: what is published before an answer is out can be replayed after it."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.setsockopt(zmq.RCVTIMEO, int(PATIENCE * 1000))
    context.setsockopt(zmq.LINGER, 0)
    newest = b""
    with closing(context.socket(zmq.DEALER)) as dealer:
        dealer.connect(endpoints[1])
        dealer.send_multipart([b"", bytes(8)])
        while (frames := dealer.recv_multipart())[1] != b"\xff" * 8:
            newest = frames[1]
    context.term()
    return int.from_bytes(newest, "big")


class Follower:
    """A subscriber's process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout

    def read(self, meanwhile: Callable[[], object] | None = None) -> str:
        """Its next line; until it comes, something is done again and again."""
        if meanwhile is not None:
            wait_until(lambda: select.select([self._stdout], [], [], 0)[0] or (meanwhile(), False)[1])
        assert select.select([self._stdout], [], [], PATIENCE)[0], "it says nothing"
        return self._stdout.readline()

    def blocks(self, number: int, meanwhile: Callable[[], object] | None = None) -> Blocks:
        """What it believes once it knows the batch of this number."""
        self._stdin.write(f"{number}\n")
        self._stdin.flush()
        return {
            int(key): (parent, tokens) for key, (parent, tokens) in json.loads(self.read(meanwhile)).items()
        }


@contextmanager
def following(*arguments: str) -> Iterator[Follower]:
    """A Python program that follows a server; it is ended when the context is left."""
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Follower(process)
        finally:
            process.kill()


def predicted(blocks: Blocks, prompt: list[int]) -> int:
    """How many whole blocks of a prompt are cached, going by the events."""
    chain = [number_of(digest) for digest in block_hash_chain(prompt[:-1], block_size=SIZE)]
    known = [number in blocks for number in chain]
    return [*known, False].index(False)


def assert_chains(blocks: Blocks) -> None:
    """Each block hangs on one that is there, and its hash is that of its tokens behind its parent's."""
    for number, (parent, tokens) in blocks.items():
        run = list(tokens)
        while parent is not None:
            parent, before = blocks[parent]
            run = [*before, *run]
        assert number_of(block_hash_chain(run, block_size=SIZE)[-1]) == number


def check_predictions(server: Server, follower: Follower, endpoints: Endpoints, vocabulary: range) -> None:
    """Prompts that share beginnings and evict each other: the events say before each what it will hit."""
    rng = random.Random(1)
    family = [rng.choices(vocabulary, k=50) for _ in range(3)]
    prompts = [rng.choice(family)[: rng.randint(1, 50)] + rng.choices(vocabulary, k=30) for _ in range(7)]
    hits = 0
    for prompt in prompts + prompts[::-1]:
        blocks = follower.blocks(last_batch(endpoints))
        assert_chains(blocks)
        expected = predicted(blocks, prompt)
        assert ask(server, prompt, 3) // SIZE == expected
        hits += expected
    assert hits > 10
    server.until_idle()
    assert server.http.post("/reset_prefix_cache").status_code == 200  # the engine is idle
    assert follower.blocks(last_batch(endpoints)) == {}


def test_a_follower_knows_what_is_cached(
    start_server: StartServer, smollm2: ModelFiles, endpoints: Endpoints
) -> None:
    options = ("--num-blocks", "24", "--prefix-index", "radix", *events_option(endpoints))
    with start_server(smollm2.name, *options) as server:
        assert "KV events" in server.banner
        ask(server, "what was computed before anybody listened")
        with following(SUBSCRIBER, *endpoints) as follower:
            assert follower.read(meanwhile=lambda: server.http.post("/reset_prefix_cache")) == "heard\n"
            check_predictions(server, follower, endpoints, range(100, 40_000))
        dropped = r"^headstart:kv_event_batches_dropped_total.* (.*)$"
        assert re.findall(dropped, server.http.get("/metrics").text, re.MULTILINE) == ["0.0"]
        assert server.stop() == 0


def test_late_followers_learn_all_and_forget_what_an_engine_took_with_it(
    start_server: StartServer, long_tiny_dir: Path, endpoints: Endpoints
) -> None:
    options = (
        "--dtype",
        "float32",
        "--num-blocks",
        "24",
        "--prefix-index",
        "hash",
        *events_option(endpoints),
    )
    prompt, other = list(range(3, 80)), list(range(103, 180))
    with start_server(str(long_tiny_dir), *options) as server:
        ask(server, prompt)
        with following("-c", example_of_the_page(endpoints)) as follower:
            assert follower.read() == "4 blocks\n"
            assert follower.read(meanwhile=lambda: server.http.post("/reset_prefix_cache")) == "0 blocks\n"
        ask(server, prompt)
        with following(SUBSCRIBER, *endpoints) as follower:
            assert predicted(follower.blocks(last_batch(endpoints)), prompt) == 4
            token = itertools.count(200)
            assert follower.read(meanwhile=lambda: ask(server, [next(token)] * 17)) == "heard\n"
            check_predictions(server, follower, endpoints, range(3, 300))
            ask(server, prompt)
            before = last_batch(endpoints)
            assert predicted(follower.blocks(before), prompt) == 4
            server.engine.kill()
            wait_until(lambda: server.http.get("/health").status_code != 200)
            wait_until(lambda: server.http.get("/health").status_code == 200)
            ask(server, other)
            number = last_batch(endpoints)
            assert number > before
            blocks = follower.blocks(number, meanwhile=lambda: ask(server, [next(token)] * 17))
            assert predicted(blocks, prompt) == 0
            assert predicted(blocks, other) == 4
            assert_chains(blocks)


def example_of_the_page(endpoints: Endpoints) -> str:
    page = (Path(__file__).parents[2] / "docs/kv-events.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    for port, endpoint in zip((5557, 5558), endpoints, strict=True):
        assert f"tcp://127.0.0.1:{port}" in example
        example = example.replace(f"tcp://127.0.0.1:{port}", endpoint)
    return str(example)
