"""Log-probabilities of prompt tokens: right, whole and told once, however the prompt is computed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headstart import LLM, Generation, SamplingParams
from headstart.engine import prompt_logprobs
from headstart.engine.limits import Limits
from headstart.engine.prompt_logprobs import NO_SCORE, score_prompts
from headstart.engine.request import PromptTargets, ScheduledRow
from headstart.errors import RequestError
from tests.fake_runner import Bench, FakeEngine, scores
from tests.tiny_llama import random_tokens, row

PROMPT = random_tokens(37, seed=5, vocab_size=500)
GREEDY = SamplingParams(temperature=0.0, max_tokens=6)
SCORED = replace(GREEDY, prompt_logprobs=3)


@pytest.fixture(scope="module")
def oracle(tiny_llama_dir: Path) -> Tensor:
    """log-probabilities [len(PROMPT), vocab] of what follows each token, by transformers."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_llama_dir, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([PROMPT])).logits[0]
    return logits.log_softmax(dim=-1)


def make_llm(directory: Path, **options: Any) -> LLM:
    return LLM(str(directory), **({"dtype": "float32", "num_blocks": 100, "block_size": 4} | options))


def assert_right(generation: Generation, oracle: Tensor, *, top: int = 3) -> None:
    told = generation.prompt_logprobs
    assert told is not None
    assert told[0] is None
    assert len(told) == len(PROMPT)
    for position, (token, score) in enumerate(zip(PROMPT[1:], told[1:], strict=True)):
        expected = oracle[position]
        assert score is not None
        assert score.logprob == pytest.approx(float(expected[token]), abs=1e-4)
        assert score.rank == 1 + int((expected > expected[token]).sum())
        values, ids = expected.topk(top)
        assert [one for one, _ in score.top] == ids.tolist()
        assert [value for _, value in score.top] == pytest.approx(values.tolist(), abs=1e-4)


@pytest.mark.parametrize("index", ["radix", "hash"])
@pytest.mark.parametrize("budget", [1, 5, 16, 2048])
def test_they_are_transformers_own_in_chunks_of_any_size_cold_and_warm(
    tiny_llama_dir: Path, oracle: Tensor, budget: int, index: str
) -> None:
    llm = make_llm(tiny_llama_dir, max_num_batched_tokens=budget, prefix_index=index)
    (cold,) = llm.generate([PROMPT], SCORED)
    (warm,) = llm.generate([PROMPT], SCORED)
    for generation in (cold, warm):
        assert_right(generation, oracle)
        assert generation.num_cached_tokens == 0
    assert cold.token_ids == warm.token_ids
    stats = llm._core.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (0, 0)
    (plain,) = llm.generate([PROMPT], GREEDY)
    assert plain.num_cached_tokens == 36
    assert (plain.token_ids, plain.prompt_logprobs) == (cold.token_ids, None)


def test_they_are_right_in_company_which_they_do_not_disturb(tiny_llama_dir: Path, oracle: Tensor) -> None:
    llm = make_llm(tiny_llama_dir, max_num_batched_tokens=24)
    drawn = SamplingParams(seed=3, max_tokens=9, logprobs=2)
    others = [PROMPT[:20], [*PROMPT[:9], 7, 8], random_tokens(30, seed=6, vocab_size=500)]
    alone = [llm.generate([other], drawn)[0] for other in others]
    assert llm.reset_prefix_cache()
    core = llm._core
    for number, other in enumerate(others):
        core.add_request(f"other {number}", other, drawn)
    core.add_request("scored", PROMPT, replace(SCORED, max_tokens=0))
    core.add_request("scored too", PROMPT, replace(SCORED, prompt_logprobs=0))
    outputs = []
    while core.has_work:
        outputs += core.step()
    for number, expected in enumerate(alone):
        mine = [output for output in outputs if output.request_id == f"other {number}"]
        assert [token for output in mine for token in output.token_ids] == expected.token_ids
        assert not any(output.prompt_logprobs for output in mine)
    for name, top in (("scored", 3), ("scored too", 0)):
        told = [score for o in outputs if o.request_id == name for score in o.prompt_logprobs]
        assert_right(Generation(PROMPT, "", [], 0, "length", None, [None, *told]), oracle, top=top)


@pytest.mark.parametrize("index", ["radix", "hash"])
def test_they_are_right_after_a_preemption(tiny_llama_dir: Path, oracle: Tensor, index: str) -> None:
    llm = make_llm(tiny_llama_dir, max_num_batched_tokens=4, num_blocks=12, prefix_index=index)
    core = llm._core
    core.add_request("first", PROMPT[:9], SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True))
    core.add_request("scored", PROMPT, SCORED)
    outputs = []
    while core.has_work:
        outputs += core.step()
    assert core.stats().num_preemptions > 0
    told = [score for o in outputs if o.request_id == "scored" for score in o.prompt_logprobs]
    assert_right(Generation(PROMPT, "", [], 0, "length", None, [None, *told]), oracle)
    (alone,) = make_llm(tiny_llama_dir).generate([PROMPT], GREEDY)
    mine = [token for o in outputs if o.request_id == "scored" for token in o.token_ids]
    assert mine[: len(alone.token_ids)] == alone.token_ids


