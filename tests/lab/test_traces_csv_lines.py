from __future__ import annotations

from pathlib import Path

import pytest

from headstart.errors import TraceError
from headstart.lab.traces.content import require_content
from headstart.lab.traces.read import read_traces
from headstart.lab.traces.trace import TraceFormat
from tests.trace_files import read, whys

AZURE = ("TIMESTAMP,ContextTokens,GeneratedTokens",)
BURSTGPT = ("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",)


def test_azure(tmp_path: Path) -> None:
    trace = read(
        tmp_path / "azure.csv",
        *AZURE,
        "2023-11-16 18:15:46.6805900,374,44",
        "2023-11-16 18:15:50.9951690,396,109",
    )
    assert (trace.format, trace.has_content, trace.has_times) == ("azure", False, True)
    first, second = trace.requests
    assert (first.num_prompt_tokens, first.num_output_tokens, first.arrival_s) == (374, 44, 0)
    assert second.arrival_s == pytest.approx(4.314579, abs=1e-6)
    assert first.symbols == b""
    assert (second.num_prompt_tokens, second.line) == (396, 3)
    newer = read(tmp_path / "azure.csv", *AZURE, "2024-05-10 00:00:00.009930+00:00,2162,5")
    assert newer.requests[0].num_prompt_tokens == 2162


def test_burstgpt(tmp_path: Path) -> None:
    trace = read(
        tmp_path / "b.csv",
        *BURSTGPT,
        "5,ChatGPT,472,18,490,Conversation log",
        "45,GPT-4,1087,0,1087,API log",
    )
    assert (trace.format, trace.has_content) == ("burstgpt", False)
    assert [request.arrival_s for request in trace.requests] == [0, 40]
    assert [request.num_output_tokens for request in trace.requests] == [18, 0]
    assert [request.session for request in trace.requests] == [None, None]


def test_burstgpt_with_sessions(tmp_path: Path) -> None:
    header = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
    trace = read(tmp_path / "b.csv", header, "5.5,17,0.2,ChatGPT,4,8,12,Conversation log")
    assert trace.requests[0].session == "17"


@pytest.mark.parametrize("start", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_as_spreadsheets_write_it(tmp_path: Path, start: str, end: str) -> None:
    rows = [start + '"TIMESTAMP","ContextTokens","GeneratedTokens"', "", '"2023-11-16 18:15:46","374","44"']
    path = tmp_path / "azure.csv"
    path.write_bytes(end.join(rows).encode())
    trace = read_traces([str(path)], strict=True)
    assert [request.num_prompt_tokens for request in trace.requests] == [374]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("2023-11-16 18:15:46,374", "it has 2 values for 3 columns"),
        ("2023-11-16 18:15:46,374,44,", "it has 4 values for 3 columns"),
        ("yesterday,374,44", "its time is neither a number nor a date"),
        (",374,44", "its time is neither a number nor a date"),
        ("2023-11-16 18:15:46,many,44", "contexttokens must be a number of tokens, not 'many'"),
        ("2023-11-16 18:15:46,374,-1", "generatedtokens must be a number of tokens, not '-1'"),
        ("2023-11-16 18:15:46,5,9999999999", "generatedtokens must be a number of tokens"),
        ("2023-11-16 18:15:46,5,99999999999", "generatedtokens must be a number of tokens"),
        ("2023-11-16 18:15:46,0,1", "a prompt has at least one token"),
        ('2023-11-16 18:15:46,374,"44', "unexpected end of data"),
    ],
)
def test_a_malformed_line(tmp_path: Path, line: str, why: str) -> None:
    good = "2023-11-16 18:15:46.6805900,374,44"
    trace = read(tmp_path / "azure.csv", *AZURE, good, line, good)
    [(number, told)] = whys(trace)
    assert number == 3
    assert told.startswith(why)


def test_a_named_format_needs_its_header(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="must begin with a header that has the columns timestamp, context"):
        read(tmp_path / "a.csv", "2023-11-16 18:15:46,374,44", format=TraceFormat.AZURE)


def test_no_hits_without_content(tmp_path: Path) -> None:
    azure = read(tmp_path / "azure.csv", *AZURE, "2023-11-16 18:15:46,374,44")
    with pytest.raises(TraceError) as caught:
        require_content(azure)
    assert str(caught.value) == (
        "azure.csv is of the azure format, which tells how long prompts were and not what was in them: two "
        "of one length may share everything or nothing, so no hit rate can be told from it; that takes "
        "prompts, token ids or hash ids"
    )
    require_content(read(tmp_path / "tokens.jsonl", [1, 2]))
