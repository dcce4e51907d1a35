"""A model as a calculator sees it: what its layers keep of each token, and how many parameters it has.

headstart serves few architectures (model/spec.py) and refuses the others; here many more can be counted,
because nothing is computed with them.
"""

from __future__ import annotations

from dataclasses import dataclass

from headstart.lab.calc.precision import Quantization


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that keep the same of each token.  Layers without a KV cache are in no group.

    ``num_heads`` is what can be divided among GPUs: KV heads, or 1 where one latent vector serves all
    heads (MLA, ``is_latent``).  ``elements_per_head`` counts K and V together.  A layer with a ``window``
    needs the last ``window`` tokens alone.
    """

    num_layers: int
    num_heads: int
    elements_per_head: int
    window: int | None = None
    is_latent: bool = False

    def elements_per_token(self, tensor_parallel: int = 1) -> int:
        """In all its layers, on each of so many GPUs: a head cannot be split, so at least one is on each."""
        return self.num_layers * -(-self.num_heads // tensor_parallel) * self.elements_per_head


@dataclass(frozen=True, slots=True)
class Parameters:
    """How many parameters a model has, by what quantisation does with them.

    ``kept``: embeddings, output head, norms, biases and routers, which stay as they are.  ``linear``: the
    matrices of attention and of what every token goes through.  ``experts``: those of all routed experts, of
    which one token uses ``active_experts``.
    """

    kept: int
    linear: int
    experts: int = 0
    active_experts: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.kept + self.linear + self.experts

    @property
    def active(self) -> int:
        """Those that one token uses; embeddings count whole."""
        return self.kept + self.linear + self.active_experts


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's shape, and where it was read.

    ``parameters`` is None for an architecture whose weights are not known here; ``stored_bytes`` are those
    of the weight files, where there are any.  ``notes`` are sentences: what is not counted, or assumed.
    """

    name: str
    source: str
    architecture: str
    num_layers: int
    groups: tuple[LayerGroup, ...]
    parameters: Parameters | None
    dtype: str
    quantization: Quantization | None = None
    context_length: int | None = None
    stored_bytes: int | None = None
    notes: tuple[str, ...] = ()

    def elements_per_token(self, *, beyond_windows: bool = False, tensor_parallel: int = 1) -> int:
        """What one token takes in the KV cache; beyond all windows, only layers without one keep it."""
        groups = [group for group in self.groups if group.window is None or not beyond_windows]
        return sum(group.elements_per_token(tensor_parallel) for group in groups)

    @property
    def has_windows(self) -> bool:
        """Whether any layer looks back a limited number of tokens."""
        return any(group.window is not None for group in self.groups)
