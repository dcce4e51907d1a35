"""When requests came: every spelling of a time that logs have, and the clock that several files share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median

from headstart.lab.traces.draft import Part

_LONG_AGO = 1e8  # seconds: a clock that shows less, 1973, was set to 0 when its trace began
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
    numbers are milliseconds if the requests would else lie more than 20 seconds apart in the median, since
    traces that short-cut their clock are made of traffic.
    """
    latest = max(map(abs, times), default=0.0)
    for least, seconds in _EPOCHS:
        if latest >= least:
            return seconds
    if latest < _LONG_AGO and all(map(float.is_integer, times)):
        marks = sorted(set(times))
        gaps = [after - before for before, after in pairwise(marks)]
        if gaps and median(gaps) > _SLOWEST:
            return 1e-3
    return 1.0


def align(parts: Sequence[Part]) -> list[bool]:
    """Put the files' times, in seconds, on one clock; for each file, whether its clock started over.

    Times since 1970 stay as they are: such files may be one system's, side by side.  A clock that began at 0
    goes on where the file before ended, or it started over: then the file's requests come after all before.
    """
    started_over = []
    end: float | None = None
    for part in parts:
        times = [draft.time for draft in part.drafts if draft.time is not None]
        begin = min(times, default=0.0)
        is_over = bool(times) and end is not None and begin < end and max(times) < _LONG_AGO
        if is_over and end is not None:
            for draft in part.drafts:
                if draft.time is not None:
                    draft.time += end - begin
            times = [time + end - begin for time in times]
        started_over.append(is_over)
        end = max([*times, end] if end is not None else times, default=None)
    return started_over
