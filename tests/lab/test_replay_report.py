from __future__ import annotations

import json
from dataclasses import replace

import pytest
from rich.console import Console

from headstart.errors import ConfigError, TraceError
from headstart.lab.replay.capacity import Capacity
from headstart.lab.replay.estimate import Estimate, estimate
from headstart.lab.replay.outcome import OPTIMAL, ReplayReport, Setting
from headstart.lab.replay.points import Axes
from headstart.lab.replay.report import fields
from headstart.lab.replay.run import block_sizes, run, warmup_requests
from headstart.lab.replay.tables import print_report
from headstart.lab.traces.trace import BadLine, Trace
from tests.small_traces import by_ids, by_tokens

TRACE = by_ids([[1, 2, 3], [4, 5, 6], [1, 2, 3]])
AXES = Axes(["lru", OPTIMAL], ["radix"], Capacity.parse_list("5,50%,unbounded"))


def text_of(report: ReplayReport) -> str:
    console = Console(width=200, highlight=False, color_system=None)
    with console.capture() as capture:
        print_report(report, console)
    return capture.get()


def test_a_row_has_all_that_is_known_of_its_point() -> None:
    row = fields(run(TRACE, AXES, [512]))["rows"][1]
    assert row.pop("seconds") > 0
    assert row == {
        "policy": "lru",
        "prefix_index": "radix",
        "block_size": 512,
        "capacity_blocks": 5,
        "capacity_share_of_unique": 5 / 6,
        "unique_over_capacity": 6 / 5,
        "max_num_seqs": None,
        "replicas": 1,
        "routing": None,
        "num_requests": 3,
        "num_prompt_tokens": 9 * 512,
        "num_hit_tokens": 2 * 512,
        "token_hit_rate": 2 / 9,
        "request_full_hit_rate": 1 / 3,
        "request_any_hit_rate": 1 / 3,
        "block_hit_rate": 2 / 9,
        "misses": {"last_token": 3 * 512, "cold": 4 * 512},
        "mean_first_token_s": None,
        "num_evicted_blocks": 2,
        "num_preemptions": 0,
        "num_refused_requests": 0,
    }


def test_the_report_as_json() -> None:
    trace = replace(TRACE, skipped=[BadLine("trace.jsonl", 7, "no JSON")])
    found = json.loads(json.dumps(fields(run(trace, AXES, [512], warmup=1))))
    assert found["trace"] == "by-ids"
    assert (found["num_requests"], found["num_warmup_requests"], found["num_skipped_lines"]) == (3, 1, 1)
    assert [row["capacity_blocks"] for row in found["rows"]] == [3, 5, None] * 2
    assert [row["policy"] for row in found["rows"]] == ["lru"] * 3 + [OPTIMAL] * 3
    (bounds,) = found["bounds"]
    assert (bounds["num_blocks"], bounds["num_unique_blocks"], bounds["reuse_bound"]) == (9, 6, 1 / 3)
    assert bounds["unbounded"]["token_hit_rate"] == found["rows"][-1]["token_hit_rate"] == 2 / 6


def test_the_report_says_what_it_counts() -> None:
    text = text_of(run(TRACE, AXES, [512], warmup=1))
    for words in (
        "by-ids (mooncake): 3 requests in blocks of 512 tokens, the first 1 as warm-up",
        "hit tokens of all prompt tokens",
        "A prompt's last token never counts as a hit",
        "The first 1 requests fill the cache and do not count",
        "This is a block view: the trace has hash ids, each for a block of 512 tokens",
        "N 9, U 6, (N - U)/N 33.33%",
    ):
        assert words in text, words
    assert "block view" not in text_of(run(by_tokens([[1, 2]]), AXES, [1]))
    assert "the cold start is in" in text_of(run(TRACE, AXES, [512]))


def test_lines_of_the_table() -> None:
    lines = [" ".join(line.split()) for line in text_of(run(TRACE, AXES, [512])).splitlines()]
    for line in (
        "policy index capacity of U U/C tokens full any blocks evicted",
        "lru radix 5 83.3% 1.20 22.22% 33.33% 33.33% 22.22% 2",
        "lru radix unbounded 22.22% 33.33% 33.33% 22.22% 0",
        "optimal (blocks) 3 50.0% 2.00 0.00% 0.00% 0.00% 0.00% 6",
        "capacity hit last token evicted cold",
        "3 0.00% 33.33% 22.22% 44.44%",
    ):
        assert line in lines


@pytest.mark.parametrize(("in_terminal", "has_pressure"), [(True, False), (False, True)])
def test_no_figure_is_cut_where_there_is_little_room(in_terminal: bool, has_pressure: bool) -> None:
    report = run(TRACE, AXES, [512])
    console = Console(width=75, highlight=False, color_system=None, force_terminal=in_terminal)
    with console.capture() as capture:
        print_report(report, console)
    table = capture.get().partition("\nWhat became")[0]
    assert "…" not in table
    assert "22.22%" in table
    assert ("U/C" in table) is has_pressure


