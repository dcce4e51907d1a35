"""Random llamas of a few thousand weights, ours and transformers' (the oracle), and rows to run on them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from headstart.engine.request import SamplingParams, ScheduledRow
from headstart.engine.runner import build_batch
from headstart.model.attention import SdpaAttention
from headstart.model.batch import ForwardBatch
from headstart.model.kv_pool import KVPool
from headstart.model.llama import LlamaModel
from headstart.model.spec import ModelSpec
from headstart.model.weights import expected_shapes

CPU = torch.device("cpu")
GREEDY = SamplingParams(temperature=0.0)


def tiny_spec(**changes: Any) -> ModelSpec:
    """Two layers, 4 heads on 2 KV heads of 16, 128 tokens; ``changes`` are laid over it."""
    fields: dict[str, Any] = {
        "architecture": "llama",
        "vocab_size": 128,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "rope_scaling": None,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "eos_token_ids": frozenset({2}),
    }
    return ModelSpec(**(fields | changes))


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"tie_word_embeddings": False},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True, "head_dim": 24},
    "smollm3": {"num_layers": 5, "no_rope_layers": frozenset({3})},
}


def family_spec(architecture: str, **changes: Any) -> ModelSpec:
    """`tiny_spec` with what sets ``architecture`` apart."""
    return tiny_spec(architecture=architecture, **(FAMILIES[architecture] | changes))


def random_weights(spec: ModelSpec, seed: int = 0) -> dict[str, Tensor]:
    """Weights that keep activations near one, so that an error somewhere shows in the logits."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in expected_shapes(spec).items():
        tensor = torch.randn(shape, generator=generator)
        if name.endswith(".bias"):
            weights[name] = tensor
        else:
            weights[name] = 1 + 0.1 * tensor if len(shape) == 1 else tensor * 2 / shape[-1] ** 0.5
    return weights


def our_llama(spec: ModelSpec, weights: dict[str, Tensor]) -> LlamaModel:
    """Our model with these weights, which stay as they are."""
    return LlamaModel(spec, dict(weights), CPU)


def oracle_llama(spec: ModelSpec, weights: dict[str, Tensor]) -> PreTrainedModel:
    """transformers' model of the same architecture with these weights, in their dtype."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": spec.rope_theta}
    if spec.rope_scaling is not None:
        rope |= {"rope_type": "llama3", **asdict(spec.rope_scaling)}
    more: dict[str, Any] = {}
    if spec.architecture == "smollm3":
        more["no_rope_layers"] = [int(index not in spec.no_rope_layers) for index in range(spec.num_layers)]
    config = AutoConfig.for_model(
        spec.architecture,
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        rms_norm_eps=spec.rms_norm_eps,
        max_position_embeddings=spec.max_position_embeddings,
        tie_word_embeddings=spec.tie_word_embeddings,
        rope_parameters=rope,
        sliding_window=None,
        bos_token_id=1,
        eos_token_id=sorted(spec.eos_token_ids),
        pad_token_id=None,
        **more,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=weights["model.norm.weight"].dtype).eval()
    if spec.tie_word_embeddings:
        weights = weights | {"lm_head.weight": weights["model.embed_tokens.weight"]}
    model.load_state_dict(weights)
    return model


def all_logits(batch: ForwardBatch) -> ForwardBatch:
    """The same batch with the logits of every token wanted."""
    rows = torch.arange(len(batch.token_ids))
    return ForwardBatch(batch.token_ids, batch.positions, batch.slots, batch.sequences, rows)


def chunked_logits(model: LlamaModel, tokens: list[int], chunks: list[int], pool: KVPool) -> Tensor:
    """Logits of every token of one sequence, computed chunk after chunk over blocks in reverse order."""
    blocks = list(range(pool.num_blocks - 1, -1, -1))
    parts, start = [], 0
    attention = SdpaAttention()
    for length in chunks:
        chunk = row("r", tokens[start : start + length], blocks, start=start)
        batch = build_batch([chunk], block_size=pool.block_size, device=CPU)
        parts.append(model.forward(all_logits(batch), pool, attention))
        start += length
    assert start == len(tokens)
    return torch.cat(parts)


def make_pool(spec: ModelSpec, num_blocks: int, *, block_size: int = 4, dtype: Any = torch.float32) -> KVPool:
    """A pool on the CPU."""
    return KVPool(spec, num_blocks=num_blocks, block_size=block_size, dtype=dtype, device=CPU)


def row(
    request_id: str,
    token_ids: list[int],
    block_ids: list[int],
    *,
    start: int = 0,
    sample: bool = True,
    params: SamplingParams = GREEDY,
    num_output_tokens: int = 0,
    token_counts: dict[int, int] | None = None,
) -> ScheduledRow:
    """A request's share of a step."""
    return ScheduledRow(
        request_id, token_ids, start, block_ids, sample, params, num_output_tokens, token_counts
    )


def random_tokens(count: int, *, seed: int, vocab_size: int = 128) -> list[int]:
    """Token ids, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab_size, (count,), generator=generator).tolist()
