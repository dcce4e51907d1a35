"""What every attention backend must do, checked against the reference, which is checked against a formula.

Slots that no sequence of a case may see hold NaN: whoever reads them, even with weight zero, fails.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from headstart.model.attention import AttentionBackend, FusedAttention, ReferenceAttention, SdpaAttention
from headstart.model.batch import ForwardBatch, SequenceSpan
from headstart.model.kv_pool import KVPool
from headstart.model.native import load_library
from tests.tiny_llama import CPU, tiny_spec

BACKENDS: dict[str, Callable[[], AttentionBackend]] = {
    "reference": ReferenceAttention,
    "sdpa": SdpaAttention,
    "sdpa sharing what it can": lambda: SdpaAttention(least_saved=1),
}
LAYERS = 2


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> AttentionBackend:
    return BACKENDS[request.param]()


class Case:
    """Sequences of (context length, query length) over blocks in random order, with random K and V."""

    def __init__(
        self,
        sequences: Sequence[tuple[int, int]],
        *,
        heads: tuple[int, int] = (4, 2),
        head_dim: int = 16,
        block_size: int = 4,
        dtype: torch.dtype = torch.float32,
        scattered: bool = True,
        shared_blocks: int | Sequence[int] = 0,
        seed: int = 0,
    ) -> None:
        torch.manual_seed(seed)
        tables = self._tables(sequences, block_size, scattered, shared_blocks)
        spec = tiny_spec(num_layers=LAYERS, num_heads=heads[0], num_kv_heads=heads[1], head_dim=head_dim)
        num_blocks = int(torch.cat(tables).max()) + 3
        self.pool = KVPool(spec, num_blocks=num_blocks, block_size=block_size, dtype=dtype, device=CPU)
        self.pool.keys.fill_(torch.nan)
        self.pool.values.fill_(torch.nan)
        spans, start = [], 0
        for (context, queries), table in zip(sequences, tables, strict=True):
            slots = (table[:, None] * block_size + torch.arange(block_size)).flatten()[:context]
            for layer in range(LAYERS):
                k, v = torch.randn(2, context, heads[1], head_dim, dtype=dtype)
                self.pool.write(layer, slots, 1.5 * k, v)
            spans.append(SequenceSpan(start, queries, context, table))
            start += queries
        unread = torch.zeros(0, dtype=torch.int64)
        self.batch = ForwardBatch(unread, unread, unread, tuple(spans), unread)
        # A view into something wider, as the model's own q is.
        self.q = torch.randn(start, heads[0] + 3, head_dim, dtype=dtype)[:, : heads[0]]

    @staticmethod
    def _tables(
        sequences: Sequence[tuple[int, int]], block_size: int, scattered: bool, shared: int | Sequence[int]
    ) -> list[Tensor]:
        """``shared`` blocks of each sequence, or of each but the first, are those of the one before it."""
        counts = [-(-context // block_size) for context, _ in sequences]
        order = torch.randperm if scattered else torch.arange
        ids = list(order(sum(counts) + 2).split([*counts, 2])[:-1])
        counts = [shared] * (len(ids) - 1) if isinstance(shared, int) else list(shared)
        for (table, other), count in zip(itertools.pairwise(ids), counts, strict=True):
            other[:count] = table[:count]
        return ids

    def expected(self, layer: int) -> Tensor:
        """The formula, in float64, one sequence and head at a time."""
        out = torch.empty(self.q.shape, dtype=torch.float64)
        for span in self.batch.sequences:
            k, v = (t.double() for t in self.pool.read(layer, span.block_ids, span.context_length))
            rows = slice(span.query_start, span.query_start + span.query_length)
            group = self.q.shape[1] // k.shape[1]
            seen = torch.ones(span.query_length, span.context_length, dtype=torch.bool)
            seen = seen.tril(span.context_length - span.query_length)
            for head in range(self.q.shape[1]):
                scores = self.q[rows, head].double() @ k[:, head // group].T / self.q.shape[2] ** 0.5
                weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
                out[rows, head] = weights @ v[:, head // group]
        return out

    def check(self, backend: AttentionBackend, tolerance: float) -> None:
        step = backend.prepare(self.batch, self.pool)
        for layer in range(LAYERS):
            attended, expected = step.attend(layer, self.q), self.expected(layer)
            assert attended.shape == self.q.shape
            assert attended.dtype == self.q.dtype
            error = (attended.double() - expected).norm(dim=(1, 2)) / expected.norm(dim=(1, 2))
            assert error.max() <= tolerance, f"layer {layer}, query {int(error.argmax())}: {error.max():.1e}"


MIXED = [(1, 1), (13, 13), (30, 1), (17, 4), (4, 1), (29, 2), (8, 8), (31, 1)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scattered", [True, False])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1), (9, 3)])
def test_chunks_and_single_queries_mixed(
    backend: AttentionBackend, heads: tuple[int, int], scattered: bool, seed: int
) -> None:
    Case(MIXED, heads=heads, scattered=scattered, seed=seed).check(backend, 1e-5)


@pytest.mark.parametrize("block_size", [1, 4, 16, 64])
@pytest.mark.parametrize("head_dim", [8, 64])
def test_block_sizes_and_head_sizes(backend: AttentionBackend, block_size: int, head_dim: int) -> None:
    Case(MIXED, block_size=block_size, head_dim=head_dim).check(backend, 1e-5)


@pytest.mark.parametrize("sequences", [[(23, 1)], [(23, 23)], [(23, 5)], [(40, 1), (40, 1)]])
def test_one_kind_of_work_alone(backend: AttentionBackend, sequences: list[tuple[int, int]]) -> None:
    Case(sequences).check(backend, 1e-5)


def test_sequences_share_blocks(backend: AttentionBackend) -> None:
    Case([(30, 1), (30, 6), (33, 1), (25, 1)], shared_blocks=5).check(backend, 1e-5)


@pytest.mark.parametrize("scattered", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_prefixes_within_prefixes(backend: AttentionBackend, dtype: torch.dtype, scattered: bool) -> None:
    lengths = [30, 30, 29, 41, 25, 26, 7, 18, 17]
    case = Case(
        [(length, 1) for length in lengths],
        shared_blocks=[7, 6, 6, 2, 5, 1, 0, 4],
        dtype=dtype,
        heads=(6, 2),
        scattered=scattered,
    )
    case.check(backend, 1e-5 if dtype == torch.float32 else 1e-2)


def test_single_queries_of_very_different_contexts(backend: AttentionBackend) -> None:
    Case([(2, 1), (1500, 1), (700, 1), (1499, 1), (3, 1)], heads=(2, 1)).check(backend, 1e-5)


@pytest.mark.parametrize("scattered", [True, False])
def test_long_chunks(scattered: bool) -> None:
    # Not for the reference, which would loop for a minute; it is the formula's equal in the tests above.
    case = Case([(600, 600), (900, 300), (257, 257)], heads=(2, 1), scattered=scattered)
    case.check(SdpaAttention(), 1e-5)


def test_bfloat16(backend: AttentionBackend) -> None:
    Case(MIXED, dtype=torch.bfloat16, heads=(9, 3), head_dim=64).check(backend, 1e-2)


def test_float16(backend: AttentionBackend) -> None:
    Case(MIXED, dtype=torch.float16).check(backend, 2e-3)


def test_steps_of_different_batches_on_one_backend(backend: AttentionBackend) -> None:
    for seed, sequences in enumerate(([(9, 1), (40, 1)], MIXED, [(5, 1), (6, 1), (7, 1)], [(12, 12)])):
        Case(sequences, seed=seed, head_dim=16 + 8 * (seed % 2)).check(backend, 1e-5)


def test_a_table_may_have_more_blocks_than_the_context(backend: AttentionBackend) -> None:
    case = Case([(9, 1), (6, 1), (11, 3)])
    longer = [
        SequenceSpan(
            span.query_start,
            span.query_length,
            span.context_length,
            torch.cat((span.block_ids, torch.tensor([case.pool.num_blocks - 1]))),
        )
        for span in case.batch.sequences
    ]
    unread = case.batch.slots
    case.batch = ForwardBatch(unread, unread, unread, tuple(longer), unread)
    case.check(backend, 1e-5)


# `FusedAttention` knows bfloat16 and head sizes that are multiples of 64: the same cases in its terms.

FUSED: dict[str, dict[str, int]] = {
    "as served": {},
    "shares what it can": {"least_saved": 1},
    "takes chunks of any length": {"long": 10_000},
    "leaves chunks to torch": {"long": 2, "least_saved": 1},
}
_LIBRARY = load_library("attention") if torch.cpu.get_capabilities().get("avx512_bf16") else None


@pytest.fixture(params=FUSED)
def fused(request: pytest.FixtureRequest) -> Callable[[int], FusedAttention]:
    """Makes the backend for a number of heads."""
    if _LIBRARY is None or not _LIBRARY.ready():
        pytest.skip("this CPU has no AVX512-BF16, or there is no compiler")
    return lambda num_heads: FusedAttention(_LIBRARY, num_heads, **FUSED[request.param])


@pytest.mark.parametrize("heads", [(4, 4), (9, 3), (8, 1), (14, 2)])
@pytest.mark.parametrize(("block_size", "head_dim"), [(1, 64), (4, 128), (16, 64), (64, 256), (48, 192)])
def test_fused_kernels(
    fused: Callable[[int], FusedAttention], heads: tuple[int, int], block_size: int, head_dim: int
) -> None:
    long = [*MIXED, (65, 65), (64, 1), (129, 3), (200, 70), (1, 1)]
    case = Case(long, dtype=torch.bfloat16, heads=heads, head_dim=head_dim, block_size=block_size)
    case.check(fused(heads[0]), 1e-2)


@pytest.mark.parametrize("scattered", [True, False])
@pytest.mark.parametrize("shared", [1, 5, [7, 6, 6, 2, 5, 1, 0, 4]])
def test_fused_kernels_share(
    fused: Callable[[int], FusedAttention], shared: int | list[int], scattered: bool
) -> None:
    lengths = [30, 30, 29, 41, 25, 26, 7 if isinstance(shared, list) else 33, 24, 22]
    case = Case(
        [(length, 1) for length in lengths],
        shared_blocks=shared,
        dtype=torch.bfloat16,
        heads=(6, 2),
        head_dim=64,
        scattered=scattered,
    )
    case.check(fused(6), 1e-2)


def test_fused_kernels_with_many_rows_and_long_contexts(fused: Callable[[int], FusedAttention]) -> None:
    sequences = [(1000 + 7 * i, 1) for i in range(40)] + [(900, 30), (1111, 63)]
    shared = [50] * 39 + [0, 20]
    case = Case(
        sequences, dtype=torch.bfloat16, heads=(3, 1), head_dim=64, block_size=16, shared_blocks=shared
    )
    case.check(fused(3), 1e-2)


def test_fused_kernels_repeat_themselves_and_pass_on_what_is_no_number(
    fused: Callable[[int], FusedAttention],
) -> None:
    case = Case(MIXED, dtype=torch.bfloat16, heads=(9, 3), head_dim=64)
    step = fused(9).prepare(case.batch, case.pool)
    assert torch.equal(step.attend(0, case.q), step.attend(0, case.q))
    case.pool.values[0].fill_(torch.nan)
    assert step.attend(0, case.q).isnan().all()
