"""Configuration: frozen dataclasses, one per part, checked once when they are made.

A part receives only its own section.  Nothing writes into a configuration after it was made: what
is only known later (the number of blocks that fit, say) travels in values of its own.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from headstart.errors import ConfigError

PrefixIndexName = Literal["radix", "hash"]
PolicyName = Literal["lru"]
FreeOrder = Literal["reverse", "unhashed_first"]
HashAlgorithm = Literal["sha256_cbor"]
SchedulingPolicy = Literal["fcfs", "priority"]
KernelsName = Literal["auto", "torch"]
DtypeName = Literal["auto", "bfloat16", "float16", "float32"]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


def _one_of(name: str, value: object, choices: object) -> None:
    allowed = get_args(choices)
    _require(value in allowed, f"{name} must be one of {', '.join(map(str, allowed))}, not {value!r}")


_MOST = 2**31 - 1
"""More blocks, tokens or requests than any machine has; what does not fit a C integer is a typing error."""


def _positive(name: str, value: object, most: int = _MOST) -> None:  # a caller may hand over anything
    whole = isinstance(value, int) and not isinstance(value, bool)
    _require(
        whole and isinstance(value, int) and value >= 1,
        f"{name} must be a whole number of at least 1, not {value!r}",
    )
    _require(isinstance(value, int) and value <= most, f"{name} must be at most {most}, not {value!r}")


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The cache core's part.

    ``num_blocks`` blocks of ``block_size`` token slots each.  ``free_order`` is the `hash` index's
    choice where freed blocks without a hash go: to the tail with the others (``reverse``, as in the
    published vLLM V1 design) or to the front, to be taken first (``unhashed_first``, as in vLLM 0.32).
    The radix index always does the latter.
    """

    num_blocks: int
    block_size: int = 16
    index: PrefixIndexName = "radix"
    policy: PolicyName = "lru"
    enable_prefix_caching: bool = True
    free_order: FreeOrder = "reverse"
    hash_algorithm: HashAlgorithm = "sha256_cbor"

    def __post_init__(self) -> None:
        _positive("num_blocks", self.num_blocks)
        _positive("block_size", self.block_size)
        _one_of("index", self.index, PrefixIndexName)
        _one_of("policy", self.policy, PolicyName)
        _one_of("free_order", self.free_order, FreeOrder)
        _one_of("hash_algorithm", self.hash_algorithm, HashAlgorithm)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model, and in what number format it runs.

    ``model`` is a built-in name, a Hugging Face directory or hub id, or a GGUF file.  ``dtype`` ``auto`` is
    bfloat16 where the device computes it natively, else float32.  ``kernels`` "auto" uses the project's
    own where they are faster and can be compiled; "torch" does without.
    """

    model: str = "smollm2-135m"
    served_model_name: str | None = None
    dtype: DtypeName = "auto"
    device: str = "auto"
    kernels: KernelsName = "auto"

    def __post_init__(self) -> None:
        _require(bool(self.model), "model must be a built-in name, a directory or a GGUF file, not ''")
        _require(
            self.served_model_name is None or bool(self.served_model_name.strip()),
            "served_model_name must be a name that clients can give, not ''",
        )
        _one_of("dtype", self.dtype, DtypeName)
        _one_of("kernels", self.kernels, KernelsName)


@dataclass(frozen=True, slots=True)
class KVConfig:
    """How much KV memory there is, and which index remembers what is in it.

    At most one of ``kv_cache_memory_bytes`` and ``num_blocks``; neither means a share of the memory
    that is free when the engine starts.
    """

    kv_cache_memory_bytes: int | None = None
    num_blocks: int | None = None
    block_size: int = 16
    prefix_index: PrefixIndexName = "radix"
    eviction_policy: PolicyName = "lru"
    enable_prefix_caching: bool = True

    def __post_init__(self) -> None:
        if self.kv_cache_memory_bytes is not None:
            _positive("kv_cache_memory_bytes", self.kv_cache_memory_bytes, most=2**62)
        if self.num_blocks is not None:
            _positive("num_blocks", self.num_blocks)
        _positive("block_size", self.block_size)
        _one_of("prefix_index", self.prefix_index, PrefixIndexName)
        _one_of("eviction_policy", self.eviction_policy, PolicyName)
        _require(
            self.kv_cache_memory_bytes is None or self.num_blocks is None,
            "give kv_cache_memory_bytes or num_blocks, not both",
        )

    def cache(self, num_blocks: int) -> CacheConfig:
        """The cache core's part, once it is known how many blocks there are."""
        return CacheConfig(
            num_blocks=num_blocks,
            block_size=self.block_size,
            index=self.prefix_index,
            policy=self.eviction_policy,
            enable_prefix_caching=self.enable_prefix_caching,
        )


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What one step may hold: ``max_num_batched_tokens`` tokens of at most ``max_num_seqs`` requests.

    "auto" shrinks the chunks of long prompts while other requests decode.  ``max_model_len`` bounds prompt
    plus output; ``None`` is the model's own context length.  ``scheduling_policy`` "priority" lets requests
    say theirs.  More than ``max_queued_requests`` waiting ones are turned away; ``None`` is no bound.
    Of a request with several choices each counts as one.
    """

    max_num_batched_tokens: int | Literal["auto"] = 2048
    max_num_seqs: int = 128
    max_model_len: int | None = None
    scheduling_policy: SchedulingPolicy = "fcfs"
    max_queued_requests: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.max_num_batched_tokens, str):
            _require(
                self.max_num_batched_tokens == "auto",
                "max_num_batched_tokens must be a whole number of at least 1 or auto, "
                f"not {self.max_num_batched_tokens!r}",
            )
        else:
            _positive("max_num_batched_tokens", self.max_num_batched_tokens)
        _one_of("scheduling_policy", self.scheduling_policy, SchedulingPolicy)
        if self.max_queued_requests is not None:
            _positive("max_queued_requests", self.max_queued_requests)
        _positive("max_num_seqs", self.max_num_seqs)
        if self.max_model_len is not None:
            _positive("max_model_len", self.max_model_len)
        _require(
            self.max_model_len is None or self.max_model_len >= 2,
            "max_model_len must be at least 2: a prompt of one token and one to generate",
        )


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything one engine needs to start.

    ``decision_log`` names a file that takes every call on the cache and what came of it, with the token
    ids of prompts and answers; if the file exists, its name gets a number.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    kv: KVConfig = field(default_factory=KVConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    seed: int = 0
    decision_log: str | None = None

    def __post_init__(self) -> None:
        _require(self.decision_log != "", "decision_log must name a file, not ''")
        _require(
            -(2**63) <= self.seed < 2**63, f"seed must be an integer of at most 64 bits, not {self.seed}"
        )

    @classmethod
    def from_options(cls, **options: Any) -> EngineConfig:
        """Sort flat options (``block_size=16, dtype="float32"``) into their parts.

        Raises ``ConfigError`` for an unknown name, with the nearest known one.
        """
        parts: dict[str, tuple[type[Any], dict[str, Any]]] = {
            "model": (ModelConfig, {}),
            "kv": (KVConfig, {}),
            "scheduler": (SchedulerConfig, {}),
        }
        own: dict[str, Any] = {}
        owners = {item.name: chosen for kind, chosen in parts.values() for item in fields(kind)}
        owners |= {"seed": own, "decision_log": own}
        for name, value in options.items():
            if name not in owners:
                near = difflib.get_close_matches(name, owners, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(sorted(owners))}"
                raise ConfigError(f"unknown option {name!r}{hint}")
            owners[name][name] = value
        return cls(**{part: kind(**chosen) for part, (kind, chosen) in parts.items()}, **own)
