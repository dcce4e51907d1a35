"""Children by key, against a sorted list of all keys."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headstart.cache.children import Children
from headstart.cache.tokens import TOKEN_BYTES

key = st.lists(st.sampled_from([b"\0\0\0\1", b"\0\0\0\2", b"\0\0\1\0"]), min_size=1, max_size=3).map(b"".join)


@given(st.lists(st.tuples(key, st.booleans()), max_size=30), key)
def test_it_answers_as_a_sorted_list_would(changes: list[tuple[bytes, bool]], asked: bytes) -> None:
    children: Children[int] = Children()
    expected: dict[bytes, int] = {}
    for number, (each, is_new) in enumerate(changes):
        if is_new:
            children.put(each, number)
            expected[each] = number
        elif each in expected:
            children.drop(each)
            del expected[each]
    assert children == expected
    alike = sorted(each for each in expected if each[:TOKEN_BYTES] == asked[:TOKEN_BYTES])
    upwards = [each for each in alike if each >= asked]
    downwards = [each for each in reversed(alike) if each < asked]
    found = [[*side] for side in children.sides(asked)]
    assert [side for side in found if side] == [side for side in (upwards, downwards) if side]
    longer = [each for each in expected if each.startswith(asked) and each != asked]
    assert children.has_longer(asked) == bool(longer)
    if asked in expected:
        shorter = [each for each in expected if asked.startswith(each) and each != asked]
        assert children.shorter(asked) == sorted(shorter, key=len)
