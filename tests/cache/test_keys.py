from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headstart.cache import (
    Adapter,
    CacheConfig,
    CacheRequest,
    KVCacheManager,
    MediaSpan,
    Namespace,
    PromptEmbeds,
)
from headstart.cache.hashing import ALGORITHMS, BlockHasher
from headstart.cache.keys import SHARED
from headstart.errors import RequestError

TOKENS = [0, 1, 255, 256, 65536, 2**31 - 1, -1, -(2**31)]
RUN = b"".join(token.to_bytes(4, "little", signed=True) for token in TOKENS)


# Namespaces

LETTERS = ["X", "Y", "XY", "lora", "cache_salt"]
ADAPTERS = [None, *(Adapter(name, digest) for name in LETTERS for digest in LETTERS)]
NAMESPACES = [Namespace(adapter, salt) for adapter in ADAPTERS for salt in [None, *LETTERS]]


def asking(namespace: Namespace, tokens: Any = (1, 2), **content: Any) -> CacheRequest:
    return CacheRequest("r", tokens, namespace=namespace, **content)


def test_namespaces_that_differ_in_a_part_differ_everywhere() -> None:
    hasher = BlockHasher(2)  # items 5 and 6, case 3: no part can be taken for another
    keys = [asking(namespace).extra_keys(0, 2) for namespace in NAMESPACES]
    digests = [hasher.block_digest(None, [1, 2], key) for key in keys]
    for one, other in itertools.combinations(range(len(NAMESPACES)), 2):
        assert NAMESPACES[one] != NAMESPACES[other]
        assert keys[one] != keys[other]
    assert len(set(NAMESPACES)) == len(set(digests)) == len(NAMESPACES) == 26 * 6
    assert len({namespace.identity for namespace in NAMESPACES}) == len(NAMESPACES)


def test_equal_namespaces_are_one_key() -> None:
    for namespace in NAMESPACES:
        same = Namespace(adapter=namespace.adapter, salt=namespace.salt)
        assert same == namespace
        assert hash(same) == hash(namespace)
        assert asking(same).extra_keys(0, 2) == asking(namespace).extra_keys(0, 2)
        assert same.identity == namespace.identity


def test_the_salt_enters_the_first_block_and_the_adapter_every_one() -> None:
    request = asking(Namespace(Adapter("a", "digest"), "s"))
    assert request.extra_keys(0, 1) == (("lora", "a", "digest"), ("cache_salt", "s"))  # item 9: in this order
    assert request.extra_keys(1, 1) == request.extra_keys(7, 1) == (("lora", "a", "digest"),)
    assert asking(Namespace(salt="s")).extra_keys(1, 1) is None
    assert asking(SHARED).extra_keys(0, 1) is None  # item 4
    assert Namespace() == SHARED


@pytest.mark.parametrize("salt", ["", 0, 7, b"salt", ["s"], True, "half \ud800 of a pair"])
def test_a_salt_is_a_string_that_says_something(salt: Any) -> None:
    with pytest.raises(RequestError) as caught:  # case 22
        Namespace(salt=salt)
    assert str(caught.value) == "cache_salt must be a non-empty string of valid Unicode or absent"
    assert (caught.value.param, caught.value.code, caught.value.status) == (
        "cache_salt",
        "invalid_value",
        400,
    )


# Media and embeddings

P, Q = "0" * 60 + "beef", "1" * 60 + "beef"  # case 10: equal in the last 16 bits


def test_each_touched_block_carries_the_image_with_its_own_offset() -> None:
    image = MediaSpan(P, offset=20, length=41)  # item 7, case 12: tokens 20 to 60, blocks 1 to 3
    request = CacheRequest("r", [9] * 80, media=[image])
    keys = [request.extra_keys(index, 16) for index in range(5)]
    assert keys == [None, (("mm", P, 4),), (("mm", P, -12),), (("mm", P, -28),), None]
    two = CacheRequest("r", [9] * 48, media=[MediaSpan(P, 11, 10), MediaSpan(Q, 30, 18)])
    keys = [two.extra_keys(index, 16) for index in range(3)]
    assert keys == [(("mm", P, 11),), (("mm", P, -5), ("mm", Q, 14)), (("mm", Q, -2),)]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_image_swapped_or_moved_changes_all_from_its_first_block_on(algorithm: str) -> None:
    tokens = [1, 2, 3, 4, 1, 1, 99, 99, 99, 99, 99, 1, 1, 99, 99, 99, 1, 1, 1, 1]  # case 12, item 8
    hasher = BlockHasher(4, algorithm=algorithm)

    def chain(*media: MediaSpan) -> list[bytes]:
        return hasher.extend(CacheRequest("r", tokens, media=media), 5)

    plain = chain(MediaSpan(P, 6, 5), MediaSpan(Q, 13, 3))
    assert chain(MediaSpan(P, 6, 5), MediaSpan(Q, 13, 3)) == plain
    others = {
        "first swapped": (1, chain(MediaSpan(Q, 6, 5), MediaSpan(P, 13, 3))),
        "moved by one": (1, chain(MediaSpan(P, 7, 5), MediaSpan(Q, 13, 3))),
        "second changed": (3, chain(MediaSpan(P, 6, 5), MediaSpan(P, 13, 3))),
        "second moved": (3, chain(MediaSpan(P, 6, 5), MediaSpan(Q, 12, 3))),
        "first gone": (1, chain(MediaSpan(Q, 13, 3))),
    }
    for first, other in others.values():
        equal = [one == another for one, another in zip(plain, other, strict=True)]
        assert equal == [index < first for index in range(5)]


