"""A decision log as a trace: what headstart served, to be replayed with other settings.

`headstart.lab.decisions` asks a core the very same again.  Here the requests alone are taken from the log: a
replay decides anew when each is let in, and how far it is computed in a step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headstart.cache import Adapter, Namespace
from headstart.cache.tokens import run_of
from headstart.engine.decisions import Allocate, BeginStep, Fork, Gone, Granted, Header, Seen, Tokens
from headstart.errors import LogError
from headstart.lab.decisions.reader import LogReader
from headstart.lab.replay.outcome import Setting
from headstart.lab.traces.trace import BadLine, Trace, TraceFormat, TraceRequest


def read_decision_log(reader: LogReader, name: str) -> Trace:
    """The requests that were ever let in, in the order in which the scheduler first looked at them.

    A request's time is that of this look, since the log does not know when it came: seconds from the log's
    first step on.  Further choices of a prompt (``n``) are no requests of their own.  Salts are the log's
    pseudonyms.  Requests are skipped that tokens alone do not describe: those with media or embeddings, and
    those that read nothing from the cache.

    Raises ``LogError`` for a damaged log; one that breaks off is read as far as it goes.
    """
    reading = _Reading(name)
    for line, record in enumerate(reader.records(), start=2):  # the header is the first
        match record:
            case BeginStep(now):
                reading.begin_step(now)
            case Seen():
                reading.meet(record, line)
            case Tokens(number, tokens):
                reading.known(number, line).answer += tokens
            case Allocate(number, _, _, Granted()):
                reading.admit(number, line)
            case Fork(_, child):
                reading.known(child, line).is_choice = True
            case Gone(number):
                reading.live.pop(number, None)
            case _:  # nothing about requests
                pass
    return reading.trace()


def recorded_setting(header: Header) -> Setting:
    """The setting of the cache that the log is about; how many requests overlapped is not in it."""
    cache = header.cache
    return Setting(cache.policy, cache.index, cache.block_size, cache.num_blocks)


@dataclass(slots=True)
class _Met:
    """A request of the log, with what was generated so far."""

    seen: Seen
    line: int
    looked_at: float
    is_choice: bool = False
    answer: list[int] = field(default_factory=list)


class _Reading:
    """A log's requests, as far as it was read: ``live`` are those that it may still mention."""

    def __init__(self, name: str) -> None:
        self.live: dict[int, _Met] = {}
        self._name = name
        self._admitted: dict[int, _Met] = {}
        self._began: float | None = None
        self._now = 0.0

    def begin_step(self, now: float) -> None:
        if self._began is None:
            self._began = now
        self._now = now - self._began

    def meet(self, seen: Seen, line: int) -> None:
        self.live[seen.number] = _Met(seen, line, self._now)

    def admit(self, number: int, line: int) -> None:
        met = self.known(number, line)
        if not met.is_choice:
            self._admitted[number] = met

    def known(self, number: int, line: int) -> _Met:
        met = self.live.get(number)
        if met is None:
            raise LogError(
                f"{self._name} is damaged in line {line}: request {number} is not in the log before it"
            )
        return met

    def trace(self) -> Trace:
        requests: list[TraceRequest] = []
        skipped: list[BadLine] = []
        for _, met in sorted(self._admitted.items()):
            why = _not_told(met.seen)
            if why is None:
                requests.append(self._request(met))
            else:
                skipped.append(BadLine(self._name, met.line, why))
        return Trace(self._name, TraceFormat.DECISION_LOG, requests, skipped=skipped)

    def _request(self, met: _Met) -> TraceRequest:
        seen = met.seen
        size = len(seen.tokens) if seen.num_prompt_tokens is None else seen.num_prompt_tokens
        answer = seen.tokens[size:] + met.answer
        adapter = None if seen.adapter is None else Adapter(*seen.adapter)
        return TraceRequest(
            symbols=bytes(run_of(seen.tokens[:size])),
            num_prompt_tokens=size,
            arrival_s=met.looked_at,
            num_output_tokens=len(answer),
            namespace=Namespace(adapter, seen.salt),
            output=bytes(run_of(answer)),
            line=met.line,
            file=self._name,
        )


def _not_told(seen: Seen) -> str | None:
    """Why the tokens do not tell all; None if they do."""
    if seen.media:
        return "the prompt has images or other media"
    if seen.prompt_embeds is not None:
        return "the prompt has embeddings"
    if seen.skip_reading:
        return "the request reads nothing from the cache, since it wants its prompt's log-probabilities"
    return None
