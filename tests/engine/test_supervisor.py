"""The engine dies; the server lives on."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from headstart.cache import MissReason
from headstart.config import EngineConfig
from headstart.engine import supervisor as module
from headstart.engine.messages import EngineInfo, EngineStats
from headstart.engine.request import SamplingParams
from headstart.engine.supervisor import MAX_DEATHS, EngineSupervisor
from headstart.errors import EngineDeadError, ModelError

LONG = SamplingParams(temperature=0.0, max_tokens=1500)
SHORT = SamplingParams(temperature=0.0, max_tokens=3)


def config_of(model: Path) -> EngineConfig:
    return EngineConfig.from_options(model=str(model), dtype="float32", num_blocks=200)


def engines() -> set[int]:
    """Engines that this process started itself; servers of other tests have theirs."""
    found = set()
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # it has just ended
            if "headstart.engine.process" in child.cmdline():
                found.add(child.pid)
    return found


def engine_pid() -> int:
    (pid,) = engines()
    return pid


async def tokens_of(
    supervisor: EngineSupervisor, prompt: list[int], params: SamplingParams, name: str
) -> list[int]:
    outputs = supervisor.generate(prompt, params, request_id=name)
    return [token async for output in outputs for token in output.token_ids]


async def until(condition: object, seconds: float = 60.0) -> None:
    assert callable(condition)
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_killed_engine_comes_back(tiny_llama_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        supervisor = EngineSupervisor(config_of(tiny_llama_dir))
        with pytest.raises(EngineDeadError, match="not started"):
            supervisor.generate([1], SHORT, request_id="early")
        await supervisor.start()
        try:
            before = await tokens_of(supervisor, [5, 6, 7], SHORT, "before")
            running = [asyncio.create_task(tokens_of(supervisor, [9, n], LONG, f"r{n}")) for n in range(3)]
            await until(lambda: supervisor.stats.num_running == 3)
            first = engine_pid()
            os.kill(first, signal.SIGKILL)
            async with asyncio.timeout(2.0):  # the bound that is promised
                results = await asyncio.gather(*running, return_exceptions=True)
            assert all(isinstance(result, EngineDeadError) for result in results)
            assert "killed by signal 9" in str(results[0])
            assert not supervisor.is_alive
            with pytest.raises(EngineDeadError, match="try again"):
                supervisor.generate([1], SHORT, request_id="meanwhile")
            with pytest.raises(EngineDeadError, match="try again"):
                await supervisor.reset_prefix_cache()
            await until(lambda: supervisor.is_alive)
            assert engine_pid() != first
            assert await tokens_of(supervisor, [5, 6, 7], SHORT, "after") == before
            assert supervisor.why_down is None
        finally:
            await supervisor.shutdown()
        assert not supervisor.is_alive
        assert "shutting down" in str(supervisor.why_down)

    asyncio.run(story())
    assert "killed by signal 9" in caplog.text


def test_shutting_down_while_a_new_engine_starts_leaves_nothing(tiny_llama_dir: Path) -> None:
    async def story() -> None:
        supervisor = EngineSupervisor(config_of(tiny_llama_dir), first_pause_s=0.0)
        await supervisor.start()
        first = engine_pid()
        os.kill(first, signal.SIGKILL)
        await until(lambda: engines() - {first})
        await supervisor.shutdown()

    asyncio.run(story())
    assert engines() == set()


def test_a_bad_start_is_not_tried_again(tmp_path: Path) -> None:
    async def story() -> None:
        supervisor = EngineSupervisor(config_of(tmp_path / "nothing"))
        with pytest.raises(ModelError, match="nothing"):
            await supervisor.start()
        await supervisor.shutdown()

    asyncio.run(story())
    assert engines() == set()


class Frail:
    """An engine that dies as soon as it is looked at; ``startable`` says which of them start at all."""

    born = 0
    startable = range(100)

    def __init__(self, config: EngineConfig) -> None:
        self.number = Frail.born
        Frail.born += 1
        self.stats = EngineStats(
            num_running=3,
            kv_cache_usage=0.5,
            prompt_tokens=10,
            prefix_cache_hits=1,
            miss_tokens={MissReason.COLD: 9},
        )
        self.on_explained: object = None
        self.silence_s = 0.0
        self.is_alive = True

    async def start(self) -> EngineInfo:
        if self.number not in self.startable:
            raise ModelError("its file is gone")
        return EngineInfo(
            model_name="frail", model_type="llama", dtype="float32", device="cpu", vocab_size=8,
            max_model_len=8, num_blocks=1, block_size=1, kv_bytes_per_token=1, kv_pool_bytes=1,
            prefix_index="radix", eviction_policy="lru", enable_prefix_caching=True,
            max_num_batched_tokens=1, max_num_seqs=1, weights_bytes=1,
        )  # fmt: skip

    async def died(self) -> str:
        self.is_alive = False
        return "the engine was killed by signal 9"

    async def shutdown(self) -> None:
        self.is_alive = False


@pytest.mark.parametrize("startable", [range(100), range(1)], ids=["dies each time", "starts only once"])
def test_it_gives_up_loudly(
    startable: range, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Frail, "born", 0)
    monkeypatch.setattr(Frail, "startable", startable)

    async def story() -> None:
        supervisor = EngineSupervisor(EngineConfig(), Frail, first_pause_s=0.0)  # type: ignore[arg-type]
        await supervisor.start()
        await until(lambda: "not started again" in str(supervisor.why_down))
        assert Frail.born == MAX_DEATHS
        with pytest.raises(EngineDeadError, match=f"{MAX_DEATHS} times"):
            supervisor.generate([1], SHORT, request_id="late")
        await supervisor.shutdown()

    asyncio.run(story())
    assert [r.levelname for r in caplog.records].count("CRITICAL") == 1


def test_deaths_long_ago_are_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Frail, "born", 0)
    monkeypatch.setattr(module, "WINDOW_S", -1.0)  # every death is long ago

    async def story() -> None:
        supervisor = EngineSupervisor(EngineConfig(), Frail, first_pause_s=0.0)  # type: ignore[arg-type]
        await supervisor.start()
        await until(lambda: Frail.born > 2 * MAX_DEATHS)
        await supervisor.shutdown()

    asyncio.run(story())


def test_counters_go_on_counting_when_another_engine_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Frail, "born", 0)
    monkeypatch.setattr(Frail, "startable", range(100))

    async def story() -> None:
        supervisor = EngineSupervisor(EngineConfig(), Frail, first_pause_s=0.0)  # type: ignore[arg-type]
        await supervisor.start()
        misses = {MissReason.COLD: 9}
        assert supervisor.stats == EngineStats(
            num_running=3, kv_cache_usage=0.5, prompt_tokens=10, prefix_cache_hits=1, miss_tokens=misses
        )
        told: list[object] = []
        supervisor.on_explained(told.append)
        await until(lambda: "not started again" in str(supervisor.why_down))
        # Of five engines; and none of them does anything any more.
        misses = {MissReason.COLD: 45}
        assert supervisor.stats == EngineStats(prompt_tokens=50, prefix_cache_hits=5, miss_tokens=misses)
        assert supervisor._client.on_explained == told.append  # that of the last one
        await supervisor.shutdown()

    asyncio.run(story())


def test_an_engine_that_hangs_is_no_healthy_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_: Frail) -> str:
        await asyncio.Event().wait()
        return ""

    monkeypatch.setattr(Frail, "born", 0)
    monkeypatch.setattr(Frail, "died", never)

    async def story() -> None:
        supervisor = EngineSupervisor(EngineConfig(), Frail, first_pause_s=0.0)  # type: ignore[arg-type]
        assert "not started" in str(supervisor.why_unhealthy)
        await supervisor.start()
        assert supervisor.why_unhealthy is None
        supervisor._client.silence_s = module.HUNG_S + 1  # type: ignore[misc]
        assert "has said nothing for 301 s" in str(supervisor.why_unhealthy)
        assert supervisor.why_down is None  # it may come to itself, so requests are still let in
        await supervisor.shutdown()

    asyncio.run(story())