def test_a_table_that_cannot_be_narrow_has_longer_lines() -> None:
    axes = replace(AXES, policies=["lru"], routings=["consistent-hash"], replicas=2, max_num_seqs=[4])
    console = Console(width=50, highlight=False, color_system=None, force_terminal=True)
    with console.capture() as capture:
        print_report(run(TRACE, axes, [512]), console)
    assert "2, consistent-hash" in capture.get()
    assert "…" not in capture.get().partition("\nWhat became")[0]


def test_what_was_skipped_and_refused_is_said() -> None:
    skipped = [BadLine("trace.jsonl", line, "no JSON") for line in range(1, 6)]
    trace = replace(by_ids([[1], [1, 2, 3]]), skipped=skipped)
    report = run(trace, replace(AXES, capacities=Capacity.parse_list("2")), [512])
    text = text_of(report)
    assert "5 lines skipped" in text
    assert "trace.jsonl:1: no JSON; trace.jsonl:2: no JSON; trace.jsonl:3: no JSON; and 2 more" in text
    assert "Refused, since they need more than 2 blocks: 1 of the requests" in text


def test_a_trace_without_content_has_no_hit_rate() -> None:
    with pytest.raises(TraceError, match="no hit rate can be told from it"):
        run(replace(TRACE, has_content=False), AXES, [512])


def test_hash_ids_in_another_block_size() -> None:
    with pytest.raises(ConfigError, match="multiples of that block size alone, not with 16"):
        run(TRACE, AXES, [16])


@pytest.mark.parametrize(
    ("text", "trace", "sizes"),
    [(None, TRACE, [512]), (None, by_tokens([[1]]), [16]), ("16, 32,16", by_tokens([[1]]), [16, 32])],
)
def test_block_sizes(text: str | None, trace: Trace, sizes: list[int]) -> None:
    assert block_sizes(text, trace) == sizes


@pytest.mark.parametrize("text", ["0", "16,", "many", "-4", "1e3", "²"])
def test_what_is_no_block_size(text: str) -> None:
    with pytest.raises(ConfigError, match="a block size"):
        block_sizes(text, TRACE)


@pytest.mark.parametrize(
    ("text", "count"), [("0", 0), ("2", 2), ("50%", 1), ("66 %", 1), ("67%", 2), ("1_0%", 0)]
)
def test_warmup(text: str, count: int) -> None:
    assert warmup_requests(text, TRACE) == count


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("3", "leaves none of the 3 requests"),
        ("100%", "leaves none"),
        ("half", "a number of requests"),
        ("-1", "a number"),
    ],
)
def test_what_is_no_warmup(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        warmup_requests(text, TRACE)


def test_overlapping_requests_name_the_cost_model() -> None:
    axes = Axes(["lru"], ["radix"], Capacity.parse_list("6"), max_num_seqs=(2, 4))
    report = run(TRACE, axes, [512])
    assert [outcome.setting.max_num_seqs for outcome in report.outcomes] == [2, 4]
    assert "step=0.029,prefill_token=0.00042" in text_of(report)


def test_replicas_are_told_apart() -> None:
    axes = Axes(["lru"], ["hash"], Capacity.parse_list("6"), replicas=2, routings=("random", "prefix"))
    rows = fields(run(TRACE, axes, [512]))["rows"]
    assert [(row["replicas"], row["routing"]) for row in rows] == [(2, "random"), (2, "prefix")]


def test_a_short_sweep_is_not_estimated() -> None:
    assert estimate(TRACE, [Setting("lru", "radix", 512, 5)], 1) is None


def test_an_estimate_grows_with_the_points_and_shrinks_with_the_jobs() -> None:
    trace = by_ids([[number % 7, *range(number, number + 60)] for number in range(1000)])
    points = [Setting("lru", "radix", 512, capacity) for capacity in (100, 200)] * 15
    once, many = estimate(trace, points[:25], 1), estimate(trace, points * 1000, 1)
    assert once is not None
    assert many is not None
    assert (once.is_long, many.is_long) == (False, True)
    assert many.num_bytes > 0
    assert "min and" in str(many)
    half = estimate(trace, points * 1000, 2)
    assert half is not None
    assert half.num_bytes > 1.5 * many.num_bytes


def test_an_estimate_in_words() -> None:
    assert str(Estimate(179.0, 600 << 20)).startswith("about 3 min and 600 MiB of memory")
    assert str(Estimate(80.4, 1000)).startswith("about 80 s and 1 MiB of memory")
