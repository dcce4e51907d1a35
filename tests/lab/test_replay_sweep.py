from __future__ import annotations

from dataclasses import replace

import pytest

from headstart.errors import ConfigError, LabError
from headstart.lab.replay.bounds import bounds_of
from headstart.lab.replay.capacity import Capacity
from headstart.lab.replay.outcome import OPTIMAL, Outcome, Setting
from headstart.lab.replay.points import INDEXES, POLICIES, Axes, names
from headstart.lab.replay.sweep import sweep
from tests.small_traces import by_ids, by_tokens

TRACE = by_ids([[number % 3, number % 5 + 10, number] for number in range(700)])
POINTS = [
    Setting("lru", "radix", 512, 20),
    Setting("lfu", "hash", 512, 30),
    Setting(OPTIMAL, "hash", 1024, 30),
    Setting("lru", "radix", 1024, None),
]


def untimed(outcomes: list[Outcome]) -> list[Outcome]:
    return [replace(outcome, seconds=0.0) for outcome in outcomes]


def test_side_by_side_is_the_same() -> None:
    told: list[int] = []
    alone = sweep(TRACE, POINTS, warmup=100)
    assert [outcome.setting for outcome in alone] == POINTS
    assert untimed(sweep(TRACE, POINTS, warmup=100, jobs=3, progress=told.append)) == untimed(alone)
    assert told[-1] == len(POINTS) * len(TRACE.requests)
    assert told == sorted(told)


def test_progress_counts_all_points() -> None:
    told: list[int] = []
    sweep(TRACE, POINTS[:2], progress=told.append)
    assert told == [0, 256, 512, 700, 956, 1212]


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_a_point_cannot_do_is_said(jobs: int) -> None:
    points = [*POINTS, Setting("lru", "radix", 500, 20)]
    with pytest.raises(ConfigError, match="not with 500"):
        sweep(TRACE, points, jobs=jobs)


def test_a_process_that_dies_is_told_of() -> None:
    # Its pipe ends where the capacity is no number: that is nobody's HeadstartError.
    broken = Setting("lru", "radix", 512, "many")  # type: ignore[arg-type]
    with pytest.raises(LabError, match=r"a process of the sweep died \(exit code 1\)"):
        sweep(TRACE, [broken, broken], jobs=2)


def test_every_combination_once() -> None:
    trace = by_tokens([range(64), range(64)])
    bounds = {size: bounds_of(trace, size) for size in (4, 16)}
    axes = Axes(["lru", OPTIMAL], ["radix", "hash"], Capacity.parse_list("50%,8,64t"))
    points = axes.points(bounds)
    assert points == [
        *(Setting("lru", index, 4, capacity) for index in ("radix", "hash") for capacity in (8, 16)),
        *(Setting(OPTIMAL, "hash", 4, capacity) for capacity in (8, 16)),
        *(Setting("lru", index, 16, capacity) for index in ("radix", "hash") for capacity in (2, 4, 8)),
        *(Setting(OPTIMAL, "hash", 16, capacity) for capacity in (2, 4, 8)),
    ]


def test_names_in_lists() -> None:
    assert names("lru, lfu,lru", POLICIES) == ["lru", "lfu"]
    assert names("all", INDEXES) == ["radix", "hash"]
    assert names("all", POLICIES)[-1] == OPTIMAL


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"policies": ["arc"]}, "there is no policy 'arc': there are lru, fifo, lfu, .*, optimal, or all"),
        ({"indexes": ["tree"]}, "there is no prefix index 'tree': there are radix, hash, or all"),
        ({"max_num_seqs": 8}, "the optimum is that of one cache and one request after the other"),
        ({"replicas": 2}, "the optimum is that of one cache"),
    ],
)
def test_what_cannot_be_swept(changes: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        replace(Axes([OPTIMAL], ["hash"], Capacity.parse_list("10")), **changes)  # type: ignore[arg-type]