def test_without_any_output_the_prompt_may_fill_the_context(tiny_llama_dir: Path, oracle: Tensor) -> None:
    llm = make_llm(tiny_llama_dir, max_model_len=len(PROMPT))
    (generation,) = llm.generate([PROMPT], replace(SCORED, max_tokens=0))
    assert_right(generation, oracle)
    assert (generation.text, generation.token_ids, generation.finish_reason) == ("", [], "length")
    stats = llm._core.stats()
    assert (stats.prompt_tokens, stats.generation_tokens) == (len(PROMPT), 0)
    with pytest.raises(RequestError, match="at least one must be generated"):
        llm.generate([PROMPT], replace(SCORED, max_tokens=1))
    assert llm.generate([[5]], SCORED)[0].prompt_logprobs == [None]


def test_no_output_needs_a_slot_for_each_prompt_token() -> None:
    limits = Limits(max_model_len=100, vocab_size=10, num_blocks=2, block_size=4)
    nothing = SamplingParams(max_tokens=0, prompt_logprobs=0)
    assert limits.check([1] * 8, nothing) == 0
    with pytest.raises(RequestError, match="needs 3 blocks"):
        limits.check([1] * 9, nothing)


# -- the schedule ----------------------------------------------------------------------------------


def test_each_chunk_tells_its_own_and_the_first_of_the_next() -> None:
    bench = Bench(budget=4)
    bench.add("scored", range(10), 2, prompt_logprobs=0)
    pieces = []
    while bench.scheduler.has_work:
        plan = bench.plan()
        pieces.append([row.targets for row in plan.rows])
        bench.commit(plan)
    assert pieces == [
        [PromptTargets(0, [1, 2, 3, 4])],
        [PromptTargets(0, [5, 6, 7, 8])],
        [PromptTargets(0, [9])],
        [None],
    ]
    assert bench.told["scored"] == scores(range(10))


@pytest.mark.parametrize("index", ["radix", "hash"])
def test_what_was_told_before_a_preemption_is_not_told_again(index: Any) -> None:
    bench = Bench(num_blocks=8, block_size=4, budget=3, index=index)
    bench.add("first", range(100, 108), 17)
    bench.add("scored", range(20), 1, prompt_logprobs=0)
    for _ in range(20):
        bench.step()
        if bench.scheduler.num_preemptions:
            break
    told = list(bench.told["scored"])
    assert 0 < len(told) < 19
    bench.finish()
    assert bench.told["scored"][: len(told)] == told
    assert bench.told["scored"] == scores(range(20))
    assert bench.ends["scored"].num_cached_tokens == 0
    assert bench.manager.stats.queries == 8


def test_a_step_that_is_rolled_back_tells_nothing_and_is_told_anew() -> None:
    bench = Bench(budget=4)
    bench.add("scored", range(10), 1, prompt_logprobs=0)
    bench.step()
    bench.rollback(bench.plan())
    bench.finish()
    assert bench.told["scored"] == scores(range(10))


def test_one_that_reads_all_that_the_pool_has_gets_on() -> None:
    """It holds its own copy of every block beside the cached one, and so runs out of room on its way."""
    bench = Bench(num_blocks=10, block_size=4, budget=2048)
    bench.add("plain", range(36), 1)
    bench.finish()
    bench.add("scored", range(36), 5, prompt_logprobs=0)
    bench.finish(at_most=30)
    assert bench.told["scored"] == scores(range(36))


def test_its_blocks_serve_those_that_come_later() -> None:
    engine = FakeEngine()
    engine.add_request("scored", list(range(9)), SamplingParams(max_tokens=0, prompt_logprobs=2))
    assert engine.drain()[-1].finish_reason == "length"
    engine.add_request("plain", list(range(9)), SamplingParams(max_tokens=1))
    assert engine.drain()[-1].num_cached_tokens == 8


# -- the scores ------------------------------------------------------------------------------------


def scored_row(name: str, targets: list[int], top: int = 1) -> ScheduledRow:
    params = SamplingParams(prompt_logprobs=top)
    return replace(row(name, [1] * len(targets), [0], params=params), targets=PromptTargets(0, targets))


def test_logits_are_made_a_slice_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_logprobs, "SLICE_LOGITS", 35)
    hidden = torch.randn(9, 10)
    sizes = []

    def logits(some: Tensor) -> Tensor:
        sizes.append(len(some))
        return some

    told, failed = score_prompts(
        logits, hidden, [scored_row("a", [1, 2, 3, 4]), scored_row("b", [5] * 5, 2)], vocab_size=10
    )
    assert sizes == [3, 3, 3]
    assert failed == {}
    expected = hidden.log_softmax(dim=-1)
    values = [score.logprob for score in told["a"] + told["b"]]
    assert values == pytest.approx([float(expected[i, t]) for i, t in enumerate([1, 2, 3, 4, *[5] * 5])])
    assert [len(score.top) for score in told["a"] + told["b"]] == [1] * 4 + [2] * 5


def test_a_prompt_of_nan_fails_alone() -> None:
    hidden = torch.randn(6, 10)
    hidden[4, 3] = torch.nan
    told, failed = score_prompts(
        lambda some: some,
        hidden,
        [scored_row("good", [1, 2, 3]), scored_row("bad", [1, 2, 3])],
        vocab_size=10,
    )
    assert set(told) == {"good"}
    assert failed == {"bad": NO_SCORE}
