"""When requests came: every spelling of a time that logs have, and the clock that several files share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median

from headstart.lab.traces.draft import Part

_LONG_AGO = 1e8  # seconds: a clock that begins with less, 1973, was set to 0 then
_EPOCHS = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))  # the largest number of seconds is in the year 5138
_SLOWEST = 20  # seconds from one request to the next, in the middle of a trace whose clock began at 0


def time_of(value: object) -> float | None:
    """A number, or seconds since 1970 of an ISO 8601 date (UTC if it names no zone); None for None.

    Raises ``ValueError`` with a sentence.
    """
    if value is None:
        return None
    time = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        time = float(value)
    elif isinstance(value, str):
        try:
            time = float(value)
        except ValueError:
            time = _date(value)
    if not math.isfinite(time):
        raise ValueError("its time is neither a number nor a date as 2026-01-31T12:00:00Z")
    return time


def _date(text: str) -> float:
    try:
        date = datetime.fromisoformat(text.strip())
    except ValueError:
        return math.nan
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def seconds_per_unit(times: Sequence[float]) -> float:
    """What one unit of these times is, decided for all of them: 1, or 0.001 for milliseconds, and so on.

    Times since 1970 tell it by their size.  Of a clock that began at 0 fractions are of seconds; whole
    numbers are milliseconds if the requests would else lie more than 20 seconds apart in the median: such
    traces are made to show traffic.
    """
    begin = min(times, default=0.0)
    for least, seconds in _EPOCHS:
        if begin >= least:
            return seconds
    if begin < _LONG_AGO and all(map(float.is_integer, times)):
        marks = sorted(set(times))
        gaps = [after - before for before, after in pairwise(marks)]
        if gaps and median(gaps) > _SLOWEST:
            return 1e-3
    return 1.0


def align(parts: Sequence[Part], seconds: float | None = None) -> list[bool]:
    """Put the files' times on one clock, in seconds; for each file, whether its clock started over.

    ``seconds`` is one unit of the times, else they tell it.  Times since 1970 are one clock: such files may
    be of servers side by side.  A clock that began with its trace goes on where the file before ended, or it
    started over: then the file's requests come after all before.
    """
    started_over = []
    end: float | None = None
    for part in parts:
        times = [draft.time for draft in part.drafts if draft.time is not None]
        part.seconds = seconds if seconds is not None else seconds_per_unit(times)
        begin = min(times, default=0.0) * part.seconds
        latest = max(times, default=0.0) * part.seconds
        shift = end - begin if times and end is not None and begin < min(end, _LONG_AGO) else None
        for draft in part.drafts:
            if draft.time is not None:
                draft.time = draft.time * part.seconds + (shift or 0.0)
        if times:
            latest += shift or 0.0
            end = latest if end is None else max(end, latest)
        started_over.append(shift is not None)
    return started_over
