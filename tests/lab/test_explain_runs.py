from __future__ import annotations

from array import array

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headstart.lab.explain.runs import GRAM, Tokens, differences, find_run, grams, tokens_of

TEXT = list(range(1000, 1400))


def tokens(values: list[int]) -> Tokens:
    return tokens_of(array("i", values).tobytes())


def run(*values: int) -> bytes:
    return array("i", values).tobytes()


def test_the_same_tokens_have_the_same_gram_at_any_place() -> None:
    one, other = grams(tokens(TEXT)), grams(tokens([1, 2, 3, *TEXT]))
    assert len(one) == len(TEXT) - GRAM + 1
    assert np.array_equal(one, other[3:])
    assert len(set(one.tolist())) == len(one)
    assert len(grams(tokens(TEXT[: GRAM - 1]))) == 0


def test_a_run_is_found_at_whole_tokens_only() -> None:
    # The bytes of 0x00000100, 0x00000001 hold those of 1 at an odd place, too.
    assert find_run(run(0x100, 1), run(1)) == 1
    assert find_run(run(5, 6, 7, 6, 7), run(6, 7)) == 1
    assert find_run(run(5, 6, 7, 6, 7), run(6, 7), 2) == 3
    assert find_run(run(5, 6, 7), run(8)) is None


def test_an_equal_text_has_no_difference() -> None:
    assert differences(tokens(TEXT), tokens(TEXT)) == []
    assert differences(tokens(TEXT), tokens(TEXT[:100])) == []
    assert differences(tokens([]), tokens(TEXT)) == []


def test_what_never_meets_again_is_no_difference() -> None:
    assert differences(tokens([*TEXT[:50], *range(50)]), tokens([*TEXT[:50], *range(100, 150)])) == []


def test_two_variables_are_two_differences() -> None:
    a = [*TEXT[:40], 1, 2, *TEXT[40:140], 3, *TEXT[140:]]
    b = [*TEXT[:40], 7, *TEXT[40:140], *TEXT[140:]]
    first, second = differences(tokens(a), tokens(b))
    assert (first.start, first.stop, first.other_start, first.other_stop, first.run) == (40, 42, 40, 41, 100)
    assert (second.start, second.stop, second.other_start, second.other_stop) == (142, 143, 141, 141)
    assert second.run == 260


@given(
    head=st.integers(0, 60),
    one=st.lists(st.integers(0, 9), max_size=30),
    other=st.lists(st.integers(10, 19), max_size=30),
)
def test_a_difference_is_what_was_put_in(head: int, one: list[int], other: list[int]) -> None:
    tail = TEXT[head:]
    found = differences(tokens([*TEXT[:head], *one, *tail]), tokens([*TEXT[:head], *other, *tail]))
    if not one and not other:
        assert found == []
        return
    [difference] = found
    assert (difference.start, difference.stop) == (head, head + len(one))
    assert (difference.other_start, difference.other_stop) == (head, head + len(other))
    assert difference.run == len(tail)


@given(st.lists(st.integers(0, 3), max_size=120), st.lists(st.integers(0, 3), max_size=120))
def test_equal_runs_are_equal_whatever_repeats(one: list[int], other: list[int]) -> None:
    a, b = tokens(one), tokens(other)
    end = other_end = 0
    for difference in differences(a, b):
        assert difference.start >= end
        assert difference.other_start >= other_end
        end, other_end = difference.stop + difference.run, difference.other_stop + difference.run
        assert np.array_equal(a[difference.stop : end], b[difference.other_stop : other_end])
        assert difference.run >= GRAM
