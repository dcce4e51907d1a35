from __future__ import annotations

import msgspec
import pytest

from headstart.cache import MissReason, MissReport
from headstart.config import EngineConfig
from headstart.engine.messages import (
    Abort,
    EngineInfo,
    EngineStats,
    Explained,
    FromEngine,
    ResetDone,
    ResetPrefixCache,
    Shutdown,
    StartFailed,
    StepOutputs,
    Submit,
    ToEngine,
)
from headstart.engine.request import CacheTerms, PromptLogprob, RequestOutput, SamplingParams, TokenLogprob

INFO = EngineInfo(
    model_name="m",
    model_type="llama",
    dtype="float32",
    device="cpu",
    vocab_size=300,
    max_model_len=1000,
    num_blocks=64,
    block_size=16,
    kv_bytes_per_token=100,
    kv_pool_bytes=102_400,
    prefix_index="radix",
    eviction_policy="lru",
    enable_prefix_caching=True,
    max_num_batched_tokens=256,
    max_num_seqs=8,
    weights_bytes=1000,
)
PARAMS = SamplingParams(
    temperature=0,
    top_p=0.5,
    top_k=2**31,
    seed=2**64 - 1,
    max_tokens=None,
    stop=("é",),
    stop_token_ids=(1, 2),
    logit_bias={3: -1.5, 4: 2},
    min_tokens=3,
    presence_penalty=1,
    ignore_eos=True,
    logprobs=3,
    prompt_logprobs=2,
)
OUTPUTS = (
    RequestOutput("a", (1, 2), 3),
    RequestOutput("b", finish_reason="error", error="a sentence"),
    RequestOutput("c", (9,), 0, "length"),
    RequestOutput("e", prompt_logprobs=(PromptLogprob(-2.5, 4, ((9, -0.5),)),)),
    RequestOutput("d", (9,), 0, logprobs=(TokenLogprob(-1.5, ((9, -1.5), (3, float("-inf")))),)),
)


REPORT = MissReport("a", 9, 3, {MissReason.COLD: 5, MissReason.LAST_TOKEN: 1}, 3, 1.5, 7)


@pytest.mark.parametrize(
    "message",
    [
        Submit("a", b"\x01\x00\x00\x00", PARAMS, CacheTerms(salt="salt")),
        Submit("a", b"", SamplingParams(seed=-(2**63))),
        Abort(("a", "b")),
        ResetPrefixCache(7),
        Shutdown(),
    ],
)
def test_what_the_front_says_arrives(message: ToEngine) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=ToEngine) == message


@pytest.mark.parametrize(
    "message",
    [
        INFO,
        StepOutputs(OUTPUTS, EngineStats(1, 2, 0.5, 3, 4, 5, 6, 7)),
        StepOutputs((), EngineStats()),
        Explained((REPORT,), EngineStats(miss_tokens={MissReason.COLD: 5, MissReason.LAST_TOKEN: 1})),
        StepOutputs((), EngineStats(hit_rate_estimates={"0.5x": 0.25, "1x": 0.5})),
        ResetDone(7, True),
        StartFailed("a sentence"),
        StartFailed("a sentence", "ConfigError"),
    ],
)
def test_what_the_engine_says_arrives(message: FromEngine) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=FromEngine) == message


def test_a_configuration_arrives() -> None:
    config = EngineConfig.from_options(
        model="m", dtype="float32", num_blocks=7, prefix_index="hash", max_model_len=50, seed=3
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=EngineConfig) == config


def test_the_two_directions_do_not_understand_each_other() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(Shutdown()), type=FromEngine)
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(ResetDone(1, True)), type=ToEngine)


def test_capacity_in_tokens() -> None:
    assert INFO.kv_capacity_tokens == 1024
