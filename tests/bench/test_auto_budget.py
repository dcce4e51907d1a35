import asyncio

import pytest

from bench.auto_budget import Outcome, Round, disturb, split
from headstart.errors import ConfigError
from headstart.lab.load.client import connect
from headstart.lab.load.machine import Machine
from headstart.lab.load.prompts import PromptSource
from headstart.lab.load.timing import Timing, Usage
from tests.fake_openai import FakeServer, serving


def stream(*arrivals: float, sent: float = 0.0) -> Timing:
    return Timing(sent, arrivals, 5, 64, Usage())


def test_gaps_are_told_apart_by_when_the_prompt_was_computed() -> None:
    decoding = [stream(1, 2, 3, 5, 9, 10), stream(2, 3, 4, 7, 8, 12)]
    found = split(decoding, stream(7.5, sent=4))
    # Both decode from 2 s on; the first stream's gap from 3 s to 5 s holds the prompt's arrival at 4 s.
    assert found.idle_ms == [1000, 1000, 1000]
    assert found.loaded_ms == [2000, 4000, 3000, 1000]
    assert found.prompt_ms == 3500


@pytest.mark.parametrize("sent", [1.5, 4.0])
def test_streams_that_began_late_or_ended_early(sent: float) -> None:
    with pytest.raises(ConfigError, match="did not decode before and beside the prompt"):
        split([stream(1, 2, 3, 4, 5)], stream(6, sent=sent))


def test_the_ratio_is_of_all_rounds() -> None:
    rounds = [Round([10.0], [25.0], 800.0), Round([10.0], [25.0], 900.0)]
    outcome = Outcome("auto", 8, 6000, Machine("Abacus 3", 2, 16, "Linux x86_64", {}), "2026-11-30", rounds)
    assert outcome.ratio == pytest.approx(2.5)
    assert "| beside the prompt | 25.0 | 25.0 | 25.0 | 25.0 |" in outcome.markdown()
    assert "p99, beside / undisturbed: 2.50" in outcome.markdown()
    assert outcome.fields()["goal"] == {"p99_ratio": 3.0, "reached": True}


def test_a_server_whose_streams_end_at_once() -> None:
    fake = FakeServer()

    async def measure(url: str) -> None:
        async with connect(url, ignore_eos=True) as server:
            load = {"streams": 2, "prompt_tokens": 160, "rounds": 1}
            async for _ in disturb(server, PromptSource(range(1000), 1), idle=0.001, **load):
                pytest.fail("the fake server is too quick to measure")

    with serving(fake) as url, pytest.raises(ConfigError, match="choose another --idle"):
        asyncio.run(measure(url))
    assert sorted(len(body["prompt"]) for body in fake.received) == [32] * 4 + [160]
