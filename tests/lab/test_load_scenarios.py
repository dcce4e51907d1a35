import asyncio
from collections.abc import Sequence

import pytest

from headstart.errors import ConfigError
from headstart.lab.load.client import LoadError
from headstart.lab.load.prompts import PromptSource
from headstart.lab.load.scenarios import Round, Scenario, Workload, run
from headstart.lab.load.timing import Timing, Usage
from tests.fake_openai import num_shared as shared


class Recorder:
    """Stands for a server: keeps what it was sent, and how many requests were in flight together."""

    def __init__(self, *, fail_at: int | None = None) -> None:
        self.prompts: list[list[int]] = []
        self.max_tokens: set[int] = set()
        self.in_flight = self.most_in_flight = 0
        self.fail_at = fail_at
        self.cancelled = 0

    async def send(self, prompt: Sequence[int], max_tokens: int) -> Timing:
        number = len(self.prompts)
        self.prompts.append(list(prompt))
        self.max_tokens.add(max_tokens)
        self.in_flight += 1
        self.most_in_flight = max(self.in_flight, self.most_in_flight)
        try:
            await asyncio.sleep(0)  # all of a round are under way before the first ends
            if self.fail_at is not None and self.fail_at in (number, number + 1):
                if number == self.fail_at:
                    raise LoadError("no")
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.in_flight -= 1
        return Timing(0.0, (1.0,), len(prompt), max_tokens, Usage())


def rounds_of(scenario: Scenario, recorder: Recorder, load: Workload) -> list[Round]:
    async def collect() -> list[Round]:
        prompts = PromptSource(range(1000), seed=0)
        return [each async for each in run(scenario, recorder.send, prompts, load)]

    return asyncio.run(collect())


def check_common(scenario: Scenario, rounds: list[Round], recorder: Recorder, load: Workload) -> None:
    assert len(rounds) == scenario.num_rounds(load)
    assert [each.is_warmup for each in rounds] == [each.repeat == 0 for each in rounds]
    assert {len(prompt) for prompt in recorder.prompts} == {load.prompt_tokens}
    assert recorder.max_tokens == {load.output_tokens}


def test_first_token_alternates_cold_and_warm() -> None:
    load = Workload(prompt_tokens=40, shared_tokens=30, output_tokens=2, repeats=3)
    recorder = Recorder()
    rounds = rounds_of(Scenario.FIRST_TOKEN, recorder, load)
    check_common(Scenario.FIRST_TOKEN, rounds, recorder, load)
    assert [each.kind for each in rounds] == ["cold", "warm"] * 4
    assert [each.repeat for each in rounds] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert recorder.most_in_flight == 1
    for index, prompt in enumerate(recorder.prompts):
        for earlier, other in enumerate(recorder.prompts[:index]):
            together = index % 2 == 1 and earlier == index - 1
            assert shared(prompt, other) == (30 if together else 0)


def test_decode_shares_nothing() -> None:
    load = Workload(prompt_tokens=10, shared_tokens=0, output_tokens=5, concurrency=4, repeats=2)
    recorder = Recorder()
    rounds = rounds_of(Scenario.DECODE, recorder, load)
    check_common(Scenario.DECODE, rounds, recorder, load)
    assert [(each.kind, each.repeat, len(each.timings)) for each in rounds] == [
        ("decode", 0, 4),
        ("decode", 1, 4),
        ("decode", 2, 4),
    ]
    assert recorder.most_in_flight == 4
    assert len({prompt[0] for prompt in recorder.prompts}) == 12


def test_decode_behind_a_prefix_comes_after_as_many_that_left_it_behind() -> None:
    load = Workload(prompt_tokens=40, shared_tokens=30, output_tokens=5, concurrency=3, repeats=1)
    recorder = Recorder()
    rounds = rounds_of(Scenario.DECODE, recorder, load)
    assert [(each.kind, each.repeat, len(each.timings)) for each in rounds] == [
        ("warm", 0, 3),
        ("warm", 1, 3),
    ]
    assert len(rounds) == Scenario.DECODE.num_rounds(load)
    assert [each.num_asked for each in rounds[1].timings] == [5, 5, 5]
    assert recorder.max_tokens == {1, 5}, "those before it ask for one token"
    assert recorder.most_in_flight == 3
    for index, prompt in enumerate(recorder.prompts):
        for earlier, other in enumerate(recorder.prompts[:index]):
            assert shared(prompt, other) == (30 if index // 6 == earlier // 6 else 0)


def test_unshared_shares_nothing() -> None:
    load = Workload(prompt_tokens=10, shared_tokens=0, output_tokens=5, concurrency=4, repeats=1)
    recorder = Recorder()
    rounds = rounds_of(Scenario.UNSHARED, recorder, load)
    check_common(Scenario.UNSHARED, rounds, recorder, load)
    assert [(each.kind, len(each.timings)) for each in rounds] == [("unshared", 4), ("unshared", 4)]
    assert len({prompt[0] for prompt in recorder.prompts}) == 8


def test_shared_prefix_is_cold_then_warm() -> None:
    load = Workload(prompt_tokens=40, shared_tokens=30, output_tokens=2, concurrency=3, repeats=1)
    recorder = Recorder()
    rounds = rounds_of(Scenario.SHARED_PREFIX, recorder, load)
    check_common(Scenario.SHARED_PREFIX, rounds, recorder, load)
    assert [(each.kind, each.repeat, len(each.timings)) for each in rounds] == [
        ("cold", 0, 3),
        ("warm", 0, 3),
        ("cold", 1, 3),
        ("warm", 1, 3),
    ]
    assert recorder.most_in_flight == 3
    for index, prompt in enumerate(recorder.prompts):
        for earlier, other in enumerate(recorder.prompts[:index]):
            assert shared(prompt, other) == (30 if index // 6 == earlier // 6 else 0)


def test_one_failure_ends_its_round_as_itself() -> None:
    load = Workload(prompt_tokens=10, shared_tokens=0, concurrency=4, repeats=1)
    recorder = Recorder(fail_at=5)
    with pytest.raises(LoadError, match="no"):
        rounds_of(Scenario.DECODE, recorder, load)
    assert recorder.in_flight == 0
    assert recorder.cancelled == 1


@pytest.mark.parametrize("name", ["prompt_tokens", "output_tokens", "concurrency", "repeats"])
def test_numbers_that_make_no_sense(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be at least 1, not 0"):
        Workload(**{name: 0})


@pytest.mark.parametrize("shared_tokens", [-1, 10, 11])
def test_a_warm_prompt_has_a_tail_of_its_own(shared_tokens: int) -> None:
    with pytest.raises(ConfigError, match=r"shared_tokens must be at least 0 and below prompt_tokens \(10\)"):
        Workload(prompt_tokens=10, shared_tokens=shared_tokens)


def test_a_workload_in_words() -> None:
    assert str(Workload()) == "1,211 prompt tokens (1,200 shared), 1 output token, 7 repeats"
    many = Workload(prompt_tokens=100, shared_tokens=0, output_tokens=64, concurrency=16, repeats=3)
    assert str(many) == "100 prompt tokens, 64 output tokens, 16 at once, 3 repeats"
