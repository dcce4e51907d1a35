from __future__ import annotations

import pytest

from headstart.lab.traces.draft import Draft, Part
from headstart.lab.traces.times import align, seconds_per_unit, time_of
from headstart.lab.traces.trace import TraceFormat

EPOCH = 1_769_860_800.0  # 2026-01-31T12:00:00Z


@pytest.mark.parametrize(
    ("value", "time"),
    [
        (None, None),
        (7, 7.0),
        (7.25, 7.25),
        ("7.25", 7.25),
        ("2026-01-31T12:00:00Z", EPOCH),
        ("2026-01-31T12:00:00", EPOCH),
        ("2026-01-31 12:00:00.2500000", EPOCH + 0.25),
        ("2026-01-31T13:00:00+01:00", EPOCH),
        (" 2026-01-31 12:00:00.5+00:00", EPOCH + 0.5),
    ],
)
def test_every_spelling_of_a_time(value: object, time: float | None) -> None:
    assert time_of(value) == time


@pytest.mark.parametrize("value", [True, "yesterday", "", "nan", "inf", [1], {}, "2026-13-01"])
def test_what_is_no_time(value: object) -> None:
    with pytest.raises(ValueError, match="its time is neither a number nor a date"):
        time_of(value)


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        ([], 1),
        ([EPOCH, EPOCH + 0.5], 1),
        ([EPOCH * 1e3], 1e-3),
        ([EPOCH * 1e6], 1e-6),
        ([EPOCH * 1e9], 1e-9),
        ([0, 27.5, 1000.0], 1),  # a fraction is of a second
        ([0, 1, 3, 20], 1),
        ([0, 100, 100, 200, 3000], 1e-3),
        ([0, 10**5, 3 * 10**8], 1e-3),  # more than a day of milliseconds
        ([5], 1),
    ],
)
def test_the_unit_is_one_for_all_times(times: list[float], seconds: float) -> None:
    assert seconds_per_unit([float(time) for time in times]) == seconds


def parts_of(*files: list[float | None]) -> list[Part]:
    return [
        Part(f"{number}", TraceFormat.TOKENS, [Draft(1, b"1234", 1, time=time) for time in times])
        for number, times in enumerate(files)
    ]


def aligned(
    *files: list[float | None], seconds: float | None = 1.0
) -> tuple[list[bool], list[list[float | None]]]:
    parts = parts_of(*files)
    started_over = align(parts, seconds)
    return started_over, [[draft.time for draft in part.drafts] for part in parts]


def test_a_clock_that_starts_over_comes_after_what_was_before() -> None:
    assert aligned([0, 5, 10], [0, 3], [1, 2]) == ([False, True, True], [[0, 5, 10], [10, 13], [13, 14]])


def test_a_clock_that_goes_on_stays_as_it_is() -> None:
    assert aligned([0, 5], [5, 8], [20]) == ([False, False, False], [[0, 5], [5, 8], [20]])


def test_clocks_since_1970_are_one_clock() -> None:
    files: list[list[float | None]] = [[EPOCH, EPOCH + 10], [EPOCH + 5], [EPOCH - 100]]
    assert aligned(*files) == ([False, False, False], files)


def test_units_are_each_files_own() -> None:
    started_over, times = aligned([EPOCH * 1e3], [EPOCH + 1], seconds=None)
    assert times == [[pytest.approx(EPOCH)], [EPOCH + 1]]
    assert started_over == [False, False]


def test_files_without_times_change_nothing() -> None:
    assert aligned([0, None, 4], [None], [1.5]) == ([False, False, True], [[0, None, 4], [None], [4]])
