import asyncio
import sys
import time
from pathlib import Path

import psutil
import pytest

from headstart.errors import ConfigError, EngineError
from headstart.lab.load.peers import Entrant, awake, taking_part
from tests.fake_openai import FakeServer, serving

ROOT = Path(__file__).parents[2]
FAKE = f"""
import sys, uvicorn
sys.path.insert(0, {str(ROOT)!r})
from tests.fake_openai import FakeServer
uvicorn.run(FakeServer().app(), port=int(sys.argv[1]), log_level="error")
"""


def test_an_entrant_in_words() -> None:
    assert Entrant.parse("vLLM=vllm serve 'my model' --port {port} --x=1") == Entrant(
        "vLLM", ("vllm", "serve", "my model", "--port", "{port}", "--x=1")
    )
    assert Entrant.parse("llama.cpp = http://127.0.0.1:9/v1") == Entrant(
        "llama.cpp", base_url="http://127.0.0.1:9/v1"
    )


@pytest.mark.parametrize("text", ["vllm serve", "=vllm serve {port}", "vllm=", ""])
def test_what_is_no_entrant(text: str) -> None:
    with pytest.raises(ConfigError, match="a server is NAME=COMMAND or NAME=URL"):
        Entrant.parse(text)


def test_a_command_says_where_its_port_goes() -> None:
    with pytest.raises(
        ConfigError, match=r"the command of x must say where \{port\} goes: serve --port 8000"
    ):
        Entrant.parse("x=serve --port 8000")


def test_it_is_stopped_unless_it_is_its_turn() -> None:
    before = set(psutil.Process().children())
    with taking_part(Entrant("fake", (sys.executable, "-c", FAKE, "{port}")), [1, 2]) as peer:
        (process,) = set(psutil.Process().children()) - before

        async def turn() -> int:
            async with awake(peer, [3, 4]) as server:
                assert process.status() != psutil.STATUS_STOPPED
                return (await server.complete([5, 6, 7], 4)).num_tokens

        for _ in range(2):
            while process.status() != psutil.STATUS_STOPPED:  # the kernel takes its time
                time.sleep(0.001)
            assert asyncio.run(turn()) == 4
        assert peer.can_pause
    assert not process.is_running(), "a stopped server ends with the block all the same"


def test_a_server_that_runs_already_is_only_asked() -> None:
    fake = FakeServer()
    with serving(fake) as url, taking_part(Entrant("fake", base_url=url), [1, 2]) as peer:
        assert (peer.base_url, peer.can_pause) == (url, False)
        peer.pause()
        peer.resume()
    assert [body["prompt"] for body in fake.received] == [[1, 2]]


def test_a_server_that_runs_nowhere() -> None:
    with (
        pytest.raises(EngineError, match=r"fake does not answer: cannot reach http://127\.0\.0\.1:1"),
        taking_part(Entrant("fake", base_url="http://127.0.0.1:1"), [1]),
    ):
        pytest.fail("the block must not be entered")


def test_a_server_that_ends_before_it_answers() -> None:
    command = (sys.executable, "-c", "raise SystemExit('no such model')", "{port}")
    with (
        pytest.raises(EngineError, match=r"fake ended: (.|\n)*no such model"),
        taking_part(Entrant("fake", command), [1]),
    ):
        pytest.fail("the block must not be entered")


def test_a_program_that_is_not_there() -> None:
    with (
        pytest.raises(EngineError, match=r"no-such-program cannot be run: No such file"),
        taking_part(Entrant("fake", ("no-such-program", "{port}")), [1]),
    ):
        pytest.fail("the block must not be entered")
