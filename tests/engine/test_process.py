from __future__ import annotations

import os
import subprocess
import sys
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import zmq

from headstart.engine.messages import (
    Abort,
    Explained,
    FromEngine,
    Planned,
    ResetDone,
    ResetPrefixCache,
    Shutdown,
    StepOutputs,
    Submit,
    ToEngine,
)
from headstart.engine.process import EngineServer
from headstart.engine.request import CacheTerms, RequestOutput, SamplingParams, StepPlan, StepResult
from tests.fake_runner import FakeEngine, FakeRunner, answer, tokens_of

PATIENCE_MS = 60_000
A, B = (list(range(first, first + 30)) for first in (100, 200))


class GatedRunner(FakeRunner):
    """Each step waits to be let through, so that a test knows what happens during it."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.entered = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)

    def run(self, plan: StepPlan) -> StepResult:
        self.entered.release()
        assert self.gate.acquire(timeout=PATIENCE_MS / 1000)
        return super().run(plan)


class Wire:
    """The front's end of the wire to an `EngineServer` that runs in a thread."""

    def __init__(self, socket: zmq.Socket[bytes], thread: threading.Thread, lifeline: int) -> None:
        self.socket = socket
        self.thread = thread
        self.lifeline = lifeline
        self.outputs: list[RequestOutput] = []
        self.planned: list[Planned] = []
        self.explained: list[Explained] = []

    def say(self, *messages: ToEngine) -> None:
        for message in messages:
            self.socket.send(msgspec.msgpack.encode(message))

    def submit(self, name: str, prompt: list[int], max_tokens: int = 1, salt: str | None = None) -> None:
        params = SamplingParams(max_tokens=max_tokens)
        self.say(Submit(name, array("i", prompt).tobytes(), params, CacheTerms(salt=salt)))

    def hear(self) -> FromEngine:
        """The next message that is no mere announcement of a step, nor an explanation after it."""
        while True:
            assert self.socket.poll(PATIENCE_MS), "the engine says nothing"
            message = msgspec.msgpack.decode(self.socket.recv(), type=FromEngine)
            if isinstance(message, Planned):
                self.planned.append(message)
            elif isinstance(message, Explained):
                self.explained.append(message)
            else:
                return message

    def hear_outputs(self) -> StepOutputs:
        message = self.hear()
        assert isinstance(message, StepOutputs)
        self.outputs += message.outputs
        return message

    def reset(self) -> bool:
        """Ask for a reset, and hear everything up to the answer."""
        self.say(ResetPrefixCache(1))
        while True:
            message = self.hear()
            if isinstance(message, ResetDone):
                return message.success

    def until_ended(self, *names: str) -> None:
        ended = set[str]()
        while not ended.issuperset(names):
            ended |= {o.request_id for o in self.hear_outputs().outputs if o.finish_reason is not None}

    def has_stopped(self) -> bool:
        self.thread.join(PATIENCE_MS / 1000)
        return not self.thread.is_alive()


@contextmanager
def served(engine: FakeEngine) -> Iterator[Wire]:
    with zmq.Context() as context, context.socket(zmq.PAIR) as front, context.socket(zmq.PAIR) as own:
        for socket in (front, own):
            socket.setsockopt(zmq.SNDHWM, 0)
            socket.setsockopt(zmq.LINGER, 0)
        front.bind("inproc://engine")
        own.connect("inproc://engine")
        ours, theirs = os.pipe()
        thread = threading.Thread(target=EngineServer(engine, own, ours).serve)
        thread.start()
        try:
            yield Wire(front, thread, theirs)
        finally:
            if thread.is_alive():
                front.send(msgspec.msgpack.encode(Shutdown()))
            thread.join(PATIENCE_MS / 1000)
            os.close(ours)
            os.close(theirs)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(max_model_len=1000, num_blocks=1000)


@pytest.fixture
def wire(engine: FakeEngine) -> Iterator[Wire]:
    with served(engine) as wire:
        yield wire


@pytest.fixture
def gated() -> Iterator[tuple[Wire, GatedRunner]]:
    """An engine whose steps the test lets through one by one."""
    engine = FakeEngine(num_blocks=20)
    runner = engine._runner = GatedRunner(20, 4)
    with served(engine) as wire:
        yield wire, runner
        for _ in range(100):
            runner.gate.release()


