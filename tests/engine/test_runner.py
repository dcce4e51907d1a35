from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from headstart.cache import BlockCopy
from headstart.engine.request import SamplingParams, ScheduledRow, StepPlan
from headstart.engine.runner import Runner, build_batch
from headstart.engine.sampler import Sampler
from headstart.model.attention import SdpaAttention
from tests.tiny_llama import CPU, GREEDY, make_pool, our_llama, random_tokens, random_weights, row, tiny_spec

POISON = 99  # a token whose embedding is not a number

TOKENS = random_tokens(40, seed=11, vocab_size=POISON)


def make_runner(num_blocks: int = 40) -> Runner:
    """A tiny model, blocks of 4; token `POISON` gives NaN to whoever has it in context."""
    spec = tiny_spec(tie_word_embeddings=False)
    weights = random_weights(spec)
    weights["model.embed_tokens.weight"][POISON] = torch.nan
    return Runner(our_llama(spec, weights), make_pool(spec, num_blocks), SdpaAttention(), Sampler(0))


def lone_logits(tokens: list[int]) -> Tensor:
    """Logits after the last token, computed whole in a pool of its own."""
    return make_runner().forward(StepPlan((row("lone", tokens, list(range(20))),)))[0]


def plan(*rows: ScheduledRow, copies: tuple[BlockCopy, ...] = ()) -> StepPlan:
    return StepPlan(rows, copies)


def test_a_batch_is_the_rows_end_to_end() -> None:
    rows = [
        row("decode", [7], [5, 2], start=6),
        row("chunk", [1, 2, 3], [9, 8, 3], start=3, sample=False),
        row("prompt", [4, 5], [0]),
    ]
    batch = build_batch(rows, block_size=4, device=CPU)
    assert batch.token_ids.tolist() == [7, 1, 2, 3, 4, 5]
    assert batch.positions.tolist() == [6, 3, 4, 5, 0, 1]
    assert batch.slots.tolist() == [2 * 4 + 2, 9 * 4 + 3, 8 * 4, 8 * 4 + 1, 0, 1]
    assert batch.logit_rows.tolist() == [0, 5]
    spans = [(s.query_start, s.query_length, s.context_length, s.block_ids.tolist()) for s in batch.sequences]
    assert spans == [(0, 1, 7, [5, 2]), (1, 3, 6, [9, 8, 3]), (4, 2, 2, [0])]
    for tensor in (batch.token_ids, batch.positions, batch.slots, batch.logit_rows):
        assert tensor.dtype == torch.int64


def test_a_table_too_short_for_its_row_never_reads_into_the_next_rows() -> None:
    rows = [row("short", [1, 2, 3, 4, 5], [0]), row("next", [1], [1])]
    with pytest.raises(AssertionError, match="block table"):
        build_batch(rows, block_size=4, device=CPU)


def test_the_token_after_each_row_that_asks() -> None:
    runner = make_runner()
    result = runner.run(
        plan(
            row("a", TOKENS[:9], [4, 2, 0]),
            row("b", TOKENS[:6], [1, 3], sample=False),
            row("c", TOKENS[20:25], [5, 7]),
        )
    )
    assert result.failed == {}
    assert result.sampled == {
        "a": int(lone_logits(TOKENS[:9]).argmax()),
        "c": int(lone_logits(TOKENS[20:25]).argmax()),
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"logit_bias": {5: 100.0}},
        {"repetition_penalty": 0.01},
        {"presence_penalty": -2.0},
        {"min_tokens": 1, "stop_token_ids": (5,)},
    ],
)
def test_the_models_logits_can_be_adjusted(fields: dict[str, Any]) -> None:
    params = SamplingParams(temperature=0.0, **fields)
    adjusted = dataclasses.replace(row("a", TOKENS[:9], [4, 2, 0]), params=params, token_counts={5: 1})
    result = make_runner().run(plan(adjusted))
    assert result.failed == {}
    if "logit_bias" in fields:
        assert result.sampled == {"a": 5}


def test_an_empty_plan_is_an_empty_result() -> None:
    result = make_runner().run(StepPlan(()))
    assert (result.sampled, result.failed) == ({}, {})


def test_a_plan_where_nobody_samples() -> None:
    result = make_runner().run(plan(row("a", TOKENS[:3], [0], sample=False)))
    assert (result.sampled, result.failed) == ({}, {})


