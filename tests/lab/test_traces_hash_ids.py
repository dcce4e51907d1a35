from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from headstart.errors import ConfigError, TraceError
from headstart.lab.traces.read import read_traces
from headstart.lab.traces.trace import Trace
from tests.trace_files import read, tokens, whys, write


def row(ids: list[int], length: int | None = None, timestamp: float = 0, **more: Any) -> dict[str, Any]:
    """A line of Mooncake's, its last block full unless ``length`` says otherwise."""
    return {
        "timestamp": timestamp,
        "input_length": length or 512 * len(ids),
        "output_length": 3,
        "hash_ids": ids,
        **more,
    }


def chat(number: int, parent: int, ids: list[int], timestamp: float = 0.0) -> dict[str, Any]:
    """A line of Bailian's."""
    return {
        "chat_id": number,
        "parent_chat_id": parent,
        "timestamp": timestamp,
        "input_length": 16 * len(ids) - 7,
        "output_length": 9,
        "type": "text",
        "turn": 1,
        "hash_ids": ids,
    }


def ids_of(trace: Trace) -> list[list[int]]:
    return [tokens(request) for request in trace.requests]


def joined(tmp_path: Path, *files: list[dict[str, Any]]) -> Trace:
    return read_traces([write(tmp_path / f"{number}.jsonl", *rows) for number, rows in enumerate(files)])


def test_mooncake(tmp_path: Path) -> None:
    trace = read(
        tmp_path / "trace.jsonl",
        row([0, 1, 2], 1100, 27000),
        row([0, 3], 1000, 30500, session_id="s"),
    )
    assert (trace.name, trace.format, trace.tokens_per_symbol) == ("trace.jsonl", "mooncake", 512)
    assert trace.has_content
    assert trace.has_times
    first, second = trace.requests
    assert ids_of(trace) == [[0, 1, 2], [0, 3]]
    assert (first.num_prompt_tokens, first.num_output_tokens, first.arrival_s) == (1100, 3, 0.0)
    assert (second.num_prompt_tokens, second.arrival_s, second.session) == (1000, 3.5, "s")
    assert (second.line, second.file) == (2, str(tmp_path / "trace.jsonl"))
    assert first.session is None
    assert trace.skipped == trace.notes == []


def test_bailian(tmp_path: Path) -> None:
    trace = read(
        tmp_path / "trace.jsonl",
        chat(10, -1, [1, 2], 1.5),
        chat(11, -1, [3], 2),
        chat(12, 10, [1, 2, 4, 5], 61.25),
        chat(13, 12, [1, 2, 4, 5, 6], 70),
        chat(14, 7, [8], 71),  # it goes back to a chat before the trace
    )
    assert (trace.format, trace.tokens_per_symbol) == ("bailian", 16)
    assert [request.session for request in trace.requests] == ["10", "11", "10", "10", "7"]
    assert [request.arrival_s for request in trace.requests] == [0, 0.5, 59.75, 68.5, 69.5]
    assert [request.num_prompt_tokens for request in trace.requests] == [25, 9, 57, 73, 9]
    assert ids_of(trace)[2] == [1, 2, 4, 5]


def test_requests_come_by_their_arrival(tmp_path: Path) -> None:
    trace = read(tmp_path / "t", row([0], timestamp=9), row([1], timestamp=5), row([2], timestamp=9))
    assert ids_of(trace) == [[1], [0], [2]]
    assert [request.arrival_s for request in trace.requests] == [0, *[pytest.approx(0.004)] * 2]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (row([1, 2], 20), "the number of hash ids is 2, and must be ceil(20 / 512) = 1"),
        (row([1], 513), "the number of hash ids is 1, and must be ceil(513 / 512) = 2"),
        (row([], 1), "the number of hash ids is 0, and must be ceil(1 / 512) = 1"),
        ({"input_length": 0, "hash_ids": []}, "Expected `int` >= 1 - at `$.input_length`"),
        ({"input_length": -5, "hash_ids": [1]}, "Expected `int` >= 1 - at `$.input_length`"),
        ({"input_length": 2**63, "hash_ids": [1]}, "Expected `int` <= 2147483647 - at `$.input_length`"),
        (row([2**70]), "a number needs more than 64 bits"),
        (row([-1, 2**63]), "a number needs more than 64 bits"),
        ({"hash_ids": [1]}, "Object missing required field `input_length`"),
        ({"input_length": 1, "hash_ids": ["a"]}, "Expected `int`, got `str` - at `$.hash_ids["),
        ('{"input_length": 1, "hash_', "it is no JSON: Input data was truncated"),
        ('{"a":' * 100_000, "it is nested too deeply"),
        ({"messages": []}, "Object missing required field `hash_ids`"),
    ],
)
def test_a_malformed_line_is_skipped_and_told(tmp_path: Path, line: Any, why: str) -> None:
    path = tmp_path / "trace.jsonl"
    good = [row([0], 500), row([0, 1], 600), row([2], 512)]
    trace = read(path, *good, line, good[0])
    [(number, told)] = whys(trace)
    assert number == 4
    assert told.startswith(why)
    assert len(trace.requests) == 4
    assert str(trace.skipped[0]) == f"{path}:4: {told}"
    with pytest.raises(TraceError) as caught:
        read(path, *good, line, strict=True)
    assert str(caught.value) == f"{path}:4: {told}"


