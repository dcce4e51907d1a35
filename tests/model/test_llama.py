"""Our decoder against transformers' classes: tiny random models of each family, and SmolLM2 itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from headstart.engine.runner import build_batch
from headstart.model.attention import AttentionStep, ReferenceAttention, SdpaAttention
from headstart.model.batch import ForwardBatch
from headstart.model.kv_pool import KVPool
from headstart.model.llama import LlamaModel, load_model, scale_llama3
from headstart.model.source import ModelFiles, resolve
from headstart.model.spec import Llama3RopeScaling, ModelSpec, read_spec
from headstart.model.weights import load_weights
from tests.tiny_llama import (
    CPU,
    FAMILIES,
    chunked_logits,
    family_spec,
    make_pool,
    oracle_llama,
    our_llama,
    random_tokens,
    random_weights,
    row,
    tiny_spec,
)

SCALING = Llama3RopeScaling(
    factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
)


@pytest.mark.parametrize(
    "spec",
    [
        tiny_spec(),
        tiny_spec(tie_word_embeddings=False),
        tiny_spec(num_heads=4, num_kv_heads=4),
        tiny_spec(num_heads=4, num_kv_heads=1, num_layers=3),
        tiny_spec(num_heads=6, num_kv_heads=2, head_dim=8),
        tiny_spec(num_heads=2, num_kv_heads=1, head_dim=64, rms_norm_eps=1e-2),
        tiny_spec(rope_theta=500_000.0, rope_scaling=SCALING),
        tiny_spec(rope_theta=100.0, hidden_size=64, intermediate_size=32),
    ],
    ids=lambda spec: f"heads{spec.num_heads}-{spec.num_kv_heads}x{spec.head_dim}",
)
@pytest.mark.parametrize("chunks", [[150], [1] * 5 + [145], [64, 64, 22], [149, 1]], ids=str)
@torch.inference_mode()
def test_logits_are_transformers_logits(spec: ModelSpec, chunks: list[int]) -> None:
    weights = random_weights(spec)
    tokens = random_tokens(150, seed=1)
    expected = oracle_llama(spec, weights)(torch.tensor([tokens])).logits[0]
    logits = chunked_logits(our_llama(spec, weights), tokens, chunks, make_pool(spec, 40))
    assert logits.dtype == torch.float32
    assert expected.std() > 0.5  # else the tolerance would mean little
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("chunks", [[150], [64, 64, 22], [149, 1]], ids=str)
@pytest.mark.parametrize(
    "spec",
    [
        *map(family_spec, FAMILIES),
        family_spec("mistral", head_dim=24),
        family_spec("qwen2", tie_word_embeddings=False, num_kv_heads=1),
        family_spec("qwen3", num_heads=6, head_dim=16),
        family_spec("smollm3", num_layers=2, no_rope_layers=frozenset({0})),
    ],
    ids=lambda spec: (
        f"{spec.architecture}-{spec.num_heads}-{spec.num_kv_heads}x{spec.head_dim}x{spec.num_layers}"
    ),
)
@torch.inference_mode()
def test_every_family_has_transformers_logits(spec: ModelSpec, chunks: list[int]) -> None:
    weights = random_weights(spec)
    tokens = random_tokens(150, seed=1)
    expected = oracle_llama(spec, weights)(torch.tensor([tokens])).logits[0]
    logits = chunked_logits(our_llama(spec, weights), tokens, chunks, make_pool(spec, 40))
    assert expected.std() > 0.5
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("architecture", FAMILIES)
@torch.inference_mode()
def test_what_transformers_saves_is_what_we_compute(architecture: str, tmp_path: Path) -> None:
    spec = family_spec(architecture)
    oracle = oracle_llama(spec, random_weights(spec))
    oracle.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    files = resolve(str(tmp_path))
    assert read_spec(files) == spec
    model = load_model(files, spec, dtype=torch.float32, device=CPU)
    tokens = random_tokens(60, seed=1)
    logits = chunked_logits(model, tokens, [40, 20], make_pool(spec, 16))
    torch.testing.assert_close(logits, oracle(torch.tensor([tokens])).logits[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("architecture", FAMILIES)
@torch.inference_mode()
def test_bfloat16_is_as_near_to_float32_as_transformers_is(architecture: str) -> None:
    spec = family_spec(architecture)
    weights = random_weights(spec)
    narrow = {name: tensor.bfloat16() for name, tensor in weights.items()}
    wide = {name: tensor.float() for name, tensor in narrow.items()}
    tokens = random_tokens(150, seed=1)
    exact = oracle_llama(spec, wide)(torch.tensor([tokens])).logits[0]
    theirs = oracle_llama(spec, narrow)(torch.tensor([tokens])).logits[0].float()
    model = our_llama(spec, narrow)
    ours = chunked_logits(model, tokens, [100, 50], make_pool(spec, 40, dtype=torch.bfloat16))
    assert model.dtype == torch.bfloat16
    assert (ours - exact).norm() <= 1.2 * (theirs - exact).norm()


def test_sequences_of_a_batch_do_not_see_each_other_and_only_wanted_rows_get_logits() -> None:
    spec = tiny_spec()
    model, pool = our_llama(spec, random_weights(spec)), make_pool(spec, 60)
    prompts = [random_tokens(length, seed=length) for length in (1, 9, 30, 4)]
    tables = torch.randperm(60, generator=torch.Generator().manual_seed(0)).split(15)
    rows = [
        row(f"r{i}", prompt, table.tolist(), sample=i != 2)
        for i, (prompt, table) in enumerate(zip(prompts, tables, strict=True))
    ]
    batch = build_batch(rows, block_size=4, device=CPU)
    logits = model.forward(batch, pool, SdpaAttention())
    assert logits.shape == (3, spec.vocab_size)
    for got, i in zip(logits, (0, 1, 3), strict=True):
        alone = chunked_logits(model, prompts[i], [len(prompts[i])], make_pool(spec, 10))[-1]
        torch.testing.assert_close(got, alone, atol=1e-5, rtol=0)


def test_no_logits_wanted_is_no_rows() -> None:
    spec = tiny_spec()
    batch = build_batch([row("r", [1, 2, 3], [0], sample=False)], block_size=4, device=CPU)
    logits = our_llama(spec, random_weights(spec)).forward(batch, make_pool(spec, 1), SdpaAttention())
    assert logits.shape == (0, spec.vocab_size)


@pytest.mark.parametrize("twin_first", [True, False])
def test_a_sequence_reads_blocks_that_another_fills_in_the_same_step(twin_first: bool) -> None:
    spec = tiny_spec()
    model, pool = our_llama(spec, random_weights(spec)), make_pool(spec, 10)
    tokens = random_tokens(14, seed=3)
    writer = row("writer", tokens[:12], [7, 2, 5])
    # Shares two blocks with the writer, none of which is computed yet when the step begins.
    twin = row("twin", tokens[8:], [7, 2, 9, 1], start=8)
    rows = [twin, writer] if twin_first else [writer, twin]
    pool.keys.fill_(torch.nan)
    pool.values.fill_(torch.nan)
    logits = model.forward(build_batch(rows, block_size=4, device=CPU), pool, SdpaAttention())
    alone = chunked_logits(model, tokens, [14], make_pool(spec, 4))
    torch.testing.assert_close(logits[rows.index(twin)], alone[-1], atol=1e-5, rtol=0)
    torch.testing.assert_close(logits[rows.index(writer)], alone[11], atol=1e-5, rtol=0)


@dataclass
class WatchingAttention:
    """Checks the law at each layer: K and V of every token are in the pool before attention reads."""

    layers: list[int] = field(default_factory=list)

    def prepare(self, batch: ForwardBatch, pool: KVPool) -> AttentionStep:
        self.batch, self.pool = batch, pool
        self.inner = ReferenceAttention().prepare(batch, pool)
        return self

    def attend(self, layer: int, q: Tensor) -> Tensor:
        keys, values = self.pool.slots(layer)
        assert keys[self.batch.slots].isfinite().all()
        assert values[self.batch.slots].isfinite().all()
        self.layers.append(layer)
        return self.inner.attend(layer, q)


def test_every_layer_writes_all_keys_and_values_before_it_attends() -> None:
    spec = tiny_spec(num_layers=3)
    pool = make_pool(spec, 8)
    pool.keys.fill_(torch.nan)
    pool.values.fill_(torch.nan)
    rows = [row("a", [1, 2, 3, 4, 5], [6, 1]), row("b", [9], [0, 3], start=4), row("c", [7, 7], [2])]
    pool.keys[:, 0], pool.values[:, 0] = 0.0, 0.0  # what request b computed earlier
    batch = build_batch(rows, block_size=4, device=CPU)
    attention = WatchingAttention()
    logits = our_llama(spec, random_weights(spec)).forward(batch, pool, attention)
    assert attention.layers == [0, 1, 2]
    assert logits.isfinite().all()
    untouched = [4, 5, 7]
    assert pool.keys[:, untouched].isnan().all()


def test_rope_scaling_stops_where_llama_3_says() -> None:
    # One turn takes 2 pi / frequency tokens; waves of up to 64 / 4 tokens stay, from 64 / 1 on they stretch.
    wavelengths = torch.tensor([2.0, 15.9, 16.0, 32.0, 64.0, 64.1, 1e6])
    scaled = 2 * torch.pi / scale_llama3(2 * torch.pi / wavelengths, SCALING)
    # At 32: 2 turns, a third of the way from 1 to 4, so 1/3 + 2/3 / 8 of the frequency is left.
    expected = torch.tensor([2.0, 15.9, 16.0, 32 / (1 / 3 + 2 / 24), 512.0, 512.8, 8e6])
    torch.testing.assert_close(scaled, expected)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_weights_are_counted_once(architecture: str, tied: bool) -> None:
    spec = family_spec(architecture, tie_word_embeddings=tied)
    weights = random_weights(spec)
    assert our_llama(spec, weights).nbytes == sum(tensor.nbytes for tensor in weights.values())


@pytest.mark.parametrize("architecture", FAMILIES)
def test_weights_are_taken_out_of_the_dict(architecture: str) -> None:
    spec = family_spec(architecture)
    weights = random_weights(spec)
    LlamaModel(spec, weights, CPU)
    assert weights == {}


PROMPTS = (
    "The capital of France is",
    "<|im_start|>user\nWhat is a prefix cache?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nName three planets.<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n",
    "1, 2, 3, 4,",
    "Once upon a time, in a village by the sea, there lived",
    "Ein Zug fährt um 14:35 Uhr von Berlin nach",
    '{\n  "name": "headstart",\n  "version":',
    "Question: Why is the sky blue?\nAnswer:",
)
NEW_TOKENS = 64


@pytest.fixture(scope="module")
def smollm2_spec(smollm2: ModelFiles) -> ModelSpec:
    return read_spec(smollm2)


@pytest.fixture(scope="module")
def prompts(smollm2: ModelFiles) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(smollm2.tokenizer_dir / "tokenizer.json"))
    return [tokenizer.encode(prompt).ids for prompt in PROMPTS]


def test_smollm2_gives_transformers_logits_and_greedy_tokens(
    smollm2: ModelFiles, smollm2_spec: ModelSpec, prompts: list[list[int]]
) -> None:
    weights = load_weights(smollm2, smollm2_spec, dtype=torch.float32)
    texts, logits = greedy(our_llama(smollm2_spec, weights), prompts)
    oracle = oracle_llama(smollm2_spec, weights)
    for prompt, text, ours in zip(prompts, texts, logits, strict=True):
        # Equal at every position given the tokens before it: then greedy decoding is equal from the start.
        with torch.inference_mode():
            theirs = oracle(torch.tensor([text[:-1]])).logits[0, len(prompt) - 1 :]
        torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=0)
        chosen = torch.tensor(text[len(prompt) :])
        best = theirs.max(dim=-1)
        excused = best.values - theirs.gather(1, chosen[:, None])[:, 0] <= 1e-4  # a tie
        assert ((chosen == best.indices) | excused).all()


def greedy(model: LlamaModel, prompts: list[list[int]]) -> tuple[list[list[int]], list[Tensor]]:
    """Prompts continued by `NEW_TOKENS` tokens in one batch, and each one's logits [tokens, vocab]."""
    texts = [list(prompt) for prompt in prompts]
    per_text = -(-(max(map(len, prompts)) + NEW_TOKENS) // 16)
    order = torch.randperm(per_text * len(prompts), generator=torch.Generator().manual_seed(0))
    tables = [table.tolist() for table in order.split(per_text)]
    pool = make_pool(model.spec, len(order), block_size=16, dtype=model.dtype)
    attention = SdpaAttention()
    computed, steps = [0] * len(texts), []
    for _ in range(NEW_TOKENS):
        rows = [
            row(str(i), text[done:], table, start=done)
            for i, (text, done, table) in enumerate(zip(texts, computed, tables, strict=True))
        ]
        steps.append(model.forward(build_batch(rows, block_size=16, device=CPU), pool, attention))
        computed = [len(text) for text in texts]
        for text, token in zip(texts, steps[-1].argmax(dim=-1).tolist(), strict=True):
            text.append(token)
    return texts, list(torch.stack(steps, dim=1))


def test_smollm2_in_bfloat16_is_near_float32(
    smollm2: ModelFiles, smollm2_spec: ModelSpec, prompts: list[list[int]]
) -> None:
    results = {}
    for dtype in (torch.bfloat16, torch.float32):
        model = load_model(smollm2, smollm2_spec, dtype=dtype, device=CPU)
        pool = make_pool(smollm2_spec, 8, block_size=16, dtype=dtype)
        results[dtype] = chunked_logits(model, prompts[1], [len(prompts[1])], pool)
    exact = results[torch.float32]
    assert (results[torch.bfloat16] - exact).norm() < 0.03 * exact.norm()
