"""A hit never changes an answer: random schedules against cold, lone runs of the same requests."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
import torch

from headstart.config import SchedulerConfig
from headstart.model.attention import FusedAttention, SdpaAttention
from headstart.model.device import resolve_dtype
from headstart.model.kv_pool import KVPool
from headstart.model.llama import LlamaModel, load_model
from headstart.model.native import load_library
from headstart.model.ops import LayerOps, layer_ops
from headstart.model.source import ModelFiles, resolve
from headstart.model.spec import ModelSpec, read_spec
from headstart.model.weights import expected_shapes
from tests.machines.schedules import Outcome, Schedule, ScheduleRunner, random_schedule

CPU = torch.device("cpu")


def load(files: ModelFiles, dtype: torch.dtype) -> LlamaModel:
    return load_model(files, read_spec(files), dtype=dtype, device=CPU)


def largest_difference(runner: ScheduleRunner, schedule: Schedule, outcome: Outcome) -> float:
    worst = 0.0
    for script in schedule.scripts:
        seen = outcome.logits[script.name]
        if script.abort_at is None:
            assert len(seen) == len(script.output)
        if seen:
            cold = runner.cold(script)[: len(seen)]
            worst = max(worst, (torch.stack(seen) - cold).abs().max().item())
    return worst


@pytest.mark.parametrize("part", range(4))
def test_float32_logits_agree_within_1e_4(part: int, tiny_llama_dir: Path) -> None:
    model = load(resolve(str(tiny_llama_dir)), torch.float32)
    # In half of the parts decoding rows share the reading of every block that they can.
    runner = ScheduleRunner(model, lambda _: SdpaAttention(least_saved=1) if part % 2 else SdpaAttention())
    went_through: Counter[str] = Counter()
    for seed in range(part * 60, part * 60 + 60):  # 240 schedules in all
        schedule = random_schedule(random.Random(seed), 512, length=40, outputs=8, requests=8)
        outcome = runner.run(schedule)
        assert largest_difference(runner, schedule, outcome) < 1e-4, f"seed {seed}"
        went_through["cached tokens"] += outcome.cached_tokens
        went_through["preemptions"] += outcome.preemptions
        went_through["copies"] += outcome.copies
        went_through["blocks shared within a step"] += outcome.shared_in_step
    assert min(went_through.values()) > 10, went_through


def random_model(dtype: torch.dtype, ops: LayerOps) -> LlamaModel:
    """Four layers of SmolLM2's width, where kernels do round differently for different numbers of rows."""
    spec = ModelSpec(
        architecture="llama",
        vocab_size=512,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=4,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        rms_norm_eps=1e-5,
        rope_theta=1e5,
        rope_scaling=None,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_ids=frozenset(),
    )
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * 0.04
        for name, shape in expected_shapes(spec).items()
    }
    return LlamaModel(spec, {name: w.to(dtype) for name, w in weights.items()}, CPU, ops)


def fused(pool: KVPool) -> FusedAttention:
    """The backend that serves, made to share and merge wherever it can."""
    library = load_library("attention")
    if library is None or not torch.cpu.get_capabilities().get("avx512_bf16"):
        pytest.skip("this CPU has no AVX512-BF16, or there is no compiler")
    assert library.ready()
    return FusedAttention(library, num_heads=9, least_saved=1)


@pytest.mark.skipif(
    resolve_dtype("auto", CPU) != torch.bfloat16,
    reason="this CPU only emulates bfloat16, which takes minutes; headstart serves in float32 on it",
)
@pytest.mark.parametrize("kernels", ["torch", "own"])
def test_bfloat16_logits_differ_no_more_than_cold_runs_among_themselves(kernels: str) -> None:
    own = kernels == "own"
    model = random_model(torch.bfloat16, layer_ops(CPU, torch.bfloat16, native=own))
    runner = ScheduleRunner(model, fused if own else lambda _: SdpaAttention(least_saved=1))
    among_cold = cached = 0.0
    cached_tokens = 0
    for seed in range(12):
        rng = random.Random(seed)
        schedule = random_schedule(rng, 512, length=300, outputs=4, requests=5)
        schedule.scheduler = SchedulerConfig(
            max_num_batched_tokens=rng.choice([64, 256, 512]), max_num_seqs=8
        )
        for script in schedule.scripts:
            whole, small, medium = (runner.cold_everywhere(script, chunk) for chunk in (None, 64, 256))
            for one, other in ((whole, small), (whole, medium), (small, medium)):
                among_cold = max(among_cold, (one - other).abs().max().item())
        outcome = runner.run(schedule)
        cached_tokens += outcome.cached_tokens
        cached = max(cached, largest_difference(runner, schedule, outcome))
    assert cached_tokens > 1000
    assert 0.0 < cached <= among_cold


def test_smollm2_gives_the_same_greedy_tokens(smollm2: ModelFiles) -> None:
    runner = ScheduleRunner(load(smollm2, torch.float32), lambda _: SdpaAttention())
    cached = 0
    for seed in range(8):
        schedule = random_schedule(random.Random(seed), 40_000, length=60, outputs=6, requests=4)
        cold = {}
        for script in schedule.scripts:  # prescribe what the model itself says when cold
            script.abort_at = None
            script.output, cold[script.name] = runner.greedy(script.prompt, len(script.output))
        outcome = runner.run(schedule)
        cached += outcome.cached_tokens
        for script in schedule.scripts:
            for warm, alone in zip(outcome.logits[script.name], cold[script.name], strict=True):
                first, second = alone.topk(2).values.tolist()
                assert warm.argmax() == alone.argmax() or first - second < 1e-4, f"seed {seed}"
    assert cached > 100
