from __future__ import annotations

import gzip
import random
from array import array
from pathlib import Path

import pytest

from headstart.cache import CacheConfig, CacheRequest, MediaSpan, Namespace, PromptEmbeds
from headstart.config import SchedulerConfig
from headstart.engine.choices import choice_ids, of_choice
from headstart.engine.decision_log import open_decision_log
from headstart.engine.recording import RecordingManager
from headstart.engine.request import Request, SamplingParams
from headstart.engine.scheduler import Scheduler
from headstart.errors import LogError, TraceError
from headstart.lab.decisions.reader import LogReader
from headstart.lab.replay.costs import CostModel
from headstart.lab.replay.outcome import Setting
from headstart.lab.replay.replay import replay
from headstart.lab.replay.scheduled import replay_scheduled
from headstart.lab.traces.decision_log import recorded_setting
from headstart.lab.traces.read import read_traces
from headstart.lab.traces.trace import Trace, TraceFormat
from tests.fake_runner import FakeRunner, answer
from tests.recorded import write_log
from tests.trace_files import unused, whys

CONFIG = CacheConfig(60, 4)
STEP = 0.5
"""Seconds that every step takes here."""


class Served:
    """A recorded engine without a model."""

    def __init__(self, directory: Path, config: CacheConfig = CONFIG, seqs: int = 8) -> None:
        self.log = open_decision_log(directory / "run.log.gz", config)
        self.manager = RecordingManager(config, self.log)
        self.scheduler = Scheduler(SchedulerConfig(max_num_seqs=seqs), self.manager)
        self.runner = FakeRunner(config.num_blocks, config.block_size)
        self.now = 100.0

    def add(self, name: str, prompt: list[int], max_tokens: int = 3, n: int = 1, **more: object) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, n=n)
        choices = [
            Request(
                choice,
                CacheRequest(choice, prompt, **more),  # type: ignore[arg-type]
                of_choice(params, number),
                len(prompt),
                max_tokens,
                0.0,
            )
            for number, choice in enumerate(choice_ids(name, n))
        ]
        self.scheduler.add(choices[0], choices[1:])

    def step(self) -> None:
        plan = self.scheduler.plan(self.now)
        self.now += STEP
        self.scheduler.commit(plan, self.runner.run(plan))

    def finish(self) -> None:
        while self.scheduler.has_work:
            self.step()

    def read(self) -> Trace:
        self.manager.close()
        return read(self.log.path)


def read(path: Path) -> Trace:
    return read_traces([str(path)], reader=unused)


def run(tokens: list[int]) -> bytes:
    return array("i", tokens).tobytes()


def test_prompts_answers_times_and_namespaces(tmp_path: Path) -> None:
    served = Served(tmp_path)
    a, b = list(range(10)), list(range(50, 57))
    served.add("a", a, 3, namespace=Namespace(salt="secret"))
    served.step()
    served.add("b", b, 1)
    served.finish()
    served.now = 200.0
    served.add("again", a, 2, namespace=Namespace(salt="secret"))
    served.finish()
    trace = served.read()
    assert trace.format is TraceFormat.DECISION_LOG
    assert [each.symbols for each in trace.requests] == [run(a), run(b), run(a)]
    assert [each.num_prompt_tokens for each in trace.requests] == [10, 7, 10]
    assert [each.output for each in trace.requests] == [
        run(answer(a, 3)),
        run(answer(b, 1)),
        run(answer(a, 2)),
    ]
    assert [each.num_output_tokens for each in trace.requests] == [3, 1, 2]
    assert [each.arrival_s for each in trace.requests] == [0.0, 0.5, 100.0]
    assert trace.requests[0].namespace == trace.requests[2].namespace
    assert trace.requests[0].namespace.salt not in (None, "secret")
    assert trace.requests[1].namespace == Namespace()
    assert trace.requests[0].line == 3  # header, step, request
    assert trace.requests[0].file == str(tmp_path / "run.log.gz")
    assert trace.has_times
    assert trace.skipped == []


def test_several_choices_are_one_request(tmp_path: Path) -> None:
    served = Served(tmp_path)
    served.add("a", [1, 2, 3, 4, 5], n=3)
    served.finish()
    assert [each.num_prompt_tokens for each in served.read().requests] == [5]


def test_a_request_that_was_preempted_is_one_request(tmp_path: Path) -> None:
    served = Served(tmp_path, CacheConfig(6, 4))
    served.add("a", list(range(8)), 9)
    served.add("b", list(range(50, 58)), 9)
    served.finish()
    assert served.scheduler.num_preemptions > 0
    assert [each.num_output_tokens for each in served.read().requests] == [9, 9]


