from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest
import zstandard

from headstart.errors import ConfigError, LogError, TraceError
from headstart.lab.traces.read import read_traces
from headstart.lab.traces.texts import PromptReader
from headstart.lab.traces.trace import BadLine, TraceFormat
from tests.trace_files import read, tokens, unused, whys, write


def type_in(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
def test_standard_input_packed_or_not(monkeypatch: pytest.MonkeyPatch, pack: type[bytes]) -> None:
    type_in(monkeypatch, pack(b"[1, 2]\n[3]\noops\n"))
    trace = read_traces(["-"])
    assert [tokens(request) for request in trace.requests] == [[1, 2], [3]]
    assert trace.name == trace.requests[0].file == "standard input"
    assert str(trace.skipped[0]).startswith("standard input:3: it is no JSON: ")


def test_packing_is_known_by_the_bytes_and_not_by_the_name(tmp_path: Path) -> None:
    packed = tmp_path / "trace.jsonl"
    packed.write_bytes(gzip.compress(b"[1, 2]\n"))
    plain = tmp_path / "trace.jsonl.gz"
    plain.write_bytes(b"[1, 2]\n")
    assert [tokens(one) for one in read_traces([str(packed), str(plain)]).requests] == [[1, 2], [1, 2]]


def test_files_are_read_one_after_the_other(tmp_path: Path) -> None:
    first, second = write(tmp_path / "b.jsonl", [1], [2]), write(tmp_path / "a.jsonl", [3])
    trace = read_traces([first, second, first])
    assert [tokens(request) for request in trace.requests] == [[1], [2], [3], [1], [2]]
    assert [request.file for request in trace.requests] == [first, first, second, first, first]
    assert trace.name == "b.jsonl + a.jsonl + b.jsonl"


def test_files_are_of_one_format(tmp_path: Path) -> None:
    ids = write(tmp_path / "a.jsonl", [1])
    chat = write(tmp_path / "b.jsonl", {"prompt": [1]})
    with pytest.raises(
        ConfigError, match=r"a\.jsonl is tokens and .*b\.jsonl is openai: traces that are read"
    ):
        read_traces([ids, chat])


def test_lines_of_another_format_are_faults(tmp_path: Path) -> None:
    trace = read(tmp_path / "t", [1], {"prompt": [1]}, {"input_length": 1, "hash_ids": [0]}, {"tokens": [2]})
    assert [tokens(request) for request in trace.requests] == [[1], [2]]
    assert [line for line, _ in whys(trace)] == [2, 3]


def test_a_named_format_is_taken_at_its_word(tmp_path: Path) -> None:
    line = {"prompt_token_ids": [1], "prompt": [2]}
    assert tokens(read(tmp_path / "t", line).requests[0]) == [1]
    assert tokens(read(tmp_path / "t", line, format=TraceFormat.OPENAI).requests[0]) == [2]


def test_a_file_without_a_good_line_is_an_error(tmp_path: Path) -> None:
    good, bad = write(tmp_path / "good", [1]), write(tmp_path / "bad", "", [2**40], {"tokens": "a"})
    with pytest.raises(TraceError) as caught:
        read_traces([good, bad], format=TraceFormat.TOKENS)
    assert str(caught.value).startswith(f"no line of {bad} can be read as tokens; line 2: Expected `int`")


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "empty")
    with pytest.raises(TraceError, match="empty is empty"):
        read_traces([path])
    with pytest.raises(TraceError, match=f"^no line of {path} can be read as mooncake$"):
        read_traces([path], format=TraceFormat.MOONCAKE)


def test_strict_stops_at_the_first_fault(tmp_path: Path) -> None:
    path = write(tmp_path / "t", [1], [2**40], [3], "nonsense")
    assert [bad.line for bad in read_traces([path]).skipped] == [2, 4]
    with pytest.raises(TraceError, match=rf"^{path}:2: Expected `int` <= 2147483647"):
        read_traces([path], strict=True)


def test_faults_of_all_files_are_told_in_order(tmp_path: Path) -> None:
    first, second = write(tmp_path / "b", [1], "one"), write(tmp_path / "a", "two", [1])
    assert [(bad.file, bad.line) for bad in read_traces([first, second]).skipped] == [(first, 2), (second, 1)]


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="nowhere cannot be read: No such file or directory"):
        read_traces([str(tmp_path / "nowhere")])
    with pytest.raises(LogError, match="cannot be read: Is a directory"):
        read_traces([str(tmp_path)])


def test_what_cannot_be_asked_for() -> None:
    with pytest.raises(ConfigError, match="there is no trace to read"):
        read_traces([])
    with pytest.raises(ConfigError, match="standard input"):
        read_traces(["-", "-"])


def test_the_tokenizer_is_asked_for_once_and_only_for_text(tmp_path: Path, tiny_reader: PromptReader) -> None:
    asked = []

    def reader() -> PromptReader:
        asked.append(1)
        return tiny_reader

    path = write(tmp_path / "t", {"prompt": "a"}, {"prompt": "b"})
    read_traces([path, path], reader=reader)
    assert len(asked) == 1
    read_traces([write(tmp_path / "ids", {"prompt": [1]})], reader=unused)


def test_progress_is_of_all_files_together(tmp_path: Path) -> None:
    paths = [write(tmp_path / str(number), *[[number]] * 5000) for number in range(3)]
    told: list[int] = []
    read_traces(paths, progress=told.append)
    assert told == sorted(set(told))
    assert told[-1] == sum(Path(path).stat().st_size for path in paths)


def test_a_bad_line_says_where_and_why() -> None:
    assert str(BadLine("log.jsonl", 17, "it is no JSON")) == "log.jsonl:17: it is no JSON"
