"""A decision log as a trace: what headstart served, to be replayed with other settings.

`headstart.lab.decisions` asks a core the very same again.  Here the requests alone are taken from the log: a
replay decides anew when each is let in, and how far it is computed in a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from headstart.cache.tokens import run_of
from headstart.engine.decisions import Allocate, BeginStep, Fork, Gone, Granted, Header, Record, Seen, Tokens
from headstart.errors import RequestError
from headstart.lab.decisions.reader import read_header
from headstart.lab.replay.outcome import Setting
from headstart.lab.traces.draft import Draft
from headstart.lab.traces.fields import salt_of, told
from headstart.lab.traces.source import Source


def read_decision_log(source: Source) -> Iterator[Draft]:
    """The requests that were ever let in, in the order in which the scheduler first looked at them.

    A request's time is that of this look, since the log does not know when it came.  Further choices of a
    prompt (``n``) are no requests of their own.  Salts are the log's pseudonyms, adapters count as models.
    Requests are skipped that tokens alone do not describe: those with media or embeddings, and those that
    read nothing from the cache.  Raises ``LogError`` for what is no decision log, or one of another version.
    """
    records = iter(source.records)
    first = next(records, None)
    read_header(first.data if first else b"", source.file)
    log = _Log()
    decode = msgspec.json.Decoder(Record).decode
    for line, data in records:
        try:
            log.take(decode(data), line)
        except msgspec.DecodeError as error:
            source.skip(line, told(error))
        except KeyError as error:
            source.skip(line, f"it is about request {error}, which the log does not have before it")
    for met in log.admitted():
        try:
            yield _draft(met)
        except (ValueError, RequestError) as error:
            source.skip(met.line, str(error))


def recorded_setting(header: Header) -> Setting:
    """The setting of the cache that a log is about; how many requests overlapped is not in it."""
    cache = header.cache
    return Setting(cache.policy, cache.index, cache.block_size, cache.num_blocks)


@dataclass(slots=True)
class _Met:
    """A request of the log, with what was generated so far."""

    seen: Seen
    line: int
    time: float
    is_choice: bool = False
    is_admitted: bool = False
    answer: list[int] = field(default_factory=list)


class _Log:
    """The requests of a log, as far as it was read."""

    def __init__(self) -> None:
        self._now = 0.0
        self._live: dict[int, _Met] = {}  # that the log may still mention
        self._met: list[_Met] = []

    def take(self, record: Record, line: int) -> None:
        """The next record.  Raises ``KeyError`` for one about a request that the log does not have."""
        match record:
            case BeginStep(now):
                self._now = now
            case Seen():
                self._live[record.number] = _Met(record, line, self._now)
                self._met.append(self._live[record.number])
            case Tokens(number, tokens):
                self._live[number].answer += tokens
            case Allocate(number, _, _, Granted()):
                self._live[number].is_admitted = True
            case Fork(_, child):
                self._live[child].is_choice = True
            case Gone(number):
                del self._live[number]
            case _:  # nothing about requests
                pass

    def admitted(self) -> Iterator[_Met]:
        """Those that were let in, in the order in which the manager met them."""
        return (met for met in self._met if met.is_admitted and not met.is_choice)


def _draft(met: _Met) -> Draft:
    """The request.  Raises ``ValueError`` with a sentence if tokens do not tell all of it."""
    seen = met.seen
    if seen.media:
        raise ValueError("the prompt has images or other media")
    if seen.prompt_embeds is not None:
        raise ValueError("the prompt has embeddings")
    if seen.skip_reading:
        raise ValueError("the request reads nothing from the cache")
    if seen.skip_writing:
        raise ValueError("the request writes nothing to the cache")
    if not seen.tokens:
        raise ValueError("the prompt has no tokens")
    size = len(seen.tokens) if seen.num_prompt_tokens is None else seen.num_prompt_tokens
    answer = seen.tokens[size:] + met.answer
    return Draft(
        met.line,
        bytes(run_of(seen.tokens[:size])),
        size,
        time=met.time,
        num_output_tokens=len(answer),
        output=bytes(run_of(answer)),
        salt=salt_of(seen.salt),
        model=None if seen.adapter is None else " ".join(seen.adapter),
    )