def test_skipped_lines_are_told_in_order(tmp_path: Path) -> None:
    trace = read(tmp_path / "t", row([0]), row([1, 2], 20), "nonsense", row([3, 4], 20), row([0]))
    assert [line for line, _ in whys(trace)] == [2, 3, 4]


@pytest.mark.parametrize("size", [1, 16, 64, 1024])
def test_the_lengths_tell_the_block_size(tmp_path: Path, size: int) -> None:
    lengths = random.Random(size).choices(range(1, 9000), k=20)
    rows = [row(list(range(-(-length // size))), length) for length in lengths]
    trace = read(tmp_path / "t", *rows, row([1, 2], 10**6))
    assert trace.tokens_per_symbol == size
    assert len(trace.requests) == 20
    assert [line for line, _ in whys(trace)] == [21]


def test_the_usual_block_size_is_taken_if_all_are_possible(tmp_path: Path) -> None:
    assert read(tmp_path / "t", row([1], 10)).tokens_per_symbol == 512
    assert read(tmp_path / "t", chat(1, -1, [1])).tokens_per_symbol == 16


def test_the_block_size_can_be_given(tmp_path: Path) -> None:
    trace = read(tmp_path / "t", row([1, 2], 190), row([1], 5), row([1], 513), hash_block_size=100)
    assert trace.tokens_per_symbol == 100
    assert whys(trace) == [(3, "the number of hash ids is 1, and must be ceil(513 / 100) = 6")]


def test_no_block_size_at_all(tmp_path: Path) -> None:
    lines = [row([1], 5000), row([1, 2, 3], 10), row([1, 2, 3, 4], 3), row([1] * 7, 10**6)]
    with pytest.raises(TraceError, match=r"no block size goes with the number of hash ids .*--hash-block"):
        read(tmp_path / "t", *lines)


def test_a_block_size_that_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no line of .* can be read as mooncake; line 1: the number"):
        read(tmp_path / "t", row([1]), "nonsense", hash_block_size=8)


def test_block_sizes_are_for_hash_ids(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--hash-block-size is for hash ids, and .* is tokens"):
        read(tmp_path / "t", [1, 2], hash_block_size=8)
    with pytest.raises(ConfigError, match="a hash id stands for at least 1 token, not 0"):
        read(tmp_path / "t", row([1]), hash_block_size=0)


@pytest.mark.parametrize("low", [2**31, 2**40, 2**63, -(2**40)])
def test_hashes_become_numbers_that_are_equal_where_they_are(tmp_path: Path, low: int) -> None:
    assert ids_of(read(tmp_path / "t", row([low, low + 5]), row([low, low + 1]))) == [[0, 2], [0, 1]]


def test_a_trace_in_two_files_is_one(tmp_path: Path) -> None:
    trace = joined(
        tmp_path,
        [row([0, 1], timestamp=0), row([0, 2], timestamp=50)],
        [row([0, 1, 3], timestamp=60), row([0, 4], timestamp=70)],
    )
    assert ids_of(trace) == [[0, 1], [0, 2], [0, 1, 3], [0, 4]]
    assert trace.requests[-1].arrival_s == 0.07
    assert trace.notes == []
    assert trace.name == "0.jsonl + 1.jsonl"


def test_two_traces_share_no_block(tmp_path: Path) -> None:
    trace = joined(tmp_path, [row([0, 7], timestamp=0), row([0], timestamp=50)], [row([0, 7]), row([9])])
    first, second, third, fourth = ids_of(trace)
    assert first[0] == second[0]
    assert not {*first, *second} & {*third, *fourth}
    assert [request.arrival_s for request in trace.requests] == [0, *[pytest.approx(0.05)] * 3]
    assert "these are 2 traces whose hash ids have nothing to do with each other" in trace.notes
    assert (
        f"the clock of {tmp_path / '1.jsonl'} starts over, so its requests come after all those before"
        in (trace.notes)
    )


def test_a_file_that_numbers_its_blocks_anew_is_another_trace(tmp_path: Path) -> None:
    epoch = 1_769_860_800_000
    day = [row([0, 1], timestamp=epoch), row([0, 2], timestamp=epoch + 5)]
    next_day = [row([0, 1], timestamp=epoch + 86_400_000)]
    trace = joined(tmp_path, day, next_day)
    assert not set(ids_of(trace)[0]) & set(ids_of(trace)[2])
    assert trace.requests[2].arrival_s == 86_400


def test_hashes_of_two_servers_meet(tmp_path: Path) -> None:
    big = 2**50
    trace = joined(tmp_path, [row([big, big + 1]), row([big + 2], timestamp=9)], [row([big, big + 3])])
    assert [ids[0] for ids in ids_of(trace)] == [0, 2, 0]


def test_the_published_trace(tmp_path: Path) -> None:
    path = Path(__file__).parents[2] / "../shared/traces/mooncake_conversation.jsonl"
    if not path.exists():
        pytest.skip("the published trace is not here")
    trace = read_traces([str(path)], strict=True)
    assert trace.tokens_per_symbol == 512
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert ids_of(trace) == [line["hash_ids"] for line in rows]
    assert sum(request.num_symbols for request in trace.requests) == 288_500
    assert trace.num_prompt_tokens == sum(line["input_length"] for line in rows)
