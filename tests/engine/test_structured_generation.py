"""Structured outputs in the engine: with everything else that a request can ask for, and in every batch."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from headstart import LLM, SamplingParams, StructuredOutputs
from headstart.engine import grammars as grammars_module
from headstart.engine.core import EngineCore
from headstart.engine.request import RequestOutput
from headstart.errors import EngineError, RequestError
from headstart.model.source import ModelFiles

TEXT = "The server keeps the keys and the values of every block of tokens until the memory is wanted."
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
PERSON = StructuredOutputs(json=SCHEMA, disable_any_whitespace=True)
NUMBER = StructuredOutputs(regex=r"[0-9]{3}-[0-9]{4}")
YES_OR_NO = StructuredOutputs(choice=("yes", "no", "maybe"))


def sampling(wanted: StructuredOutputs | None, **params: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 200, "seed": 1, "structured_outputs": wanted} | params)


def make_llm(directory: Path, **options: Any) -> LLM:
    return LLM(str(directory), **{"dtype": "float32", "num_blocks": 300, "max_num_seqs": 16} | options)


@pytest.fixture(scope="module")
def llm(tiny_llama_dir: Path) -> LLM:
    return make_llm(tiny_llama_dir)


# -- a random model says what it must --------------------------------------------------------------


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0, "repetition_penalty": 1.3},
        {"temperature": 1.0},
        {"temperature": 2.0, "top_p": 0.9, "top_k": 50, "min_p": 0.01},
        {"presence_penalty": 2.0, "frequency_penalty": 2.0},
        {"logit_bias": dict.fromkeys(range(300, 320), 100.0)},
        {"seed": None, "logprobs": 5},
        {"ignore_eos": True},
    ],
    ids=lambda params: next(iter(params)),
)
def test_json_validates_whatever_else_is_asked_for(llm: LLM, params: dict[str, Any]) -> None:
    (generation,) = llm.generate(TEXT, sampling(PERSON, **params))
    jsonschema.validate(json.loads(generation.text), SCHEMA)
    assert generation.finish_reason == "stop"
    assert generation.token_ids[-1] in llm.tokenizer.eos_token_ids
    if params.get("logprobs"):
        assert generation.logprobs is not None
        assert len(generation.logprobs) == len(generation.token_ids)


def test_any_object(llm: LLM) -> None:
    any_object = StructuredOutputs(json_object=True)
    for generation in llm.generate([TEXT] * 8, [sampling(any_object, seed=seed) for seed in range(8)]):
        if generation.finish_reason == "stop":
            assert isinstance(json.loads(generation.text), dict)
        assert generation.text.startswith("{")


def test_regex_and_choice(llm: LLM) -> None:
    number, choice = llm.generate([TEXT] * 2, [sampling(NUMBER), sampling(YES_OR_NO)])
    assert re.fullmatch(r"[0-9]{3}-[0-9]{4}", number.text)
    assert choice.text in ("yes", "no", "maybe")
    assert (number.finish_reason, choice.finish_reason) == ("stop", "stop")


def test_too_few_tokens_cut_it(llm: LLM) -> None:
    (whole,) = llm.generate(TEXT, sampling(PERSON))
    (cut,) = llm.generate(TEXT, sampling(PERSON, max_tokens=5))
    assert cut.finish_reason == "length"
    assert cut.token_ids == whole.token_ids[:5]


def test_each_choice_goes_its_own_way(llm: LLM) -> None:
    found = llm.generate(TEXT, sampling(PERSON, n=6, temperature=1.5))
    for generation in found:
        jsonschema.validate(json.loads(generation.text), SCHEMA)
    assert len({generation.text for generation in found}) > 3
    alone = llm.generate(TEXT, sampling(PERSON, temperature=1.5))
    assert alone[0].text == found[0].text


def test_the_best_of_several(llm: LLM) -> None:
    best = llm.generate(TEXT, sampling(NUMBER, n=2, best_of=5))
    assert len(best) == 2
    assert all(re.fullmatch(r"[0-9]{3}-[0-9]{4}", generation.text) for generation in best)


def test_log_probabilities_are_the_models_own(llm: LLM) -> None:
    (plain,) = llm.generate(TEXT, SamplingParams(temperature=0.0, max_tokens=1, logprobs=20))
    (structured,) = llm.generate(TEXT, sampling(NUMBER, logprobs=20))
    assert plain.logprobs is not None
    assert structured.logprobs is not None
    assert structured.logprobs[0].top == plain.logprobs[0].top
    assert structured.logprobs[0].logprob <= plain.logprobs[0].logprob


# -- where it ends -------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [{"ignore_eos": True}, {"min_tokens": 100}])
def test_a_complete_text_ends_all_the_same(llm: LLM, params: dict[str, Any]) -> None:
    (generation,) = llm.generate(TEXT, sampling(NUMBER, **params))
    assert re.fullmatch(r"[0-9]{3}-[0-9]{4}", generation.text)
    assert generation.finish_reason == "stop"


def test_min_tokens_and_ignore_eos_go_on_while_there_is_more(llm: LLM) -> None:
    digits = StructuredOutputs(regex="[0-9]{1,60}")
    end = dict.fromkeys(llm.tokenizer.eos_token_ids, 100.0)
    (short,) = llm.generate(TEXT, sampling(digits, logit_bias=end))
    assert len(short.text) == 1
    (longer,) = llm.generate(TEXT, sampling(digits, logit_bias=end, min_tokens=7))
    assert len(longer.token_ids) == 8
    (longest,) = llm.generate(TEXT, sampling(digits, logit_bias=end, ignore_eos=True))
    assert len(longest.text) == 60


def test_a_stop_token_of_the_clients_ends_it_too(llm: LLM) -> None:
    (stop,) = llm.tokenizer.encode("x")
    wanted = sampling(StructuredOutputs(regex="[0-9]+"), stop_token_ids=(stop,), logit_bias={stop: 100.0})
    (generation,) = llm.generate(TEXT, wanted)
    assert re.fullmatch("[0-9]", generation.text)
    assert (generation.finish_reason, generation.token_ids[-1]) == ("stop", stop)


# -- company, preemption and the cache -------------------------------------------------------------


def test_plain_requests_beside_it_are_as_without_it(llm: LLM) -> None:
    prompts = [f"{number} {TEXT}" for number in range(6)]
    plain = [sampling(None, max_tokens=20, seed=number) for number in range(6)]
    assert llm.reset_prefix_cache()
    expected = [one.token_ids for one in llm.generate(prompts, plain)]
    mixed = [one for params in plain for one in (params, sampling(PERSON))]
    assert llm.reset_prefix_cache()
    found = llm.generate([prompt for prompt in prompts for _ in range(2)], mixed)
    assert [one.token_ids for one in found[::2]] == expected
    for one in found[1::2]:
        jsonschema.validate(json.loads(one.text), SCHEMA)


@pytest.mark.parametrize("index", ["radix", "hash"])
def test_cached_equals_cold(tiny_llama_dir: Path, index: str) -> None:
    llm = make_llm(tiny_llama_dir, prefix_index=index)
    cold = llm.generate(TEXT, sampling(PERSON, n=3))
    warm = llm.generate(TEXT, sampling(PERSON, n=3))
    assert warm[0].num_cached_tokens > 0
    assert [one.token_ids for one in warm] == [one.token_ids for one in cold]


def run(core: EngineCore) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    while core.has_work:
        for output in core.step():
            assert output.error is None
            tokens.setdefault(output.request_id, []).extend(output.token_ids)
    return tokens


@pytest.mark.parametrize("index", ["radix", "hash"])
def test_preemption_in_the_middle_changes_nothing(tiny_llama_dir: Path, index: str) -> None:
    llm = make_llm(tiny_llama_dir)
    prompt = llm.tokenizer.encode(TEXT)[:12]
    params = sampling(PERSON, n=3, max_tokens=60).ending_at(llm.tokenizer.eos_token_ids)
    llm._core.add_request("a", prompt, params)
    expected = run(llm._core)
    tight = make_llm(tiny_llama_dir, num_blocks=24, block_size=4, prefix_index=index)._core
    tight.add_request("first", prompt[:5], SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True))
    tight.add_request("a", prompt, params)
    found = run(tight)
    assert tight.stats().num_preemptions > 0
    del found["first"]
    assert found == expected


# -- failures ------------------------------------------------------------------------------------


def outputs_of(core: EngineCore) -> list[RequestOutput]:
    outputs: list[RequestOutput] = []
    while core.has_work:
        outputs += core.step()
    return outputs


@pytest.mark.parametrize("where", ["allowed", "accept"])
def test_a_matcher_that_fails_takes_nobody_with_it(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    core, prompt = llm._core, llm.tokenizer.encode(TEXT)
    core.add_request("plain", prompt, SamplingParams(temperature=0.0, max_tokens=8))
    core.add_request("well", prompt, sampling(NUMBER))
    core.add_request("broken", prompt, sampling(NUMBER))
    broken = core.scheduler._requests["broken"].matcher
    assert broken is not None
    for _ in range(3):
        core.step()
    if where == "allowed":

        def gives_up(*, may_end: bool) -> bytes:
            raise EngineError("the grammar gave up")

        monkeypatch.setattr(broken, "allowed", gives_up)
    else:
        monkeypatch.setattr(broken, "accept", lambda token: setattr(broken, "error", "the grammar gave up"))
    ends = {one.request_id: one for one in outputs_of(core) if one.finish_reason is not None}
    assert (ends["broken"].finish_reason, ends["broken"].error) == ("error", "the grammar gave up")
    assert [ends[name].finish_reason for name in ("plain", "well")] == ["length", "stop"]
    core.scheduler.manager.check()
    assert core.scheduler.manager.num_free_blocks == 300


def test_a_grammar_that_cannot_be_compiled_is_refused_and_nothing_is_queued(llm: LLM) -> None:
    with pytest.raises(RequestError, match="prompt 1: structured_outputs cannot be compiled") as caught:
        llm.generate([TEXT, TEXT], [sampling(NUMBER), sampling(StructuredOutputs(regex="("))])
    assert caught.value.param == "structured_outputs"
    assert not llm._core.has_work


def test_an_engine_without_a_compiler_says_so(llm: LLM) -> None:
    core = EngineCore(llm._core.scheduler, llm._core._runner, llm._core.limits)
    with pytest.raises(RequestError, match="knows no structured outputs"):
        core.add_request("a", [1, 2, 3], sampling(NUMBER))


def test_the_largest_work_for_one_mask_is_bounded(llm: LLM) -> None:
    """A grammar as bad as can be ends with a sentence, and does not hold up the engine for seconds."""
    many = (
        " ".join(f"r{i}" for i in range(1000))
        + "\n"
        + "\n".join(f'r{i} ::= "a" | [a-z]*' for i in range(1000))
    )
    with pytest.raises((RequestError, EngineError)) as caught:
        llm.generate(TEXT, sampling(StructuredOutputs(grammar=f"root ::= {many}")))
    assert "\n" not in str(caught.value)
    assert grammars_module._LIMITS.step_max_items <= 10_000


# -- a model that can write ------------------------------------------------------------------------


def test_smollm2_fills_in_a_form(smollm2: ModelFiles) -> None:
    llm = LLM("smollm2-135m", dtype="float32", num_blocks=100)
    params = [sampling(wanted, temperature=0.0, max_tokens=60) for wanted in (PERSON, YES_OR_NO, NUMBER)]
    prompts: Sequence[str] = ["Alice is 30. As JSON: ", "Is water wet? ", "Call me: "]
    person, choice, number = llm.generate(prompts, params)
    jsonschema.validate(json.loads(person.text), SCHEMA)
    assert choice.text in ("yes", "no", "maybe")
    assert re.fullmatch(r"[0-9]{3}-[0-9]{4}", number.text)
