from __future__ import annotations

from typing import Any

import pytest

from headstart.cache import CacheRequest
from headstart.engine.request import Request, SamplingParams, StepPlan
from headstart.errors import RequestError
from tests.fake_runner import Bench


def test_defaults_are_vllms() -> None:
    params = SamplingParams()
    assert (params.temperature, params.top_p, params.top_k, params.seed) == (1.0, 1.0, 0, None)
    assert (params.max_tokens, params.stop, params.stop_token_ids) == (16, (), ())


def test_stop_is_a_string_or_several_in_any_sequence() -> None:
    assert SamplingParams(stop="END").stop == ("END",)  # type: ignore[arg-type]
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]
    assert SamplingParams(stop=("a",)).stop == ("a",)
    assert SamplingParams(stop_token_ids=[3, 4]).stop_token_ids == (3, 4)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"temperature": 100.0},
        {"top_p": 1e-30},
        {"top_p": 1},
        {"top_k": 10**9},
        {"seed": -(2**63)},
        {"seed": 2**64 - 1},
        {"max_tokens": 1},
        {"max_tokens": None},
        {"min_p": 1.0},
        {"presence_penalty": -2.0, "frequency_penalty": 2.0},
        {"repetition_penalty": 0.01},
        {"logit_bias": {0: -100, 7: 100.0}},
        {"min_tokens": 16},
        {"logprobs": 0},
        {"logprobs": 20},
        {"prompt_logprobs": 20},
        {"prompt_logprobs": 0, "max_tokens": 0},
        {"min_tokens": 17, "max_tokens": None},
    ],
)
def test_what_is_just_allowed(fields: dict[str, Any]) -> None:
    SamplingParams(**fields)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("temperature", -0.1, "between 0 and 100"),
        ("temperature", 100.1, "between 0 and 100"),
        ("temperature", float("nan"), "between 0 and 100"),
        ("temperature", float("inf"), "between 0 and 100"),
        ("top_p", 0.0, "above 0 and at most 1"),
        ("top_p", 1.1, "above 0 and at most 1"),
        ("top_p", float("nan"), "above 0 and at most 1"),
        ("top_k", -2, "0 or -1 (off) or a positive integer"),
        ("max_tokens", -5, "at least 0"),
        ("seed", 2**64, "an integer of at most 64 bits"),
        ("seed", -(2**63) - 1, "an integer of at most 64 bits"),
        ("min_p", -0.1, "between 0 and 1"),
        ("min_p", float("nan"), "between 0 and 1"),
        ("presence_penalty", 2.1, "between -2 and 2"),
        ("frequency_penalty", -2.1, "between -2 and 2"),
        ("frequency_penalty", float("nan"), "between -2 and 2"),
        ("repetition_penalty", 0.0, "between 0.01 and 100 (1 is off)"),
        ("repetition_penalty", 1e308, "between 0.01 and 100 (1 is off)"),
        ("logit_bias", {3: 100.1}, "token ids, each with a number between -100 and 100"),
        ("logit_bias", {3: float("nan")}, "token ids, each with a number between -100 and 100"),
        ("logit_bias", {-1: 0.0}, "token ids, each with a number between -100 and 100"),
        ("logprobs", -1, "between 0 and 20"),
        ("logprobs", 21, "between 0 and 20"),
        ("prompt_logprobs", -1, "between 0 and 20"),
        ("prompt_logprobs", 21, "between 0 and 20"),
        ("min_tokens", -1, "at least 0 and at most max_tokens, which is 16 unless given"),
        ("min_tokens", 17, "at least 0 and at most max_tokens, which is 16 unless given"),
        ("temperature", "0", "a number"),
        ("temperature", None, "a number"),
        ("temperature", True, "a number"),
        ("top_p", [1], "a number"),
        ("presence_penalty", "1", "a number"),
        ("top_k", 1.5, "an integer"),
        ("top_k", None, "an integer"),
        ("n", "2", "an integer"),
        ("min_tokens", 1.0, "an integer"),
        ("max_tokens", "5", "an integer or None"),
        ("seed", 1.5, "an integer or None"),
        ("logprobs", True, "an integer or None"),
        ("prompt_logprobs", "1", "an integer or None"),
        ("best_of", 2.0, "an integer or None"),
        ("ignore_eos", 1, "True or False"),
        ("stop", 5, "a string or a list of strings"),
        ("stop", ["a", 5], "a string or a list of strings"),
        ("stop_token_ids", 5, "a list of token ids"),
        ("stop_token_ids", "ab", "a list of token ids"),
        ("stop_token_ids", ["a"], "a list of token ids"),
        ("stop_token_ids", [True], "a list of token ids"),
        ("logit_bias", {5: "x"}, "token ids, each with a number between -100 and 100"),
        ("logit_bias", {"5": 1.0}, "token ids, each with a number between -100 and 100"),
        ("logit_bias", [5], "token ids, each with a number between -100 and 100"),
    ],
)
def test_what_is_not_allowed_is_named_with_what_is(name: str, value: Any, allowed: str) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})
    assert str(caught.value) == f"{name} must be {allowed}, got {value!r}"
    assert (caught.value.param, caught.value.code) == (name, "invalid_value")


