"""The Llama family's decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

Its members differ in little (model/family.py): qwen2 has biases on q, k and v, qwen3 norms their heads,
smollm3 leaves some layers unrotated.

Shapes: T tokens of all sequences of a batch, laid end to end; H query heads on KVH key-value heads of
``head_dim``.  Weights come in under Hugging Face's names.  The oracles are transformers' own classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - the name that every reader of torch knows
from torch import Tensor

from headstart.model.attention import AttentionBackend, AttentionStep
from headstart.model.batch import ForwardBatch
from headstart.model.kv_pool import KVPool
from headstart.model.linear import DenseLinear, Linear, PackedLinear, filled_up, linear
from headstart.model.ops import LayerOps, Rotation, TorchOps, layer_ops
from headstart.model.source import ModelFiles
from headstart.model.spec import Llama3RopeScaling, ModelSpec
from headstart.model.weights import load_weights


def load_model(
    files: ModelFiles, spec: ModelSpec, *, dtype: torch.dtype, device: torch.device, native: bool = True
) -> LlamaModel:
    """The model of ``files``, ready to compute on ``device``; with ``native``, by the project's own kernels.

    Raises ``ModelError`` for files that are damaged or of an unknown kind.
    """
    ops = layer_ops(device, dtype, native=native)
    return LlamaModel(spec, load_weights(files, spec, dtype=dtype), device, ops)


class LlamaModel:
    """A decoder with its weights on one device.

    ``weights`` is emptied on the way, so that no tensor is held twice while others are being stacked.
    """

    def __init__(
        self, spec: ModelSpec, weights: dict[str, Tensor], device: torch.device, ops: LayerOps | None = None
    ) -> None:
        def take(name: str) -> Tensor:
            return weights.pop(name).to(device)

        self.spec = spec
        self.device = device
        self._ops = ops or TorchOps()
        self._embedding = take("model.embed_tokens.weight")
        self._layers = [DecoderLayer.take(spec, index, take) for index in range(spec.num_layers)]
        self._norm = take("model.norm.weight")
        self._lm_head = linear(self._embedding if spec.tie_word_embeddings else take("lm_head.weight"))
        self._rotary = Rotary(spec, device)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights and activations, hence of K and V."""
        return self._embedding.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of weights; a tied output matrix counts once, unless it is packed: a second copy."""
        shared = self.spec.tie_word_embeddings and isinstance(self._lm_head, DenseLinear)
        head = 0 if shared else self._lm_head.nbytes
        return self._embedding.nbytes + head + self._norm.nbytes + sum(layer.nbytes for layer in self._layers)

    @torch.inference_mode()
    def warm_up(self, num_tokens: int, num_logits: int) -> None:
        """Prepare for steps of up to so many tokens, with logits of so many: none of them waits, or grows.

        All layers have the same shapes, so one of them speaks for all.
        """
        maps = self._layers[0].maps if self._layers else ()
        for product, most in (*((each, num_tokens) for each in maps), (self._lm_head, num_logits)):
            if isinstance(product, PackedLinear):
                product.warm_up(most)

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, pool: KVPool, attention: AttentionBackend) -> Tensor:
        """Logits [R, vocab_size] in float32 of ``batch.logit_rows``.

        Writes K and V of all T tokens into ``pool``.
        """
        return self.logits(self.hidden(batch, pool, attention))

    @torch.inference_mode()
    def hidden(self, batch: ForwardBatch, pool: KVPool, attention: AttentionBackend) -> Tensor:
        """The normed stream [R, hidden_size] of ``batch.logit_rows``; writes as `forward` does."""
        stream = F.embedding(self._filled_up(batch.token_ids), self._embedding)
        delta: Tensor | None = None
        rotation = self._ops.rotation(self._rotary(self._filled_up(batch.positions)), self.dtype)
        step = Step(self._ops, rotation, batch.slots, pool, attention.prepare(batch, pool))
        for layer in self._layers:
            delta = layer.forward(stream, delta, step)
        last = stream[batch.logit_rows]
        last_delta = None if delta is None else delta[batch.logit_rows]
        return self._ops.add_rms_norm(last, last_delta, self._norm, self.spec.rms_norm_eps)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [R, vocab_size] in float32 of rows of `hidden`.  Large: 200 kB a row for 50,000 tokens."""
        num_rows = len(hidden)
        if isinstance(self._lm_head, PackedLinear):
            hidden = F.pad(hidden, (0, 0, 0, filled_up(num_rows) - num_rows))
        return self._lm_head(hidden)[:num_rows].float()

    def _filled_up(self, ids: Tensor) -> Tensor:
        """``ids`` [N] and, where linear maps are packed, zeros behind them: rows that nobody reads."""
        if not isinstance(self._lm_head, PackedLinear):
            return ids
        return F.pad(ids, (0, filled_up(len(ids)) - len(ids)))


