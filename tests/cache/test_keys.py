from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headstart.cache import Adapter, CacheRequest, Namespace
from headstart.cache.hashing import BlockHasher
from headstart.cache.keys import SHARED
from headstart.errors import RequestError

TOKENS = [0, 1, 255, 256, 65536, 2**31 - 1, -1, -(2**31)]
RUN = b"".join(token.to_bytes(4, "little", signed=True) for token in TOKENS)


# Namespaces

LETTERS = ["X", "Y", "XY", "lora", "cache_salt"]
ADAPTERS = [None, *(Adapter(name, digest) for name in LETTERS for digest in LETTERS)]
NAMESPACES = [Namespace(adapter, salt) for adapter in ADAPTERS for salt in [None, *LETTERS]]


def test_namespaces_that_differ_in_a_part_differ_everywhere() -> None:
    hasher = BlockHasher(2)  # items 5 and 6, case 3: no part can be taken for another
    keys = [namespace.extra_keys(0) for namespace in NAMESPACES]
    digests = [hasher.block_digest(None, [1, 2], key) for key in keys]
    for one, other in itertools.combinations(range(len(NAMESPACES)), 2):
        assert NAMESPACES[one] != NAMESPACES[other]
        assert keys[one] != keys[other]
    assert len(set(NAMESPACES)) == len(set(digests)) == len(NAMESPACES) == 26 * 6


def test_equal_namespaces_are_one_key() -> None:
    for namespace in NAMESPACES:
        same = Namespace(adapter=namespace.adapter, salt=namespace.salt)
        assert same == namespace
        assert hash(same) == hash(namespace)
        assert same.extra_keys(0) == namespace.extra_keys(0)


def test_the_salt_enters_the_first_block_and_the_adapter_every_one() -> None:
    namespace = Namespace(Adapter("a", "digest"), "s")
    assert namespace.extra_keys(0) == (("lora", "a", "digest"), ("cache_salt", "s"))  # item 9: in this order
    assert namespace.extra_keys(1) == namespace.extra_keys(7) == (("lora", "a", "digest"),)
    assert Namespace(salt="s").extra_keys(1) is None
    assert SHARED.extra_keys(0) is None  # item 4
    assert Namespace() == SHARED


@pytest.mark.parametrize("salt", ["", 0, 7, b"salt", ["s"], True, "half \ud800 of a pair"])
def test_a_salt_is_a_string_that_says_something(salt: Any) -> None:
    with pytest.raises(RequestError) as caught:  # case 22
        Namespace(salt=salt)
    assert str(caught.value) == f"cache_salt must be a non-empty string or absent, got {salt!r}"
    assert (caught.value.param, caught.value.code, caught.value.status) == (
        "cache_salt",
        "invalid_value",
        400,
    )


# Tokens


@pytest.mark.parametrize(
    "make",
    [
        list,
        tuple,
        iter,
        lambda tokens: (token for token in tokens),
        lambda tokens: [np.int64(token) for token in tokens],
        lambda tokens: array("i", tokens),
        lambda tokens: array("q", tokens),
        lambda tokens: memoryview(array("i", tokens)),
        lambda tokens: memoryview(array("q", tokens)),
        lambda tokens: np.array(tokens, dtype=np.int32),
        lambda tokens: np.array(tokens, dtype=np.int64),
        lambda tokens: np.repeat(np.array(tokens, dtype=np.int32), 2)[::2],  # not contiguous
        lambda tokens: np.array(tokens, dtype=np.int32)[::-1][::-1],
        lambda tokens: RUN,
        lambda tokens: bytearray(RUN),
    ],
)
def test_tokens_may_come_in_any_kind_of_list(make: Callable[[list[int]], Any]) -> None:
    request = CacheRequest("r", make(TOKENS))
    assert request.num_tokens == len(TOKENS)
    assert request.token_ids() == TOKENS
    assert request.run(0, len(TOKENS)) == RUN


def test_small_integer_types_are_tokens_too() -> None:
    assert CacheRequest("r", np.array([1, -2], dtype=np.int16)).token_ids() == [1, -2]
    assert CacheRequest("r", np.array([1, 200], dtype=np.uint8)).token_ids() == [1, 200]
    assert CacheRequest("r", range(3)).token_ids() == [0, 1, 2]


@pytest.mark.parametrize("make", [list, bytearray, lambda tokens: array("i", tokens), np.array])
def test_the_callers_list_stays_the_callers(make: Callable[[list[int]], Any]) -> None:
    tokens = make([1, 2, 3, 4])
    request = CacheRequest("r", tokens)
    before = request.token_ids()
    tokens[0] = 9
    request.append(5)
    assert request.token_ids() == [*before, 5]
    assert len(tokens) == 4


@pytest.mark.parametrize(
    "tokens",
    [
        None,
        7,
        "abc",
        [1, "2"],
        [1.0],
        [None],
        [[1, 2], [3, 4]],
        [2**31],
        [-(2**31) - 1],
        b"12345",
        bytearray(b"123"),
        array("f", [1.0]),
        np.array([1.0]),
        np.array([2**31]),
        np.array([[1, 2], [3, 4]]),
        np.array(5),
        np.array(5, dtype=np.int32),
        np.array([[1, 2], [3, 4]], dtype=np.int32),
        np.array([1, 2], dtype=">i4"),
        np.array([1], dtype=np.float16),
        np.array([1], dtype=object),
    ],
)
def test_what_is_not_a_list_of_int32_is_refused(tokens: Any) -> None:
    with pytest.raises(RequestError, match=r"^token ids must be integers of 32 bits: ") as caught:
        CacheRequest("r", tokens)
    assert (caught.value.param, caught.value.code) == ("prompt", "invalid_value")


def test_bytes_that_are_no_whole_tokens_are_counted() -> None:
    with pytest.raises(RequestError, match="5 bytes are no whole number of them"):
        CacheRequest("r", b"12345")


def test_an_empty_prompt_has_no_tokens() -> None:
    nothing: list[Any] = [[], b"", array("i"), np.array([], dtype=np.int32)]
    for tokens in nothing:
        request = CacheRequest("r", tokens)
        assert (request.num_tokens, request.token_ids(), request.run(0, 0)) == (0, [], b"")


def test_appended_tokens_follow_the_prompt() -> None:
    request = CacheRequest("r", TOKENS[:3])
    for token in TOKENS[3:]:
        request.append(token)
    assert request.token_ids() == TOKENS
    assert request.token_ids(2) == TOKENS[2:]
    assert request.token_ids(1, 3) == TOKENS[1:3]
    assert request.run(1, 3) == RUN[4:12]
    assert repr(request) == "CacheRequest('r', 8 tokens, Namespace(adapter=None, salt=None))"
