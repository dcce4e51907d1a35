import pytest

from headstart.lab.load.sse import EventDecoder

STREAM = (
    ": hello\n\n"
    'data: {"text": "n\u00f6on\u2028\u0085\u000b"}\n\n'
    "event: message\nid: 7\ndata: first\ndata:second\n\n"
    "data:\n\n"
    "data: [DONE]\n\n"
)
EVENTS = ['{"text": "n\u00f6on\u2028\u0085\u000b"}', "first\nsecond", "", "[DONE]"]


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 64, 4096])
def test_events_are_the_same_however_the_bytes_are_cut(size: int, line_end: str) -> None:
    stream = STREAM.replace("\n", line_end).encode()
    decoder = EventDecoder()
    events = [event for at in range(0, len(stream), size) for event in decoder.push(stream[at : at + size])]
    assert [event.decode() for event in events] == EVENTS


def test_an_event_comes_with_the_chunk_that_completes_it() -> None:
    decoder = EventDecoder()
    assert decoder.push(b"data: a\n") == []
    assert decoder.push(b"\ndata: b\n\nda") == [b"a", b"b"]
    assert decoder.push(b"ta: c\n\n") == [b"c"]


def test_an_unfinished_event_is_never_given_out() -> None:
    assert EventDecoder().push(b"data: half\n") == []