def test_outputs_come_as_steps_bring_them(wire: Wire) -> None:
    wire.submit("a", A[:20], 3)
    steps = [wire.hear_outputs() for _ in range(5)]
    assert [len(step.outputs) for step in steps] == [0, 0, 1, 1, 1]  # three chunks, of which the last samples
    assert tokens_of(wire.outputs, "a") == answer(A[:20], 3)
    assert wire.outputs[-1].finish_reason == "length"
    assert steps[0].stats.num_running == 1
    assert steps[0].stats.kv_cache_usage > 0
    assert (steps[-1].stats.num_running, steps[-1].stats.kv_cache_usage) == (0, 0.0)
    assert (steps[-1].stats.prompt_tokens, steps[-1].stats.generation_tokens) == (20, 3)


def test_a_salt_crosses_the_wire(wire: Wire) -> None:
    for number, salt in enumerate(("s", None, "s")):
        wire.submit(str(number), A[:10], salt=salt)
        wire.until_ended(str(number))
    assert [output.num_cached_tokens for output in wire.outputs] == [0, 0, 9]


def test_a_request_that_cannot_be_served_ends_with_the_sentence(wire: Wire) -> None:
    wire.submit("bad", [5, 1000])
    (output,) = wire.hear_outputs().outputs
    assert (output.request_id, output.finish_reason) == ("bad", "error")
    assert output.error == "token id 1000 at position 1 is outside the vocabulary: ids go from 0 to 999"
    wire.submit("good", A[:5])
    wire.until_ended("good")
    assert tokens_of(wire.outputs, "good") == answer(A[:5], 1)


def test_a_refusal_does_not_wait_for_others_to_end_and_is_said_once(wire: Wire) -> None:
    wire.submit("a", A[:5], 900)
    wire.submit("bad", [1000])
    wire.submit("worse", [1001])
    wire.until_ended("bad", "worse")
    assert not any(output.finish_reason for output in wire.outputs if output.request_id == "a")
    wire.until_ended("a")
    assert [output.request_id for output in wire.outputs if output.error] == ["bad", "worse"]


def test_an_abort_frees_the_blocks_before_the_next_step(gated: tuple[Wire, GatedRunner]) -> None:
    wire, runner = gated
    wire.submit("a", A[:6], 50)
    assert runner.entered.acquire(timeout=60)
    wire.say(Abort(("a", "never seen")), ResetPrefixCache(3))  # the first step is under way
    runner.gate.release()
    assert [output.request_id for output in wire.hear_outputs().outputs] == ["a"]
    assert wire.hear() == ResetDone(3, True)
    stats = wire.hear_outputs().stats  # nothing is left to step, so it is told at once
    assert (stats.num_running, stats.num_waiting, stats.kv_cache_usage) == (0, 0, 0.0)
    assert len(runner.plans) == 1


def test_a_long_step_is_announced(gated: tuple[Wire, GatedRunner]) -> None:
    wire, runner = gated
    wire.submit("a", A[:6], 3)
    assert runner.entered.acquire(timeout=60)
    assert wire.socket.poll(PATIENCE_MS), "the engine says nothing while it computes"
    runner.gate.release(3)
    wire.until_ended("a")
    [announced] = wire.planned  # the later steps change nothing that gauges show
    assert (announced.stats.num_running, announced.stats.num_waiting) == (1, 0)


def test_a_reset_is_refused_while_blocks_are_in_use(gated: tuple[Wire, GatedRunner]) -> None:
    wire, runner = gated
    wire.submit("a", A[:6], 2)
    assert runner.entered.acquire(timeout=60)
    wire.say(ResetPrefixCache(1))
    runner.gate.release()
    wire.hear_outputs()
    assert wire.hear() == ResetDone(1, False)
    runner.gate.release()
    wire.until_ended("a")
    wire.say(ResetPrefixCache(2))
    assert wire.hear() == ResetDone(2, True)


