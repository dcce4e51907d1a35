import pytest

from headstart.lab.load.timing import Timing, Usage


def timing(*arrivals: float, reported: int | None = None) -> Timing:
    return Timing(10.0, arrivals, 5, 64, Usage(completion_tokens=reported))


def test_a_stream() -> None:
    stream = timing(10.5, 10.6, 10.8, 11.5)
    assert stream.first_token == pytest.approx(0.5)
    assert stream.gaps == pytest.approx([0.1, 0.2, 0.7])
    assert stream.end == 11.5
    assert stream.num_tokens == 4
    assert stream.rate == pytest.approx(3.0)


def test_the_servers_count_is_believed() -> None:
    assert timing(10.5, 11.5, reported=9).num_tokens == 9
    assert timing(10.5, 11.5, reported=9).rate == pytest.approx(8.0)


def test_one_token_has_no_rate() -> None:
    assert timing(10.5).rate is None
    assert timing(10.5).gaps == []


def test_tokens_in_a_span_of_time() -> None:
    stream = timing(10.5, 10.6, 10.8, 11.5)
    assert stream.tokens_between(10.5, 10.8) == 2, "one at the start came before it"
    assert stream.tokens_between(12, 13) == 0
    assert timing(10.5, 10.6, 10.8, 11.5, reported=8).tokens_between(10.5, 10.8) == 4
