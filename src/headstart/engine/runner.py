"""A step's plan → tensors → model → sampled tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from headstart.engine.prompt_logprobs import score_prompts
from headstart.engine.request import ScheduledRow, StepPlan, StepResult
from headstart.engine.sampler import Sampler
from headstart.model.attention import AttentionBackend
from headstart.model.batch import ForwardBatch, SequenceSpan
from headstart.model.kv_pool import KVPool
from headstart.model.llama import LlamaModel


class Runner:
    """Computes steps with one model over one pool."""

    def __init__(
        self, model: LlamaModel, pool: KVPool, attention: AttentionBackend, sampler: Sampler
    ) -> None:
        self.model = model
        self.pool = pool
        self._attention = attention
        self._sampler = sampler

    @torch.inference_mode()  # for the sampler: what the model computed in it may be changed only in it
    def run(self, plan: StepPlan) -> StepResult:
        """A token, or why there is none, for each row that asked for one; log-probabilities of its targets.

        Copies blocks and writes K and V, as `forward` does.  A row that fails takes no other with it.
        """
        if not plan.rows:
            return StepResult()
        sampling = [row for row in plan.rows if row.sample]
        hidden = self._hidden(plan)
        result = self._sampler.choose(self.model.logits(hidden[: len(sampling)]), sampling)
        told, failed = score_prompts(
            self.model.logits,
            hidden[len(sampling) :],
            plan.rows,
            vocab_size=self.model.spec.vocab_size,
        )
        result.prompt_logprobs.update(told)
        result.failed.update(failed)
        return result

    def forward(self, plan: StepPlan) -> Tensor:
        """Logits [rows that sample, vocab_size] in float32, of the last token of each such row, in order.

        First does the plan's copies, then writes K and V of all its tokens into the pool.
        """
        num_sampling = sum(row.sample for row in plan.rows)
        return self.model.logits(self._hidden(plan)[:num_sampling])

    def _hidden(self, plan: StepPlan) -> Tensor:
        """The model's `hidden` rows: of each row that samples, then of all targets of each row in turn."""
        self.pool.copy_blocks(plan.copies)
        batch = build_batch(plan.rows, block_size=self.pool.block_size, device=self.model.device)
        return self.model.hidden(batch, self.pool, self._attention)


def build_batch(rows: Sequence[ScheduledRow], *, block_size: int, device: torch.device) -> ForwardBatch:
    """The rows end to end, as tensors on ``device``.

    Logits are wanted of the last token of each row that samples; behind those, of the tokens before targets.
    """
    lengths = np.array([len(row.token_ids) for row in rows])
    ends = lengths.cumsum()
    starts = ends - lengths
    num_tokens = int(ends[-1])
    token_ids = np.fromiter(chain.from_iterable(row.token_ids for row in rows), np.int64, num_tokens)
    first_positions = np.array([row.start for row in rows])
    positions = np.arange(num_tokens) + np.repeat(first_positions - starts, lengths)

    # All block tables end to end; a token looks its block up in its own row's stretch.
    table_lengths = np.array([len(row.block_ids) for row in rows])
    table_ends = table_lengths.cumsum()
    tables = np.fromiter(chain.from_iterable(row.block_ids for row in rows), np.int64, table_ends[-1])
    assert (first_positions + lengths <= table_lengths * block_size).all(), "a block table is too short"
    blocks = tables[np.repeat(table_ends - table_lengths, lengths) + positions // block_size]
    slots = blocks * block_size + positions % block_size

    logit_rows = np.concatenate(
        [ends[[row.sample for row in rows]] - 1]
        + [
            start + row.targets.first + np.arange(len(row.targets.token_ids))
            for start, row in zip(starts, rows, strict=True)
            if row.targets is not None
        ]
    )
    host_tables = torch.from_numpy(tables).tensor_split(table_ends[:-1].tolist())
    sequences = tuple(
        SequenceSpan(start, length, first + length, table)
        for start, length, first, table in zip(
            starts.tolist(), lengths.tolist(), first_positions.tolist(), host_tables, strict=True
        )
    )
    token_tensor, position_tensor, slot_tensor, logit_tensor = (
        torch.from_numpy(array).to(device) for array in (token_ids, positions, slots, logit_rows)
    )
    return ForwardBatch(token_tensor, position_tensor, slot_tensor, sequences, logit_tensor)