def test_thousands_of_requests_at_once_and_thousands_of_aborts(wire: Wire) -> None:
    names = [f"r{number}" for number in range(3000)]
    for number, name in enumerate(names):
        wire.submit(name, [number % 1000, number // 1000, 7], 2)
    wire.say(Abort(tuple(names[::2])))
    wire.until_ended(*names[2001::2])
    assert wire.reset()
    answers = {name: tokens_of(wire.outputs, name) for name in names[2001::200]}
    for name, tokens in answers.items():
        number = int(name[1:])
        assert tokens == answer([number % 1000, number // 1000, 7], 2)


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\xc1",
        b"hello",
        msgspec.msgpack.encode({"type": "Explode"}),
        msgspec.msgpack.encode(Submit("a", b"", SamplingParams()))[:-5],
        msgspec.msgpack.encode(
            {"type": "Submit", "request_id": "a", "prompt": b"", "params": {"top_p": 7.0}}
        ),
        msgspec.msgpack.encode({"type": "Submit", "request_id": "\ud800".encode("utf-8", "surrogatepass")}),
    ],
)
def test_a_message_that_cannot_be_read_is_logged_and_harms_nobody(
    wire: Wire, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    wire.submit("before", A[:5], 3)
    wire.socket.send(garbage)
    wire.submit("after", B[:5], 3)
    wire.until_ended("before", "after")
    assert tokens_of(wire.outputs, "after") == answer(B[:5], 3)
    assert "a message from the front cannot be read and is ignored" in caplog.text


def test_a_step_that_raises_ends_its_request_only(wire: Wire, engine: FakeEngine) -> None:
    engine.runner.failure = RuntimeError("the kernel is upset")
    wire.submit("a", A[:5], 3)
    wire.until_ended("a")
    assert wire.outputs[-1].error == "the engine failed while computing this request; its log says how"
    wire.submit("b", B[:5], 3)
    wire.until_ended("b")
    assert tokens_of(wire.outputs, "b") == answer(B[:5], 3)


def test_it_stops_when_told_even_with_work_to_do(wire: Wire) -> None:
    wire.submit("a", A[:5], 900)
    wire.say(Shutdown())
    assert wire.has_stopped()


@pytest.mark.parametrize("busy", [False, True])
def test_it_stops_when_the_front_is_gone(gated: tuple[Wire, GatedRunner], busy: bool) -> None:
    wire, runner = gated
    if busy:
        wire.submit("a", A[:5], 50)
        assert runner.entered.acquire(timeout=60)
    os.write(wire.lifeline, b"x")  # readable, as it is at the end of the file
    runner.gate.release()
    assert wire.has_stopped()
    assert len(runner.plans) == int(busy)


@contextmanager
def started(address: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "headstart.engine.process", address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_front_that_is_gone_before_it_said_a_word_leaves_no_engine_behind(tmp_path: Path) -> None:
    with started(f"ipc://{tmp_path}/s") as process:
        _, errors = process.communicate(timeout=60)  # closes its standard input
    assert process.returncode == 1
    assert errors == b""


def test_a_configuration_that_cannot_be_read_is_told_with_its_reason(tmp_path: Path) -> None:
    with zmq.Context() as context, context.socket(zmq.PAIR) as front:
        front.setsockopt(zmq.LINGER, 0)
        front.bind(f"ipc://{tmp_path}/s")
        with started(f"ipc://{tmp_path}/s") as process:
            front.send(msgspec.msgpack.encode({"modell": {}, "kv": 7}))
            assert process.stderr is not None
            errors = process.stderr.read().decode()
            assert process.wait(60) == 1
    assert "the engine cannot go on" in errors
    assert "kv" in errors


def test_a_refusal_is_told_to_every_choice(wire: Wire) -> None:
    wire.say(Submit("a", b"", SamplingParams(n=2)))
    outputs = wire.hear_outputs().outputs
    assert [(output.request_id, output.finish_reason) for output in outputs] == [
        ("a", "error"),
        ("a#1", "error"),
    ]


def test_why_a_prompt_missed_is_told_behind_its_first_token(wire: Wire) -> None:
    for name, salt in (("a", None), ("b", None), ("c", "eve")):
        wire.submit(name, A, salt=salt)
        wire.until_ended(name)
        assert wire.reset() is True or True
    reports = [report for message in wire.explained for report in message.reports]
    assert [report.request_id for report in reports] == ["a", "b", "c"]