def test_a_request_that_gave_up_while_it_waited_is_none(tmp_path: Path) -> None:
    served = Served(tmp_path, CacheConfig(6, 4))
    served.add("a", list(range(20)), 3)
    served.add("b", list(range(50, 70)), 3)
    served.step()
    assert served.scheduler.abort("b")
    served.finish()
    assert len(served.read().requests) == 1


def test_what_tokens_do_not_tell_is_skipped_with_a_reason(tmp_path: Path) -> None:
    served = Served(tmp_path)
    served.add("a", [1] * 8, media=[MediaSpan("cafe" * 4, 2, 3)])
    served.add("b", [2] * 8, prompt_embeds=PromptEmbeds(b"aabbccdd", 4))
    served.add("c", [3] * 8, skip_reading=True)
    served.add("d", [4] * 8)
    served.add("e", [5] * 8, skip_writing=True)
    served.finish()
    trace = served.read()
    assert len(trace.requests) == 1
    assert [why for _, why in whys(trace)] == [
        "the prompt has images or other media",
        "the prompt has embeddings",
        "the request reads nothing from the cache",
        "the request writes nothing to the cache",
    ]


def test_the_setting_is_that_of_the_log(tmp_path: Path) -> None:
    served = Served(tmp_path, CacheConfig(33, 8, index="hash", policy="lfu"))
    served.manager.close()
    with served.log.path.open("rb") as file:
        assert recorded_setting(LogReader(file, "run").header) == Setting("lfu", "hash", 8, 33)


def test_a_log_that_breaks_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """The engine may be killed after any byte; the first that holds a request is somewhere behind 500."""
    path = write_log(tmp_path, steps=60)
    data = path.read_bytes()
    whole = len(read(path).requests)
    counts = []
    for size in range(2000, len(data), 500):
        path.write_bytes(data[:size])
        trace = read(path)
        counts.append(len(trace.requests))
        assert [why for _, why in whys(trace) if "breaks off" in why] == ["the packed file breaks off here"]
    assert counts == sorted(counts)
    assert 0 < counts[-1] <= whole


def test_a_log_that_was_unpacked_is_read_alike(tmp_path: Path) -> None:
    path = write_log(tmp_path, steps=60)
    packed = read(path).requests
    path.write_bytes(gzip.decompress(path.read_bytes()))
    assert read(path).requests == packed


def header_line(directory: Path) -> bytes:
    served = Served(directory)
    served.manager.close()
    return gzip.decompress(served.log.path.read_bytes()).splitlines()[0]


def test_records_about_what_the_log_does_not_have_are_skipped(tmp_path: Path) -> None:
    lines = [
        header_line(tmp_path),
        b'["tokens",77,[1]]',
        b'["request",0,"r",[1,2,3]]',
        b'["allocate",0,3,0,{}]',
        b'["allocate",77,3,0,{}]',
        b'["explode"]',
        b'["gone",77]',
    ]
    path = tmp_path / "altered.log"
    path.write_bytes(b"\n".join(lines))
    trace = read(path)
    assert len(trace.requests) == 1
    assert [line for line, _ in whys(trace)] == [2, 5, 6, 7]
    assert "77" in trace.skipped[0].why
    with pytest.raises(TraceError, match=r"altered\.log:2: "):
        read_traces([str(path)], strict=True)


def test_a_log_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.log"
    path.write_bytes(header_line(tmp_path).replace(b'"version":3', b'"version":1'))
    with pytest.raises(LogError, match=r"old\.log is a decision log of format 1"):
        read(path)


@pytest.mark.parametrize("index", ["radix", "hash"])
def test_the_scheduled_replay_of_a_log_hits_what_the_engine_hit(tmp_path: Path, index: str) -> None:
    """The same scheduler, and a cost model that is right: then it is the same to the token."""
    rng = random.Random(3)
    served = Served(tmp_path, CacheConfig(30, 4, index=index), seqs=4)  # type: ignore[arg-type]
    systems = [[10_000 * one + place for place in range(30)] for one in range(1, 7)]
    for number in range(150):
        prompt = [*rng.choice(systems)[: rng.randint(8, 30)], number, number + 1]
        served.add(str(number), prompt, rng.randint(1, 12))
        for _ in range(rng.randrange(6)):
            if served.scheduler.has_work:
                served.step()
    served.finish()
    stats = served.manager.stats
    trace = served.read()
    setting = Setting("lru", index, 4, 30, max_num_seqs=4)
    outcome = replay_scheduled(trace, setting, CostModel(step=STEP, prefill_token=0.0, decode_row=0.0))
    assert sum(one.num_prompt_tokens for one in outcome.served) == stats.queries
    assert sum(one.num_hit_tokens for one in outcome.served) == stats.hits
    assert outcome.num_preemptions == served.scheduler.num_preemptions > 0
    assert outcome.num_evicted_blocks == served.manager.num_evicted_blocks > 0
    one_by_one = replay(trace, setting)
    assert one_by_one.rates.num_hit_tokens != stats.hits