def test_an_empty_stop_string_is_refused() -> None:
    for stop in ("", ["a", ""]):
        with pytest.raises(RequestError, match=r"^stop must be non-empty strings, got ''$"):
            SamplingParams(stop=stop)  # type: ignore[arg-type]


def test_min_tokens_is_refused_with_the_limit_that_was_given() -> None:
    with pytest.raises(RequestError, match="at most max_tokens, which is 8, got 9"):
        SamplingParams(min_tokens=9, max_tokens=8)
    with pytest.raises(RequestError, match="min_tokens must be at least 0, got -1"):
        SamplingParams(min_tokens=-1, max_tokens=None)


def test_none_is_what_vllm_takes_it_for() -> None:
    nothing: dict[str, Any] = dict.fromkeys(("stop", "stop_token_ids", "logit_bias", "seed", "best_of"))
    assert SamplingParams(**nothing) == SamplingParams()


def test_stop_token_ids_may_be_a_models_own() -> None:
    assert SamplingParams(stop_token_ids=frozenset({7})).stop_token_ids == (7,)  # type: ignore[arg-type]


def test_a_request_counts_prompt_and_output_tokens_apart() -> None:
    cache = CacheRequest("a", [1, 2, 3])
    request = Request("a", cache, SamplingParams(), num_prompt_tokens=3, max_tokens=4, arrival_time=0.0)
    assert (request.num_tokens, request.num_output_tokens) == (3, 0)
    cache.append(9)
    cache.append(8)
    assert (request.num_tokens, request.num_output_tokens) == (5, 2)


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty", "repetition_penalty"])
def test_tokens_are_counted_for_those_who_ask(name: str) -> None:
    def request(params: SamplingParams) -> Request:
        return Request("a", CacheRequest("a", [1, 2, 2]), params, 3, 4, arrival_time=0.0)

    assert request(SamplingParams()).token_counts is None
    asking = request(SamplingParams(**{name: 0.5}))
    for token in (9, 2, 9):
        asking.append(token)
    assert asking.token_counts == {1: 0, 2: 1, 9: 2}
    assert asking.cache.token_ids() == [1, 2, 2, 9, 2, 9]


def test_a_models_own_end_ends_the_output_unless_ignored() -> None:
    params = SamplingParams(stop_token_ids=(5, 2), logit_bias={1: 2.0})
    assert params.ending_at([9, 2]) == SamplingParams(stop_token_ids=(5, 2, 9), logit_bias={1: 2.0})
    ignoring = SamplingParams(stop_token_ids=(5,), ignore_eos=True)
    assert ignoring.ending_at([9]) == ignoring


def test_requests_are_equal_only_to_themselves() -> None:
    cache = CacheRequest("a", [1, 2, 3])
    one, other = (Request("a", cache, SamplingParams(), 3, 4, 0.0) for _ in range(2))
    assert one == one
    assert one != other


def test_a_plan_counts_the_tokens_of_all_its_rows() -> None:
    bench = Bench(budget=8)
    bench.add("a", [1, 2, 3])
    bench.add("b", [4] * 9)
    assert bench.plan().num_tokens == 8
    assert StepPlan(()).num_tokens == 0
