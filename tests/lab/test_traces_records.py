from __future__ import annotations

import gzip
import io
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from headstart.errors import TraceError
from headstart.lab.traces import records
from headstart.lab.traces.faults import Faults
from headstart.lab.traces.records import Record, TraceFile

PACKED: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}


def lines_of(data: bytes, faults: Faults | None = None) -> list[tuple[int, bytes]]:
    return [
        tuple(one) for one in TraceFile(io.BytesIO(data), "a file").records(faults or Faults(strict=True))
    ]


@pytest.mark.parametrize("pack", PACKED.values(), ids=PACKED)
@given(lines=st.lists(st.binary().map(lambda line: line.replace(b"\n", b"") + b"."), min_size=1))
def test_what_was_written_is_read(pack: Callable[[bytes], bytes], lines: list[bytes]) -> None:
    lines[0] = b"first " + lines[0]  # a text, neither packed nor a JSON list nor UTF-16
    found = lines_of(pack(b"\n".join(lines)))
    blank = b" \t\r\x00"
    assert found == [(number, line.strip(blank)) for number, line in enumerate(lines, 1)]


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_several_members_are_one_file(pack: Callable[[bytes], bytes]) -> None:
    assert lines_of(pack(b"one\nt") + pack(b"wo\n") + pack(b"three")) == [
        (1, b"one"),
        (2, b"two"),
        (3, b"three"),
    ]
    assert lines_of(pack(b"one\n") + b"\0" * 512) == [(1, b"one")]


def test_zstd_frames_that_say_nothing() -> None:
    silent = b"\x5e\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"
    assert lines_of(silent + zstandard.compress(b"one\n") + silent) == [(1, b"one")]


@pytest.mark.parametrize("pack", PACKED.values(), ids=PACKED)
def test_lines_that_chunks_cut(pack: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_CHUNK", 4)
    data = b"".join(b"line %d\n" % number for number in range(100))
    assert lines_of(pack(data)) == [(number + 1, b"line %d" % number) for number in range(100)]


def test_the_last_line_needs_no_end() -> None:
    assert lines_of(b"one\ntwo") == lines_of(b"one\ntwo\n") == [(1, b"one"), (2, b"two")]


def test_windows_line_ends_a_byte_order_mark_and_blank_lines() -> None:
    assert lines_of(b"\xef\xbb\xbfone\r\n\r\n  \r\ntwo\r\n") == [(1, b"one"), (4, b"two")]


def test_nuls_behind_a_crash_are_no_line() -> None:
    assert lines_of(b"one\n" + b"\0" * 4096) == [(1, b"one")]


def test_utf16_is_named() -> None:
    with pytest.raises(TraceError, match="a file is UTF-16; traces are read as UTF-8"):
        lines_of("one\n".encode("utf-16"))


def test_an_endless_line_costs_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_LONGEST_LINE", 10)
    monkeypatch.setattr(records, "_CHUNK", 4)
    faults = Faults()
    assert lines_of(b"one\n" + b"x" * 50 + b"\n0123456789\n" + b"y" * 11, faults) == [
        (1, b"one"),
        (3, b"0123456789"),
    ]
    assert [(bad.line, bad.why) for bad in faults.found] == [
        (2, "the line has more than 10 bytes"),
        (4, "the line has more than 10 bytes"),
    ]


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_a_packed_file_that_breaks_off_is_read_as_far_as_it_goes(pack: Callable[[bytes], bytes]) -> None:
    faults = Faults()
    found = lines_of(pack(b"one\ntwo\n") + pack(b"three\nfour\n" * 100)[:-6], faults)
    assert found[:2] == [(1, b"one"), (2, b"two")]
    assert faults.found[-1].why == "the packed file breaks off here"
    with pytest.raises(TraceError, match=r"^a file:\d+: the packed file breaks off here$"):
        lines_of(pack(b"one\n")[:-3])


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_a_packed_file_that_is_damaged_is_read_as_far_as_it_goes(pack: Callable[[bytes], bytes]) -> None:
    faults = Faults()
    assert lines_of(pack(b"one\ntwo\n") + b"rubbish", faults) == [(1, b"one"), (2, b"two")]
    [bad] = faults.found
    assert bad.line == 3
    assert bad.why.startswith("the packed file is damaged from here on: ")


def test_a_json_list_has_elements_with_their_lines() -> None:
    data = b'\xef\xbb\xbf [\n  {"a": 1},\n  {"a":\n 1}, {"a": 1},\n\n  {"b": "[{"}\n]\n'
    assert lines_of(data) == [(2, b'{"a": 1}'), (3, b'{"a":\n 1}'), (4, b'{"a": 1}'), (6, b'{"b": "[{"}')]
    assert lines_of(b"[[1, 2],\n[3]]") == [(1, b"[1, 2]"), (2, b"[3]")]


def test_lines_of_elements_that_hold_their_successor() -> None:
    data = b'[{"x":\n\n{"a": 1}},\n{"a": 1}]'
    assert [line for line, _ in lines_of(data)] == [1, 4]


def test_progress_of_a_json_list_is_that_of_its_elements() -> None:
    data = b"[" + b",\n".join(b'{"a": %d}' % number for number in range(10_000)) + b"]"
    told: list[int] = []
    elements = TraceFile(io.BytesIO(data), "a file", told.append).records(Faults())
    for _ in range(5_000):
        next(elements)
    assert told[-1] == pytest.approx(len(data) / 2, rel=0.2)
    assert len(list(elements)) == 5_000
    assert told[-1] == len(data)
    assert told == sorted(told)


def test_lists_on_lines_are_lines() -> None:
    assert lines_of(b"[1, 2]\n[3]\n") == [(1, b"[1, 2]"), (2, b"[3]")]


@pytest.mark.parametrize("data", [b'[{"a": 1}', b'[{"a": 1}]\n[{"a": 2}]', b"[{]", b"[[[" + b"[" * 100_000])
def test_a_broken_json_list_is_an_error(data: bytes) -> None:
    with pytest.raises(TraceError, match="a file begins like a JSON list and is none: "):
        lines_of(data)


def test_an_empty_file_has_no_records() -> None:
    assert lines_of(b"") == lines_of(b"\n \n") == lines_of(gzip.compress(b"")) == []


def test_progress_is_told_in_bytes_as_they_lie_there() -> None:
    data = gzip.compress(b"x" * 1_000_000)
    told: list[int] = []
    file = TraceFile(io.BytesIO(data), "a file", told.append, already_read=100)
    assert list(file.records(Faults())) == [Record(1, b"x" * 1_000_000)]
    assert told == sorted(told)
    assert told[-1] == file.num_read == 100 + len(data)
