"""Many settings on one trace, one after the other or side by side in processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from signal import SIG_IGN, SIGINT, signal

from headstart.errors import HeadstartError, LabError
from headstart.lab.replay.chains import Chains, symbols_of
from headstart.lab.replay.outcome import OPTIMAL, Outcome, Setting
from headstart.lab.replay.point import replay_point
from headstart.lab.traces.trace import Trace


def sweep(
    trace: Trace,
    points: Sequence[Setting],
    *,
    warmup: int = 0,
    jobs: int = 1,
    progress: Callable[[int], None] | None = None,
) -> list[Outcome]:
    """The outcome of each point, in their order; ``jobs`` of them at a time, each in a process of its own.

    ``progress`` is told how many requests are done, of all points together.
    Raises as `replay_point`, and ``LabError`` if a process dies.
    """
    if jobs > 1 and len(points) > 1:
        return _side_by_side(trace, points, warmup, min(jobs, len(points)), progress)
    runner, outcomes = _Runner(trace, warmup), []
    for number, point in enumerate(points):
        base = number * len(trace.requests)
        told = None if progress is None else _add(base, progress)
        outcomes.append(runner.run(point, told))
    return outcomes


class _Runner:
    """Replays one point after the other; what points of one block size have in common is made once."""

    def __init__(self, trace: Trace, warmup: int) -> None:
        self._trace = trace
        self._warmup = warmup
        self._chains: Chains | None = None

    def run(self, point: Setting, progress: Callable[[int], None] | None) -> Outcome:
        chains = self._chains_of(point)
        return replay_point(self._trace, point, warmup=self._warmup, progress=progress, chains=chains)

    def _chains_of(self, point: Setting) -> Chains | None:
        by_tokens = self._trace.tokens_per_symbol == 1
        if by_tokens and point.policy != OPTIMAL and point.capacity_blocks is not None:
            return None  # nobody asks for them
        block_symbols = symbols_of(point.block_size, self._trace)
        if self._chains is None or self._chains.block_symbols != block_symbols:
            self._chains = Chains.of(self._trace, block_symbols)
        return self._chains


def _side_by_side(
    trace: Trace,
    points: Sequence[Setting],
    warmup: int,
    jobs: int,
    progress: Callable[[int], None] | None,
) -> list[Outcome]:
    sent = trace
    if all(point.replicas == 1 for point in points):
        # Bodies are the greater part of a raw log, and only a router reads them.
        sent = replace(trace, requests=[replace(each, body=None) for each in trace.requests])
    outcomes: dict[int, Outcome] = {}
    done = [0] * len(points)
    waiting = list(enumerate(points))[::-1]
    with ExitStack() as stack:
        workers = [stack.enter_context(_Worker(sent, warmup)) for _ in range(jobs)]
        busy = {worker.connection: worker for worker in workers if worker.take(waiting)}
        while busy:
            for connection in wait(list(busy)):
                assert isinstance(connection, Connection)
                worker = busy[connection]
                said = worker.hear()
                if isinstance(said, Outcome):
                    outcomes[worker.number] = said
                    done[worker.number] = len(trace.requests)
                    if not worker.take(waiting):
                        del busy[connection]
                else:
                    done[worker.number] = said
                if progress is not None:
                    progress(sum(done))
    return [outcomes[number] for number in range(len(points))]


class _Worker:
    """A process that replays what it is handed.  It gets the trace once, when it starts.

    It is started afresh, not forked: this process may have threads (a progress bar's, the tokenizer's).
    """

    def __init__(self, trace: Trace, warmup: int) -> None:
        context = get_context("spawn")
        self.connection, self._other = context.Pipe()
        self._process: SpawnProcess = context.Process(
            target=_work, args=(self._other, trace, warmup), daemon=True
        )
        self.number = 0

    def __enter__(self) -> _Worker:
        self._process.start()
        self._other.close()  # the worker has its own: once that is gone, so is the worker
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()
        self._process.terminate()
        self._process.join()

    def take(self, waiting: list[tuple[int, Setting]]) -> bool:
        """Start on the last that is waiting; False if there is none."""
        if not waiting:
            return False
        self.number, point = waiting.pop()
        self.connection.send(point)
        return True

    def hear(self) -> Outcome | int:
        """An outcome, or how many requests are done.  Raises what the worker raised."""
        try:
            said = self.connection.recv()
        except (EOFError, ConnectionError) as error:
            self._process.join()
            raise LabError(
                f"a process of the sweep died (exit code {self._process.exitcode}); if memory is short, use "
                "fewer --jobs"
            ) from error
        if isinstance(said, HeadstartError):
            raise said
        assert isinstance(said, Outcome | int)
        return said


def _work(connection: Connection, trace: Trace, warmup: int) -> None:
    """What runs in a worker, until its connection closes."""
    signal(SIGINT, SIG_IGN)  # who interrupts the sweep interrupts the process that started this one
    runner = _Runner(trace, warmup)
    while True:
        try:
            point = connection.recv()
        except EOFError:
            return
        try:
            connection.send(runner.run(point, connection.send))
        except HeadstartError as error:
            connection.send(error)


def _add(base: int, progress: Callable[[int], None]) -> Callable[[int], None]:
    return lambda done: progress(base + done)