@dataclass(frozen=True, slots=True)
class Step:
    """What all layers share in one forward pass: rotations, and where K and V go and are read.

    ``slots`` are those of the batch's tokens; the stream may have filler rows behind them.
    """

    ops: LayerOps
    rotation: Rotation
    slots: Tensor
    pool: KVPool
    attention: AttentionStep


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One layer: attention, then the gated feed-forward, each on the normed stream and added to it."""

    spec: ModelSpec
    index: int
    input_norm: Tensor
    qkv: Linear
    qk_norm: Tensor | None  # [H + KVH, head_dim]: the one weight of all q heads, then that of all k heads
    output: Linear
    post_attention_norm: Tensor
    gate_up: Linear
    down: Linear

    @classmethod
    def take(cls, spec: ModelSpec, index: int, take: WeightSource) -> DecoderLayer:
        """Layer ``index`` with its weights; q, k, v and gate, up are stacked: one product each."""
        attention, mlp = f"model.layers.{index}.self_attn", f"model.layers.{index}.mlp"
        projections = [f"{attention}.{name}_proj" for name in "qkv"]
        qk_norm = None
        if spec.qk_norm:
            q_norm, k_norm = (take(f"{attention}.{name}_norm.weight") for name in "qk")
            qk_norm = torch.stack([q_norm] * spec.num_heads + [k_norm] * spec.num_kv_heads)
        return cls(
            spec,
            index,
            input_norm=take(f"model.layers.{index}.input_layernorm.weight"),
            qkv=linear(
                *(take(f"{name}.weight") for name in projections),
                biases=[take(f"{name}.bias") for name in projections] if spec.qkv_bias else (),
            ),
            qk_norm=qk_norm,
            output=linear(take(f"{attention}.o_proj.weight")),
            post_attention_norm=take(f"model.layers.{index}.post_attention_layernorm.weight"),
            gate_up=linear(*(take(f"{mlp}.{name}_proj.weight") for name in ("gate", "up"))),
            down=linear(take(f"{mlp}.down_proj.weight")),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of weights."""
        norms = self.input_norm.nbytes + self.post_attention_norm.nbytes
        norms += 0 if self.qk_norm is None else self.qk_norm.nbytes
        return norms + sum(each.nbytes for each in self.maps)

    @property
    def maps(self) -> tuple[Linear, ...]:
        """Its linear maps."""
        return self.qkv, self.output, self.gate_up, self.down

    def forward(self, stream: Tensor, delta: Tensor | None, step: Step) -> Tensor:
        """What this layer adds to the stream [T, hidden_size], once ``delta`` of the one before is in it.

        Writes ``delta`` into the stream, and the layer's K and V into the pool.
        """
        spec, ops = self.spec, step.ops
        normed = ops.add_rms_norm(stream, delta, self.input_norm, spec.rms_norm_eps)
        heads = self.qkv(normed).view(len(stream), -1, spec.head_dim)
        queries, rotated = spec.num_heads, spec.num_heads + spec.num_kv_heads
        qk, v = heads[:, :rotated], heads[:, rotated:]
        if self.qk_norm is not None:
            qk = F.rms_norm(qk, (spec.head_dim,), eps=spec.rms_norm_eps) * self.qk_norm
        q, k = qk[:, :queries], qk[:, queries:]
        # A law: K and V of all sequences are in the pool before any of them attends, because requests
        # admitted in one step share the blocks that one of them fills in this step.
        if self.index in spec.no_rope_layers:
            num_tokens = len(step.slots)
            step.pool.write(self.index, step.slots, k[:num_tokens], v[:num_tokens])
        else:
            q = ops.rotate_and_write(q, k, v, step.rotation, *step.pool.slots(self.index), step.slots)
        attended = step.attention.attend(self.index, q)
        normed = ops.add_rms_norm(
            stream, self.output(attended.flatten(1)), self.post_attention_norm, spec.rms_norm_eps
        )
        return self.down(ops.silu_and_mul(self.gate_up(normed)))


class WeightSource(Protocol):
    """Gives a tensor by its Hugging Face name, once."""

    def __call__(self, name: str) -> Tensor:
        """The tensor ``name`` on the model's device."""


class Rotary:
    """Rotary position embedding (https://arxiv.org/abs/2104.09864): angles of positions."""

    def __init__(self, spec: ModelSpec, device: torch.device) -> None:
        exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.float32, device=device) / spec.head_dim
        self._frequencies = 1.0 / spec.rope_theta**exponents
        if spec.rope_scaling is not None:
            self._frequencies = scale_llama3(self._frequencies, spec.rope_scaling)

    def __call__(self, positions: Tensor) -> Tensor:
        """Radians [T, head_dim / 2] for ``positions`` [T], in float32."""
        return positions[:, None].float() * self._frequencies


def scale_llama3(frequencies: Tensor, scaling: Llama3RopeScaling) -> Tensor:
    """Radians per token [n], slowed down by ``scaling.factor`` where a wave is long; short waves stay.

    Counted in turns over the original context: at ``high_freq_factor`` turns and more a frequency stays,
    at ``low_freq_factor`` and fewer it is divided, and in between it is interpolated linearly.  The
    formula of Llama 3.1's reference code (``apply_scaling`` in llama-models, models/llama3/model.py).
    """
    turns = frequencies * scaling.original_max_position_embeddings / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clamp(0.0, 1.0)
    return frequencies * (kept + (1.0 - kept) / scaling.factor)