def test_decoding_step_by_step_is_computing_it_whole() -> None:
    runner = make_runner()
    text, table = TOKENS[:7], [3, 1, 4, 0, 5]
    runner.run(plan(row("a", text, table, sample=False)))
    for position in range(7, 17):
        logits = runner.forward(plan(row("a", [TOKENS[position]], table, start=position)))
        expected = lone_logits(TOKENS[: position + 1])
        torch.testing.assert_close(logits[0], expected, atol=1e-5, rtol=0)


def test_copies_are_done_before_anything_is_written() -> None:
    runner = make_runner()
    runner.run(plan(row("first", TOKENS[:8], [0, 1])))
    # The second request equals the first for 7 tokens: one block shared, 3 slots of the next copied.  In
    # the same step the source's owner is gone and its block is written by a third.
    second = row("second", TOKENS[10:13], [0, 5, 6], start=7)
    third = row("third", TOKENS[20:24], [1])
    logits = runner.forward(plan(third, second, copies=(BlockCopy(src=1, dst=5, num_tokens=3),)))
    whole = lone_logits(TOKENS[:7] + TOKENS[10:13])
    torch.testing.assert_close(logits[1], whole, atol=1e-5, rtol=0)
    torch.testing.assert_close(logits[0], lone_logits(TOKENS[20:24]), atol=1e-5, rtol=0)


def test_prefill_and_decode_of_many_requests_in_one_step() -> None:
    runner = make_runner(num_blocks=80)
    texts = [TOKENS[i : i + 2 + 3 * i] for i in range(8)]
    order = torch.randperm(80, generator=torch.Generator().manual_seed(0)).split(10)
    tables = [table.tolist() for table in order]
    computed = [len(text) - 1 if i % 2 else 0 for i, text in enumerate(texts)]
    first = [row(str(i), texts[i][:-1], tables[i], sample=False) for i in range(1, 8, 2)]
    runner.run(plan(*first))
    rows = [row(str(i), texts[i][computed[i] :], tables[i], start=computed[i]) for i in range(8)]
    logits = runner.forward(plan(*rows))
    for i, text in enumerate(texts):
        torch.testing.assert_close(logits[i], lone_logits(text), atol=1e-5, rtol=0)


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(seed=1), SamplingParams(seed=1, top_p=0.9)])
def test_a_request_of_nan_fails_alone(params: SamplingParams) -> None:
    rows = [
        row("good", TOKENS[:5], [0, 1], params=params),
        row("bad", [TOKENS[0], POISON], [2], params=params),
        row("also good", [TOKENS[9]], [3], params=params),
    ]
    runner = make_runner()
    result = runner.run(plan(*rows))
    assert set(result.failed) == {"bad"}
    assert "not a number" in result.failed["bad"]
    assert result.sampled == make_runner().run(plan(rows[0], rows[2])).sampled


def test_nan_left_in_a_freed_block_reaches_nobody_who_gets_it_next() -> None:
    runner = make_runner()
    runner.run(plan(row("bad", [POISON] * 16, [0, 1, 2, 3])))
    assert runner.pool.keys[:, :4].isnan().all()
    # Each gets blocks of the failed request, and none fills its last one; short ones are padded by others.
    texts, tables = [TOKENS[:6], TOKENS[3:5], TOKENS[7:20]], [[0, 1], [2], [3, 10, 11, 12]]
    chunks = [row(str(i), t[:-1], table) for i, (t, table) in enumerate(zip(texts, tables, strict=True))]
    runner.run(plan(*chunks))
    rows = [
        row(str(i), t[-1:], table, start=len(t) - 1)
        for i, (t, table) in enumerate(zip(texts, tables, strict=True))
    ]
    for logits, text in zip(runner.forward(plan(*rows)), texts, strict=True):
        torch.testing.assert_close(logits, lone_logits(text), atol=1e-5, rtol=0)


def test_a_seeded_request_gives_the_same_tokens_in_other_company() -> None:
    params = SamplingParams(seed=42, temperature=1.5)
    mine = row("mine", TOKENS[:5], [0, 1], params=params, num_output_tokens=3)
    others = [row(f"o{i}", TOKENS[i : i + 4], [2 + i], params=SamplingParams()) for i in range(5)]
    alone = make_runner().run(plan(mine)).sampled["mine"]
    assert make_runner().run(plan(*others, mine)).sampled["mine"] == alone
