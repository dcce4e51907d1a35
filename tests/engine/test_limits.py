from __future__ import annotations

import pytest

from headstart.config import PrefixIndexName
from headstart.engine.limits import Limits
from headstart.engine.request import SamplingParams
from headstart.errors import RequestError
from tests.fake_runner import FakeEngine, answer, tokens_of

SMALL_CONTEXT = Limits(max_model_len=20, vocab_size=100, num_blocks=50, block_size=4)
SMALL_POOL = Limits(max_model_len=1000, vocab_size=100, num_blocks=5, block_size=4)


def asks(max_tokens: int | None) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens)


CONTEXT = "this model's maximum context length is 20 tokens, but the prompt has "
POOL = "4 tokens a block), but the pool has 5; shorten it or start the server with more KV memory"
REFUSED = {
    "empty": (SMALL_CONTEXT, [], 1, "prompt", "invalid_value", "the prompt must have at least one token"),
    "no room to generate": (
        SMALL_CONTEXT,
        [1] * 20,
        1,
        "prompt",
        "context_length_exceeded",
        f"{CONTEXT}20 tokens and at least one must be generated; shorten the prompt",
    ),
    "max_tokens too large": (
        SMALL_CONTEXT,
        [1] * 15,
        6,
        "max_tokens",
        "context_length_exceeded",
        f"{CONTEXT}15 tokens and max_tokens is 6; at most 5 can be generated",
    ),
    "above the vocabulary": (
        SMALL_CONTEXT,
        [0, 99, 7, 100],
        1,
        "prompt",
        "invalid_value",
        "token id 100 at position 3 is outside the vocabulary: ids go from 0 to 99",
    ),
    "below the vocabulary": (
        SMALL_CONTEXT,
        [5, -1],
        1,
        "prompt",
        "invalid_value",
        "token id -1 at position 1 is outside the vocabulary: ids go from 0 to 99",
    ),
    "prompt larger than the pool": (
        SMALL_POOL,
        [1] * 24,
        1,
        "prompt",
        "kv_cache_exceeded",
        f"the request needs 6 blocks of KV memory (24 prompt tokens and max_tokens 1, {POOL}",
    ),
    "prompt larger than the pool, max_tokens open": (
        SMALL_POOL,
        [1] * 24,
        None,
        "prompt",
        "kv_cache_exceeded",
        f"the request needs 6 blocks of KV memory (24 prompt tokens and max_tokens 1, {POOL}",
    ),
    "answer larger than the pool": (
        SMALL_POOL,
        [1] * 10,
        15,
        "max_tokens",
        "kv_cache_exceeded",
        f"the request needs 6 blocks of KV memory (10 prompt tokens and max_tokens 15, {POOL}",
    ),
}


@pytest.mark.parametrize(
    ("limits", "prompt", "max_tokens", "param", "code", "sentence"), REFUSED.values(), ids=REFUSED.keys()
)
def test_what_can_never_be_served_is_refused_with_the_numbers(
    limits: Limits, prompt: list[int], max_tokens: int | None, param: str, code: str, sentence: str
) -> None:
    with pytest.raises(RequestError) as caught:
        limits.check(prompt, asks(max_tokens))
    assert (str(caught.value), caught.value.param, caught.value.code) == (sentence, param, code)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("limits", "prompt", "max_tokens", "generates"),
    [
        (SMALL_CONTEXT, 19, 1, 1),
        (SMALL_CONTEXT, 19, None, 1),
        (SMALL_CONTEXT, 15, 5, 5),
        (SMALL_CONTEXT, 1, None, 19),
        (SMALL_POOL, 20, 1, 1),  # the last token generated needs no slot
        (SMALL_POOL, 20, None, 1),
        (SMALL_POOL, 10, 11, 11),
        (SMALL_POOL, 1, None, 20),
    ],
)
@pytest.mark.parametrize("index", ["radix", "hash"])
def test_what_is_exactly_at_the_limit_runs_to_its_end(
    limits: Limits, prompt: int, max_tokens: int | None, generates: int, index: PrefixIndexName
) -> None:
    engine = FakeEngine(
        num_blocks=limits.num_blocks,
        block_size=limits.block_size,
        max_model_len=limits.max_model_len,
        vocab_size=limits.vocab_size,
        index=index,
    )
    token_ids = [99 - i for i in range(prompt)]
    engine.add_request("r", token_ids, asks(max_tokens))
    outputs = engine.drain()
    told = answer(token_ids, generates, vocab_size=limits.vocab_size)
    assert tokens_of(outputs, "r") == told
    assert outputs[-1].finish_reason == "length"


def test_a_priority_where_there_are_none_is_refused() -> None:
    SMALL_CONTEXT.check([1], SamplingParams(), 0)
    Limits(20, 100, 50, 4, priorities=True).check([1], SamplingParams(), -3)
    with pytest.raises(RequestError, match=r"priority is -3.*--scheduling-policy priority") as caught:
        SMALL_CONTEXT.check([1], SamplingParams(), -3)
    assert caught.value.param == "priority"


def test_a_bias_outside_the_vocabulary() -> None:
    SMALL_CONTEXT.check([1], SamplingParams(logit_bias={0: 1.0, 99: 1.0}))
    with pytest.raises(RequestError, match=r"logit_bias has token id 100, .*from 0 to 99") as caught:
        SMALL_CONTEXT.check([1], SamplingParams(logit_bias={100: 1.0}))
    assert caught.value.param == "logit_bias"
