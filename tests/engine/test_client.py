"""The client with real engine processes, and with scripts that behave as badly as an engine can."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from headstart.config import EngineConfig
from headstart.engine import client as client_module
from headstart.engine.client import EngineClient
from headstart.engine.messages import EngineInfo, ResetDone
from headstart.engine.request import CacheTerms, RequestOutput, SamplingParams
from headstart.errors import (
    ConfigError,
    EngineDeadError,
    EngineError,
    HeadstartError,
    ModelNotFoundError,
    RequestError,
)

PATIENCE_S = 60
PROMPT = list(range(100, 140))
LONG = 1900  # tokens: whoever acts on the first output finds the request running


def greedy(max_tokens: int = 8, **fields: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, **fields)


def make_client(model: str | Path, **options: Any) -> EngineClient:
    options = {"dtype": "float32", "num_blocks": 200, **options}
    return EngineClient(EngineConfig.from_options(model=str(model), **options))


def pid_of(client: EngineClient) -> int:
    assert client._process is not None
    return client._process.pid


def is_gone(pid: int) -> bool:
    try:
        return bool(
            psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        )  # nobody may be there to reap an orphan
    except psutil.NoSuchProcess:
        return True


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await scenario

    asyncio.run(bounded())


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """With more, every small operation waits for whoever else has the cores."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