CONTENTS: list[dict[str, Any]] = [
    {"namespace": Namespace(adapter, salt), "media": media, "prompt_embeds": embeds, "tokens": tokens}
    for adapter in (None, Adapter(P, P), Adapter(P, Q))
    for salt in (None, P, Q)
    for media in (
        (),
        (MediaSpan(P, 0, 2),),
        (MediaSpan(Q, 0, 2),),
        (MediaSpan(P, 1, 2),),
        (MediaSpan(Q, 1, 2),),
    )
    for embeds in (None, PromptEmbeds(b"aabb", 2), PromptEmbeds(b"aabc", 2), PromptEmbeds(b"aabbcc", 3))
    for tokens in ((7, 7, 7, 7, 7), (7, 7, 7, 8, 7))
]


@pytest.mark.parametrize("index", ["radix", "hash"])
def test_different_content_is_another_key_and_equal_content_the_same(index: Any) -> None:
    manager = KVCacheManager(CacheConfig(len(CONTENTS) * 2, block_size=4, index=index))  # case 3, item 6
    tables: list[list[int]] = []
    for number, content in enumerate(CONTENTS):
        request = asking(**content)
        found = manager.get_computed_blocks(request).num_tokens
        assert found < 4, CONTENTS[number]
        assert manager.allocate_slots(request, 5) is not None
        manager.commit_step()
        tables.append(manager.block_table("r"))
        manager.free(request)
    for content, table in zip(CONTENTS, tables, strict=True):
        hit = manager.get_computed_blocks(asking(**content))
        assert (hit.block_ids, hit.num_tokens) == (table[:1], 4)
    assert manager.num_collisions == 0
    manager.check()


@pytest.mark.parametrize("index", ["radix", "hash"])
def test_behind_a_shorter_image_the_same_token_is_text(index: Any) -> None:
    manager = KVCacheManager(CacheConfig(8, block_size=4, index=index))
    tokens = [7] * 6  # an image's length is in no digest of vLLM's, so the hash index must compare it
    long, short = (CacheRequest("r", tokens, media=[MediaSpan(P, 0, length)]) for length in (4, 2))
    for request in (long, short):
        assert manager.get_computed_blocks(request).num_tokens == 0
        assert manager.allocate_slots(request, 6) is not None
        manager.commit_step()
        manager.free(request)
        manager.check()
    assert manager.num_collisions == (index == "hash")
    assert manager.get_computed_blocks(long).num_tokens == (5 if index == "radix" else 4)


def test_a_request_begins_like_another_if_its_content_does() -> None:
    for number, content in enumerate(CONTENTS):
        request = asking(**content)
        same = [asking(**other).begins_like(request, 5) for other in CONTENTS]
        assert same == [other == number for other in range(len(CONTENTS))]
        assert asking(**content | {"tokens": [*content["tokens"], 9]}).begins_like(request, 5)
    one = asking(SHARED, range(8), media=[MediaSpan(P, 4, 2)])
    assert one.begins_like(asking(SHARED, range(8)), 4)
    assert not one.begins_like(asking(SHARED, range(8)), 5)


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
    request = CacheRequest("r", [1], namespace=Namespace(salt="canary"))
    assert repr(request) == "CacheRequest('r', 1 tokens, Namespace(adapter=None, salt=…))"


def test_a_namespaces_identity_tells_what_its_representation_hides() -> None:
    spaces = [
        Namespace(),
        Namespace(salt="one"),
        Namespace(salt="two"),
        Namespace(Adapter("one", "")),
        Namespace(Adapter("one", "d")),
        Namespace(Adapter("one", "d"), "one"),
    ]
    assert len({space.identity for space in spaces}) == len(spaces)
    assert repr(Namespace(salt="one")) == repr(Namespace(salt="two"))