class Engine:
    """One engine that many tests use; scenarios run in the loop that its client lives in."""

    def __init__(self, loop: asyncio.Runner, client: EngineClient) -> None:
        self.loop = loop
        self.client = client
        self.count = 0

    def run(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(PATIENCE_S):
                await scenario()
                assert await self.client.reset_prefix_cache(), "the test left something running"

        self.loop.run(bounded())

    def stream(self, prompt: list[int], params: SamplingParams, salt: str | None = None) -> Any:
        self.count += 1
        return self.client.generate(prompt, params, request_id=f"r{self.count}", terms=CacheTerms(salt=salt))

    async def ask(
        self, prompt: list[int], params: SamplingParams, salt: str | None = None
    ) -> list[RequestOutput]:
        return [output async for output in self.stream(prompt, params, salt)]

    async def until_idle(self) -> None:
        """Wait for the report that says so."""
        while self.client.stats.num_running or self.client.stats.num_waiting:
            await asyncio.sleep(0.001)
        assert self.client.stats.kv_cache_usage == 0.0


@pytest.fixture(scope="module")
def engine(tiny_llama_dir: Path) -> Iterator[Engine]:
    with asyncio.Runner() as loop:
        client = make_client(tiny_llama_dir)
        assert not client.is_alive
        info = loop.run(client.start())
        assert client.info is info
        yield Engine(loop, client)
        loop.run(client.shutdown())


def tokens_of(outputs: list[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


async def read_on(stream: AsyncIterator[RequestOutput]) -> None:
    async for output in stream:
        assert output.finish_reason is None, "it came to its end"


# -- one engine, many requests -------------------------------------------------------------------


def test_the_engine_says_what_it_is(engine: Engine, tiny_llama_dir: Path) -> None:
    info = engine.client.info
    assert isinstance(info, EngineInfo)
    assert (info.model_name, info.model_type, info.dtype) == (str(tiny_llama_dir), "llama", "float32")
    assert (info.num_blocks, info.block_size, info.kv_capacity_tokens) == (200, 16, 3200)
    assert info.kv_pool_bytes == 3200 * info.kv_bytes_per_token
    assert engine.client.is_alive


def test_outputs_come_one_by_one_and_the_second_time_from_the_cache(engine: Engine) -> None:
    async def scenario() -> None:
        cold = await engine.ask(PROMPT, greedy(8))
        assert [len(output.token_ids) for output in cold] == [1] * 8
        assert [output.finish_reason for output in cold] == [None] * 7 + ["length"]
        assert {output.num_cached_tokens for output in cold} == {0}
        warm = await engine.ask(PROMPT, greedy(8))
        assert tokens_of(warm) == tokens_of(cold)
        assert {output.num_cached_tokens for output in warm} == {len(PROMPT) - 1}
        other = await engine.ask(PROMPT, greedy(8), salt="s")
        assert {output.num_cached_tokens for output in other} == {0}
        stopped = await engine.ask(PROMPT, greedy(8, stop_token_ids=(tokens_of(cold)[2],)))
        assert stopped[-1].finish_reason == "stop"
        assert tokens_of(stopped) == tokens_of(cold)[: tokens_of(cold).index(tokens_of(cold)[2]) + 1]

    engine.run(scenario)


def test_requests_at_the_same_time_get_what_they_get_alone(engine: Engine) -> None:
    prompts = [PROMPT[number:] + PROMPT[:number] for number in range(0, 40, 5)]

    async def scenario() -> None:
        together = await asyncio.gather(*(engine.ask(prompt, greedy(12)) for prompt in prompts))
        for prompt, outputs in zip(prompts, together, strict=True):
            assert tokens_of(outputs) == tokens_of(await engine.ask(prompt, greedy(12)))

    engine.run(scenario)


def test_hundreds_of_requests_at_once(engine: Engine) -> None:
    async def scenario() -> None:
        answers = await asyncio.gather(*(engine.ask([n % 500, n // 500], greedy(2)) for n in range(700)))
        assert all(len(tokens_of(outputs)) == 2 for outputs in answers)
        await engine.until_idle()

    engine.run(scenario)


def test_silence_counts_only_while_somebody_waits(engine: Engine) -> None:
    async def scenario() -> None:
        client = engine.client
        client._heard -= 1000.0
        assert client.silence_s == 0.0
        stream = engine.stream(PROMPT, greedy(LONG))
        asking = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        assert 0.0 <= client.silence_s < 1000.0  # it has just been asked
        await asking
        client._heard -= 1000.0
        assert client.silence_s > 1000.0
        for _ in range(10):  # some of these were said before
            await anext(stream)
        assert client.silence_s < 1000.0
        await stream.aclose()
        assert client.silence_s == 0.0

    engine.run(scenario)


def test_whoever_leaves_early_frees_the_blocks(engine: Engine) -> None:
    async def scenario() -> None:
        stream = engine.stream(PROMPT, greedy(LONG))
        first = await anext(stream)
        assert engine.client.stats.num_running == 1
        assert engine.client.stats.kv_cache_usage > 0
        assert not await engine.client.reset_prefix_cache()
        await stream.aclose()
        assert await engine.client.reset_prefix_cache(), "the abort was not done before the next step"
        await engine.until_idle()
        assert tokens_of([first]) == tokens_of(await engine.ask(PROMPT, greedy(1)))

    engine.run(scenario)


def test_whoever_is_cancelled_frees_the_blocks(engine: Engine) -> None:
    async def scenario() -> None:
        running = asyncio.Event()

        async def read() -> None:
            async for _ in engine.stream(PROMPT, greedy(LONG)):
                running.set()

        tasks = [asyncio.create_task(read()) for _ in range(3)]
        await running.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert await engine.client.reset_prefix_cache()
        assert engine.client._queues == {}

    engine.run(scenario)


def test_an_iterator_that_is_never_used_asks_for_nothing(engine: Engine) -> None:
    async def scenario() -> None:
        before = engine.client.stats
        await engine.stream(PROMPT, greedy(LONG)).aclose()
        await engine.ask([1, 2, 3], greedy(1))
        assert engine.client.stats.prompt_tokens == before.prompt_tokens + 3

    engine.run(scenario)


def test_what_can_never_be_served_is_refused_at_once(engine: Engine) -> None:
    for prompt, params, words in (
        ([], greedy(), "at least one token"),
        ([512], greedy(), "token id 512 at position 0"),
        ([1] * 2048, greedy(), "2048"),
        ([1], greedy(2048), "at most 2047"),
    ):
        with pytest.raises(RequestError, match=words):
            engine.client.generate(prompt, params, request_id="refused")


@pytest.mark.parametrize("fields", [{"max_tokens": 5.0}, {"seed": 1.5}, {"stop_token_ids": ("a",)}])
def test_parameters_of_the_wrong_type_are_refused_before_the_engine_sees_them(
    engine: Engine, fields: dict[str, Any]
) -> None:
    with pytest.raises(RequestError, match=next(iter(fields))):
        engine.client.generate(PROMPT, SamplingParams(**fields), request_id="refused")


def test_what_only_the_engine_refuses_is_an_error_of_the_iterator(engine: Engine) -> None:
    async def scenario() -> None:
        with pytest.raises(EngineError, match="cache_salt"):
            await engine.ask(PROMPT, greedy(), salt="")

    engine.run(scenario)


def test_an_id_in_use_is_refused(engine: Engine) -> None:
    async def scenario() -> None:
        first = engine.client.generate(PROMPT, greedy(LONG), request_id="same")
        await anext(first)
        with pytest.raises(RequestError, match="'same' is in use"):
            await anext(engine.client.generate(PROMPT, greedy(), request_id="same"))
        await anext(first)  # undisturbed
        await first.aclose()

    engine.run(scenario)


def test_an_id_is_in_use_from_the_first_moment_to_the_last(engine: Engine) -> None:
    async def scenario() -> None:
        client = engine.client

        def generate() -> AsyncGenerator[RequestOutput, None]:
            return client.generate(PROMPT, greedy(4), request_id="again")

        seated = generate()  # nobody has asked for its first output yet
        with pytest.raises(RequestError) as refused:
            generate()
        assert (refused.value.status, refused.value.code) == (409, "request_id_in_use")
        del seated  # forgotten, and never begun
        for end in ("read", "closed"):
            stream = generate()
            await anext(stream)
            with pytest.raises(RequestError):
                generate()
            if end == "read":
                assert [output async for output in stream][-1].finish_reason == "length"
            else:
                await stream.aclose()
        with pytest.raises(RequestError, match="at least one token"):
            client.generate([], greedy(), request_id="again")
        await generate().aclose()
        assert [output async for output in generate()][-1].finish_reason == "length"

    engine.run(scenario)


# -- several choices of one prompt -----------------------------------------------------------------


def by_choice(outputs: list[RequestOutput]) -> dict[str, list[int]]:
    names = {output.request_id for output in outputs}
    return {name: tokens_of([o for o in outputs if o.request_id == name]) for name in sorted(names)}


def test_choices_come_in_one_stream_and_compute_their_prompt_once(engine: Engine) -> None:
    async def scenario() -> None:
        before = engine.client.stats
        outputs = await engine.ask(PROMPT, SamplingParams(seed=1, n=3, max_tokens=5))
        name = f"r{engine.count}"
        choices = by_choice(outputs)
        assert list(choices) == [name, f"{name}#1", f"{name}#2"]
        assert len({tuple(tokens) for tokens in choices.values()}) == 3
        assert sum(output.finish_reason == "length" for output in outputs) == 3
        assert engine.client.stats.prompt_tokens - before.prompt_tokens == len(PROMPT)
        assert engine.client.stats.prefix_cache_queries - before.prefix_cache_queries == len(PROMPT)
        alone = await engine.ask(PROMPT, SamplingParams(seed=1, max_tokens=5))
        assert tokens_of(alone) == choices[name]

    engine.run(scenario)


def test_one_choice_can_be_ended_and_the_others_go_on(engine: Engine) -> None:
    async def scenario() -> None:
        stream = engine.stream(PROMPT, greedy(30, n=3))
        outputs = [await anext(stream) for _ in range(3)]  # each one's first
        leader = f"r{engine.count}"
        engine.client.abort(leader)
        engine.client.abort(leader)  # harmless
        engine.client.abort("nobody")
        outputs += [output async for output in stream]
        assert {output.request_id for output in outputs} == {leader, f"{leader}#1", f"{leader}#2"}
        reasons = {o.request_id: o.finish_reason for o in outputs if o.finish_reason is not None}
        assert reasons == {leader: "abort", f"{leader}#1": "length", f"{leader}#2": "length"}
        assert [len(tokens) for tokens in by_choice(outputs).values()][1:] == [30, 30]
        await engine.until_idle()

    engine.run(scenario)


def test_whoever_leaves_ends_all_choices(engine: Engine) -> None:
    async def scenario() -> None:
        stream = engine.stream(PROMPT, greedy(LONG, n=3))
        for _ in range(4):
            await anext(stream)
        await stream.aclose()
        assert await engine.client.reset_prefix_cache(), "the abort was not done before the next step"
        assert engine.client._queues == {}

    engine.run(scenario)


def test_each_choice_counts_where_requests_are_bounded(engine: Engine) -> None:
    async def scenario() -> None:
        info = engine.client.info
        engine.client.info = msgspec.structs.replace(info, max_num_seqs=2, max_queued_requests=2)
        try:
            with pytest.raises(RequestError, match="at most 4 at a time") as never:
                engine.stream(PROMPT, greedy(n=2, best_of=5))
            assert (never.value.status, never.value.param) == (400, "best_of")
            three = engine.stream(PROMPT, greedy(LONG, n=3))
            await anext(three)
            with pytest.raises(RequestError, match="try again later") as full:
                engine.stream(PROMPT, greedy(n=2))
            assert full.value.status == 429
            await engine.ask(PROMPT, greedy(2))
            await three.aclose()
            assert len(by_choice(await engine.ask(PROMPT, greedy(n=4)))) == 4
        finally:
            engine.client.info = info

    engine.run(scenario)


def test_a_request_counts_from_the_moment_it_is_taken_on(engine: Engine) -> None:
    async def scenario() -> None:
        info = engine.client.info
        engine.client.info = msgspec.structs.replace(info, max_num_seqs=2, max_queued_requests=3)
        try:
            burst = [engine.stream(PROMPT, greedy(2)) for _ in range(5)]  # nobody has asked for an output
            for params in (greedy(2), greedy(2, n=5)):
                with pytest.raises(RequestError, match=r"at most 5 requests at a time .* no room") as full:
                    engine.stream(PROMPT, params)
                assert full.value.status == 429
            await burst.pop().aclose()  # never begun: given back as it is forgotten
            engine.client.check_queue(greedy())
            burst.append(engine.stream(PROMPT, greedy(2)))
            for stream in burst:
                assert len([output async for output in stream]) == 2
            assert engine.client._seats == {}
            assert len(by_choice(await engine.ask(PROMPT, greedy(n=5)))) == 5
        finally:
            engine.client.info = info

    engine.run(scenario)


def test_the_prompts_of_one_body_count_as_a_whole(engine: Engine) -> None:
    async def scenario() -> None:
        info = engine.client.info
        engine.client.info = msgspec.structs.replace(info, max_num_seqs=2, max_queued_requests=3)
        try:
            with pytest.raises(RequestError, match=r"60 prompts count as 60 requests.* at most 5") as never:
                engine.client.check_queue(greedy(), 60)
            assert (never.value.status, never.value.param) == (400, "prompt")
            with pytest.raises(RequestError, match="3 prompts with 2 choices each count as 6"):
                engine.client.check_queue(greedy(n=2), 3)
            one = engine.stream(PROMPT, greedy(2))
            engine.client.check_queue(greedy(n=2), 2)
            with pytest.raises(RequestError, match="no room for 5 more") as full:
                engine.client.check_queue(greedy(), 5)
            assert full.value.status == 429
            del one
            engine.client.check_queue(greedy(), 5)
        finally:
            engine.client.info = info

    engine.run(scenario)


def test_a_caller_of_reset_who_leaves_takes_nobody_along(engine: Engine) -> None:
    async def scenario() -> None:
        reset = asyncio.create_task(engine.client.reset_prefix_cache())
        await asyncio.sleep(0)  # it has asked
        reset.cancel()
        (call_id,) = engine.client._resets
        engine.client._take(ResetDone(call_id, True))  # the answer may come just now
        assert len(tokens_of(await engine.ask(PROMPT, greedy(3)))) == 3
        assert engine.client._resets == {}

    engine.run(scenario)


def test_bytes_that_mean_nothing_do_not_kill_the_engine(engine: Engine) -> None:
    async def scenario() -> None:
        stream = engine.stream(PROMPT, greedy(40))
        await anext(stream)
        for garbage in (b"", b"\xc1\xc1", b"\x81\xa4type\xa6Submit"):
            await engine.client._socket.send(garbage)
        assert len([output async for output in stream]) == 39

    engine.run(scenario)


def test_ctrl_c_is_not_for_the_engine(engine: Engine) -> None:
    pid = pid_of(engine.client)
    assert os.getsid(pid) == os.getpgid(pid) == pid  # it is out of reach of the terminal
    os.kill(pid, signal.SIGINT)

    async def scenario() -> None:
        assert len(await engine.ask(PROMPT, greedy(3))) == 3

    engine.run(scenario)


# -- beginnings and ends -------------------------------------------------------------------------


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary files go in this test: not pytest's own place, since a socket's path must be short."""
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setenv("TMPDIR", directory)
        monkeypatch.setattr("tempfile.tempdir", None)
        yield Path(directory)


def test_an_engine_that_cannot_start_says_why_and_leaves_nothing(
    tiny_llama_dir: Path, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit(3)")  # of the user's, and no business of ours
    monkeypatch.chdir(tmp_path)
    cases: dict[str, tuple[type[HeadstartError], EngineClient]] = {
        "there is no model 'nowhere'": (ModelNotFoundError, make_client("nowhere")),
        "max_model_len is 4096, but the model knows 2048 positions": (
            ConfigError,
            make_client(tiny_llama_dir, max_model_len=4096),
        ),
        "the KV cache needs .* bytes on cpu but .* bytes are free": (
            EngineError,
            make_client(tiny_llama_dir, num_blocks=2 * 10**9),
        ),
    }

    async def scenario() -> None:
        before = open_files()
        outcomes = await asyncio.gather(*(c.start() for _, c in cases.values()), return_exceptions=True)
        for (sentence, (kind, client)), outcome in zip(cases.items(), outcomes, strict=True):
            assert isinstance(outcome, kind)
            with pytest.raises(kind, match=sentence):
                raise outcome
            assert not client.is_alive
            assert is_gone(pid_of(client))
        assert open_files() < before
        assert list(temporary.iterdir()) == []

    run(scenario())


def test_shutdown_fails_what_is_in_flight_and_leaves_nothing(tiny_llama_dir: Path, temporary: Path) -> None:
    async def scenario() -> None:
        before = open_files()
        client = make_client(tiny_llama_dir)
        await client.start()
        streams = [client.generate(PROMPT, greedy(LONG), request_id=str(number)) for number in range(2)]
        for stream in streams:
            await anext(stream)
        unused = client.generate(PROMPT, greedy(), request_id="unused")
        await asyncio.gather(client.shutdown(), client.shutdown())
        await client.shutdown()
        assert not client.is_alive
        for stream in streams:
            with pytest.raises(EngineDeadError, match="the server is shutting down"):
                await read_on(stream)
        for late in (anext(unused), client.reset_prefix_cache()):
            with pytest.raises(EngineDeadError, match="the server is shutting down"):
                await late
        with pytest.raises(EngineDeadError):
            client.generate(PROMPT, greedy(), request_id="late")
        assert is_gone(pid_of(client))
        assert open_files() == before
        assert list(temporary.iterdir()) == []

    run(scenario())


def test_an_engine_that_is_killed_is_told_to_everybody(tiny_llama_dir: Path) -> None:
    async def scenario() -> None:
        client = make_client(tiny_llama_dir)
        await client.start()
        streams = [client.generate(PROMPT, greedy(LONG), request_id=str(number)) for number in range(3)]
        for stream in streams:
            await anext(stream)
        os.kill(pid_of(client), signal.SIGSTOP)  # so that the reset is not answered before it dies
        reset = asyncio.create_task(client.reset_prefix_cache())
        await asyncio.sleep(0)
        os.kill(pid_of(client), signal.SIGKILL)
        for stream in streams:
            with pytest.raises(EngineDeadError, match="was killed by signal 9; the request was lost"):
                await read_on(stream)
        with pytest.raises(EngineDeadError, match="was killed by signal 9"):
            await reset
        assert not client.is_alive
        with pytest.raises(EngineDeadError, match="was killed by signal 9"):
            client.generate(PROMPT, greedy(), request_id="late")
        await client.shutdown()

    run(scenario())


_PARENT = """
import asyncio, sys
from headstart.config import EngineConfig
from headstart.engine.client import EngineClient
from headstart.engine.request import SamplingParams

async def main():
    client = EngineClient(EngineConfig.from_options(model=sys.argv[1], dtype="float32", num_blocks=200))
    await client.start()
    outputs = client.generate([1, 2, 3], SamplingParams(max_tokens=2000), request_id="a")
    await anext(outputs)
    print(client._process.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_an_engine_does_not_outlive_its_parent(tiny_llama_dir: Path, temporary: Path) -> None:
    command = [sys.executable, "-c", _PARENT, str(tiny_llama_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        try:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            assert not is_gone(pid)
        finally:
            parent.kill()
    deadline = time.monotonic() + PATIENCE_S
    while not is_gone(pid):
        assert time.monotonic() < deadline, "the engine is an orphan"
        time.sleep(0.01)
    assert list(temporary.glob("headstart-*")) == []  # the parent had no time to tidy up


# -- engines that misbehave ----------------------------------------------------------------------


@pytest.fixture
def impostor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], EngineClient]]:
    """A client whose engine is a script; it finds the address of its socket in ``sys.argv[-1]``."""
    made: list[EngineClient] = []

    def make(script: str) -> EngineClient:
        path = tmp_path / "engine"
        path.write_text(f"#!{sys.executable} -P\n{script}")
        path.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(path))
        made.append(make_client("any"))
        return made[-1]

    yield make
    for client in made:
        if client._process is not None and not is_gone(pid_of(client)):
            os.kill(pid_of(client), signal.SIGKILL)


_CONNECTED = """
import sys, time, msgspec, zmq
from headstart.engine.messages import *
socket = zmq.Context().socket(zmq.PAIR)
socket.connect(sys.argv[-1])
socket.recv()
def say(message):
    socket.send(msgspec.msgpack.encode(message))
def be_ready():
    say(EngineInfo("m", "llama", "float32", "cpu", 512, 100, 50, 16, 1, 1, "radix", "lru", True, 8, 8, 1))
"""


@pytest.mark.parametrize(
    ("script", "how"),
    [
        ("raise SystemExit(3)", "ended with exit code 3"),
        (f"{_CONNECTED}\nraise SystemExit(4)", "ended with exit code 4"),
        ("import os; os.kill(os.getpid(), 9)", "was killed by signal 9"),
    ],
)
def test_an_engine_that_dies_while_starting(
    impostor: Callable[[str], EngineClient], script: str, how: str
) -> None:
    async def scenario() -> None:
        client = impostor(script)
        with pytest.raises(EngineDeadError, match=f"the engine {how}"):
            await client.start()
        assert not client.is_alive
        assert not Path(client._directory.name).exists()

    run(scenario())


def test_a_start_that_is_cancelled_leaves_nothing(impostor: Callable[[str], EngineClient]) -> None:
    async def scenario() -> None:
        before = open_files()
        client = impostor(f"{_CONNECTED}\nsocket.recv()")  # waits to be told to stop
        starting = asyncio.create_task(client.start())
        while client._ready is None:
            await asyncio.sleep(0.01)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert is_gone(pid_of(client))
        assert open_files() == before
        assert not Path(client._directory.name).exists()

    run(scenario())


def test_an_engine_that_talks_nonsense_leaves_nobody_waiting(
    impostor: Callable[[str], EngineClient], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        client = impostor(
            f"{_CONNECTED}\nbe_ready()\nsocket.recv()\nsocket.send(bytes([0xc1]))\nsocket.recv()"
        )
        await client.start()
        with pytest.raises(EngineDeadError, match="messages cannot be read"):
            await anext(client.generate(PROMPT, greedy(), request_id="a"))
        assert not client.is_alive
        assert "DecodeError" in caplog.text
        await client.shutdown()
        assert is_gone(pid_of(client))

    run(scenario())


def test_an_engine_that_does_not_stop_when_told_is_killed(
    impostor: Callable[[str], EngineClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_SHUTDOWN_GRACE_S", 0.1)

    async def scenario() -> None:
        client = impostor(f"{_CONNECTED}\nbe_ready()\ntime.sleep(1000)")
        await client.start()
        await client.shutdown()
        assert is_gone(pid_of(client))

    run(scenario())


def test_before_the_start_nothing_is_served_and_a_shutdown_is_harmless() -> None:
    async def scenario() -> None:
        client = make_client("any")
        with pytest.raises(EngineDeadError, match="was not started"):
            client.generate(PROMPT, greedy(), request_id="a")
        with pytest.raises(EngineDeadError, match="was not started"):
            await client.reset_prefix_cache()
        await client.shutdown()
        assert not Path(client._directory.name).exists()

    run(scenario())


def test_a_dead_engine_raises_an_error_of_its_own_to_each_caller() -> None:
    async def scenario() -> None:
        client = make_client("any")
        await client.shutdown()
        raised = []
        for number in range(2):
            with pytest.raises(EngineDeadError) as caught:
                client.generate(PROMPT, greedy(), request_id=str(number))
            raised.append(caught.value)
        assert raised[0] is not raised[1]  # one that is raised again and again drags all its tracebacks along

    run(scenario())
