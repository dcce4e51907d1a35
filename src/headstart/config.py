"""Configuration: frozen dataclasses, one per part, checked once when they are made.

A part receives only its own section.  Nothing writes into a configuration after it was made: what
is only known later (the number of blocks that fit, say) travels in values of its own.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from headstart.errors import ConfigError

PrefixIndexName = Literal["radix", "hash"]
PolicyName = Literal["lru", "fifo", "lfu", "lrfu", "slru", "ttl", "cost"]
FreeOrder = Literal["reverse", "unhashed_first"]
HashAlgorithm = Literal["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"]
SchedulingPolicy = Literal["fcfs", "priority"]
EventPublisherName = Literal["null", "zmq"]
KernelsName = Literal["auto", "torch"]
ToolCallParserName = Literal["auto", "hermes", "llama3_json", "mistral", "qwen3_coder"]
DtypeName = Literal["auto", "bfloat16", "float16", "float32"]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


def _one_of(name: str, value: object, choices: object) -> None:
    allowed = get_args(choices)
    _require(value in allowed, f"{name} must be one of {', '.join(map(str, allowed))}, not {value!r}")


_MOST = 2**31 - 1
"""More blocks, tokens or requests than any machine has; what does not fit a C integer is a typing error."""


_LONGEST = 1e9
"""Seconds: 31 years, so that times stay exact to the microsecond."""


def _positive(name: str, value: object, most: int = _MOST) -> None:  # a caller may hand over anything
    whole = isinstance(value, int) and not isinstance(value, bool)
    _require(
        whole and isinstance(value, int) and value >= 1,
        f"{name} must be a whole number of at least 1, not {value!r}",
    )
    _require(isinstance(value, int) and value <= most, f"{name} must be at most {most}, not {value!r}")


def _number(name: str, value: object, most: float, *, above_zero: bool = True) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    least = "a number above 0" if above_zero else "a number from 0"
    fits = number and isinstance(value, int | float) and (value > 0 or not above_zero) and 0 <= value <= most
    _require(fits, f"{name} must be {least} and up to {most:g}, not {value!r}")


def is_cryptographic(algorithm: str) -> bool:
    """Whether nobody can make two prompts of one digest: what isolation between tenants asks for.

    Raises ``ConfigError`` for an unknown algorithm.
    """
    _one_of("hash_algorithm", algorithm, HashAlgorithm)
    return algorithm.startswith("sha256")


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The cache core's part.

    ``num_blocks`` blocks of ``block_size`` token slots each.  ``free_order`` is the `hash` index's
    choice where freed blocks without a hash go: to the tail with the others (``reverse``, as in the
    published vLLM V1 design) or to the front, to be taken first (``unhashed_first``, as in vLLM 0.32).
    The radix index always does the latter, and so does `hash` where use decides what goes first.
    ``hash_algorithm`` makes the digests of blocks, which the `hash` index looks up and events and tiers name;
    the names are vLLM's.

    ``policy`` is described in cache/eviction.py.  Each of its options concerns one: ``ttl_seconds`` (`ttl`),
    ``half_life_seconds`` (`lrfu`), ``lfu_ageing`` (`lfu`), ``protected_share`` of the pool (`slru`), and
    ``cost_depth_tokens`` (`cost`): how deep a token costs twice as much as the first.
    ``evict_generated_first`` lets answers go before prompts.  At most ``max_pinned_share`` of the pool can be
    pinned.
    With ``tenant_share`` tenants that hold more of the pool give way first (cache/fair.py).
    ``explain_misses`` keeps what reasons for misses take.
    With ``enable_kv_cache_events`` the manager keeps events, which must be taken; ``kv_event_medium`` is what
    they call the pool (followers take "CPU" for a slower tier).
    """

    num_blocks: int
    block_size: int = 16
    index: PrefixIndexName = "radix"
    policy: PolicyName = "lru"
    enable_prefix_caching: bool = True
    free_order: FreeOrder = "reverse"
    hash_algorithm: HashAlgorithm = "sha256_cbor"
    ttl_seconds: float = 300.0
    half_life_seconds: float = 100.0
    lfu_ageing: bool = True
    protected_share: float = 0.8
    cost_depth_tokens: int = 8192
    evict_generated_first: bool = False
    max_pinned_share: float = 0.5
    tenant_share: float | None = None
    explain_misses: bool = True
    enable_kv_cache_events: bool = False
    kv_event_medium: str = "GPU"

    def __post_init__(self) -> None:
        _positive("num_blocks", self.num_blocks)
        _positive("block_size", self.block_size)
        _one_of("index", self.index, PrefixIndexName)
        _one_of("policy", self.policy, PolicyName)
        _one_of("free_order", self.free_order, FreeOrder)
        _one_of("hash_algorithm", self.hash_algorithm, HashAlgorithm)
        _number("ttl_seconds", self.ttl_seconds, most=_LONGEST)
        _number("half_life_seconds", self.half_life_seconds, most=_LONGEST)
        _number("protected_share", self.protected_share, most=1.0, above_zero=False)
        _positive("cost_depth_tokens", self.cost_depth_tokens)
        if self.tenant_share is not None:
            _number("tenant_share", self.tenant_share, most=1.0)
        _number("max_pinned_share", self.max_pinned_share, most=1.0, above_zero=False)


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
    that is free when the engine starts.  ``estimate_hit_rates`` watches a sample of blocks for what other
    capacities would hit (with LRU alone).  `CacheConfig` describes what concerns eviction.
    """

    kv_cache_memory_bytes: int | None = None
    num_blocks: int | None = None
    block_size: int = 16
    prefix_index: PrefixIndexName = "radix"
    eviction_policy: PolicyName = "lru"
    enable_prefix_caching: bool = True
    eviction_ttl_seconds: float = 300.0
    eviction_half_life_seconds: float = 100.0
    eviction_protected_share: float = 0.8
    evict_generated_first: bool = False
    max_pinned_share: float = 0.5
    tenant_cache_share: float | None = None
    prefix_caching_hash_algo: HashAlgorithm = "sha256_cbor"
    explain_misses: bool = True
    estimate_hit_rates: bool = True

    def __post_init__(self) -> None:
        if self.kv_cache_memory_bytes is not None:
            _positive("kv_cache_memory_bytes", self.kv_cache_memory_bytes, most=2**62)
        if self.num_blocks is not None:
            _positive("num_blocks", self.num_blocks)
        _positive("block_size", self.block_size)
        _one_of("prefix_index", self.prefix_index, PrefixIndexName)
        _one_of("eviction_policy", self.eviction_policy, PolicyName)
        _number("eviction_ttl_seconds", self.eviction_ttl_seconds, most=_LONGEST)
        _number("eviction_half_life_seconds", self.eviction_half_life_seconds, most=_LONGEST)
        _number("eviction_protected_share", self.eviction_protected_share, most=1.0, above_zero=False)
        _number("max_pinned_share", self.max_pinned_share, most=1.0, above_zero=False)
        if self.tenant_cache_share is not None:
            _number("tenant_cache_share", self.tenant_cache_share, most=1.0)
        _one_of("prefix_caching_hash_algo", self.prefix_caching_hash_algo, HashAlgorithm)
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
            ttl_seconds=self.eviction_ttl_seconds,
            half_life_seconds=self.eviction_half_life_seconds,
            protected_share=self.eviction_protected_share,
            evict_generated_first=self.evict_generated_first,
            max_pinned_share=self.max_pinned_share,
            tenant_share=self.tenant_cache_share,
            hash_algorithm=self.prefix_caching_hash_algo,
            explain_misses=self.explain_misses,
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
class KVEventsConfig:
    """Whether and where KV events are published; names and defaults are those of vLLM's --kv-events-config.

    ``endpoint`` is bound if it has a ``*`` or ``::`` or is a file (``ipc://``), and connected to otherwise;
    ``replay_endpoint`` is bound.  The last ``buffer_steps`` batches are kept for replay.  ``max_queue_size``
    batches may wait to be sent, and ``hwm`` for each subscriber; what is more is dropped, never waited for.
    """

    enable_kv_cache_events: bool = False
    publisher: EventPublisherName = "zmq"
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""

    def __post_init__(self) -> None:
        enable: object = self.enable_kv_cache_events  # JSON may bring anything
        _require(isinstance(enable, bool), f"enable_kv_cache_events must be true or false, not {enable!r}")
        _one_of("publisher", self.publisher, EventPublisherName)
        _endpoint("endpoint", self.endpoint)
        if self.replay_endpoint is not None:
            _endpoint("replay_endpoint", self.replay_endpoint)
            same = self.replay_endpoint == self.endpoint and not self.endpoint.endswith(":*")
            _require(not same, f"endpoint and replay_endpoint must differ; both are {self.endpoint!r}")
        for name in ("buffer_steps", "hwm", "max_queue_size"):
            _positive(name, getattr(self, name))
        topic: object = self.topic
        _require(isinstance(topic, str), f"topic must be a text, not {topic!r}")

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> KVEventsConfig:
        """Raises ``ConfigError`` for an unknown name or a bad value."""
        known = [item.name for item in fields(cls)]
        for name in options:
            _require(name in known, f"kv_events_config: {_unknown(name, known)}")
        try:
            return cls(**options)
        except ConfigError as error:
            raise ConfigError(f"kv_events_config: {error}") from error

    @classmethod
    def from_json(cls, text: str) -> KVEventsConfig:
        """From a JSON object.  Raises ``ConfigError`` for what is none, as well."""
        try:
            options = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"kv_events_config is not JSON: {error}") from error
        _require(isinstance(options, dict), f"kv_events_config must be a JSON object, not {text}")
        return cls.from_mapping(options)


def _endpoint(name: str, value: object) -> None:
    tcp = re.fullmatch(r"tcp://[^\s/]+:(\*|[0-9]{1,5})", value) if isinstance(value, str) else None
    named = isinstance(value, str) and re.fullmatch(r"ipc://.+", value)
    _require(
        bool(named) or (tcp is not None and (tcp[1] == "*" or 1 <= int(tcp[1]) <= 65535)),
        f"{name} must be like tcp://*:5557 or ipc:///run/kv-events, not {value!r}",
    )


def _unknown(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(sorted(known))}"
    return f"unknown option {name!r}{hint}"


SECRET_VARIABLES = ("HEADSTART_API_KEY", "HEADSTART_ADMIN_API_KEY")
"""Environment variables that hold keys: no process that we start inherits them."""


def is_api_key(text: str) -> bool:
    """Whether ``text`` can be sent as a key in a header: visible ASCII, without spaces."""
    return re.fullmatch(r"[!-~]{1,1024}", text) is not None


@dataclass(frozen=True, slots=True)
class KeysConfig:
    """Keys of one kind: those ``given``, and those in ``file``, one a line, read anew when it changes."""

    given: tuple[str, ...] = field(default=(), repr=False)
    file: str | None = None

    def __post_init__(self) -> None:
        # Whatever is wrong with a key, no sentence may quote it.
        _require(
            all(map(is_api_key, self.given)),
            "an API key must be 1 to 1024 visible ASCII characters without spaces; one that was given is not",
        )
        _require(self.file != "", "an API key file must have a name, not ''")

    @property
    def are_wanted(self) -> bool:
        """Whether a key is asked for, even if the file has none at the moment."""
        return bool(self.given) or self.file is not None


NO_KEYS = KeysConfig()


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The HTTP process's part.  With ``strict`` a field that nobody knows is an error, and not ignored.

    Whoever brings one of ``api_keys`` is served; everybody is where none are wanted.  ``isolate_by`` says
    who shares a cache: "none" (all do), "api-key" (one key's requests) or "header:NAME" (those with one
    value of a header that a proxy sets).  ``isolation_secret_file`` holds what salts are derived from;
    ``None`` is a file of our own, made on first use.  With isolation, what shows or changes the state that
    tenants share is for who has one of ``admin_api_keys``, or is served apart (``has_admin_port``).
    ``tool_call_parser`` names the form that the model writes tool calls in; "auto" is its chat template's.
    ``trust_request_chat_template`` says whether requests may bring a template; ``None`` is: while callers are
    not told apart.
    ``otlp_endpoint`` is where traces and metrics go, in OpenTelemetry's protocol over HTTP.
    ``shutdown_timeout`` is for how many seconds running requests may go on after a signal to stop.
    """

    strict: bool = False
    api_keys: KeysConfig = NO_KEYS
    admin_api_keys: KeysConfig = NO_KEYS
    isolate_by: str = "none"
    isolation_secret_file: str | None = None
    has_admin_port: bool = False
    tool_call_parser: ToolCallParserName = "auto"
    trust_request_chat_template: bool | None = None
    otlp_endpoint: str | None = None
    shutdown_timeout: float = 5.0

    def __post_init__(self) -> None:
        _one_of("tool_call_parser", self.tool_call_parser, ToolCallParserName)
        _number("shutdown_timeout", self.shutdown_timeout, most=_LONGEST, above_zero=False)
        _require(
            self.otlp_endpoint is None or re.fullmatch(r"https?://[^/\s]\S*", self.otlp_endpoint) is not None,
            f"otlp_endpoint must be a URL like http://127.0.0.1:4318, not {self.otlp_endpoint!r}",
        )
        _require(
            self.isolate_by in ("none", "api-key") or self.isolation_header is not None,
            f"isolate_by must be none, api-key or header:NAME with a header's name, not {self.isolate_by!r}",
        )
        _require(
            self.isolate_by != "api-key" or self.api_keys.are_wanted,
            "isolate_by api-key needs API keys: give --api-key-file, or set HEADSTART_API_KEY",
        )
        _require(
            self.isolates or self.isolation_secret_file is None,
            "isolation_secret_file is of no use with isolate_by none: choose api-key or header:NAME",
        )

    @property
    def isolates(self) -> bool:
        """Whether tenants are kept apart."""
        return self.isolate_by != "none"

    @property
    def isolation_header(self) -> str | None:
        """The header whose value says who asks; None where no header does."""
        named = re.fullmatch(r"header:([!#$%&'*+.^_`|~0-9A-Za-z-]+)", self.isolate_by)
        return None if named is None else named[1].lower()

    def check_engine(self, engine: EngineConfig) -> None:
        """Raises ``ConfigError`` if the engine names blocks in a way that isolation cannot rest on."""
        algorithm = engine.kv.prefix_caching_hash_algo
        _require(
            not self.isolates or is_cryptographic(algorithm),
            f"isolate_by {self.isolate_by} needs digests that nobody can make collide, and "
            f"prefix_caching_hash_algo {algorithm} has none: use sha256_cbor or sha256",
        )


PLAIN_SERVER = ServerConfig()


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
    kv_events_config: KVEventsConfig = field(default_factory=KVEventsConfig)

    def __post_init__(self) -> None:
        _require(
            self.kv.enable_prefix_caching or not self.kv_events_config.enable_kv_cache_events,
            "KV events tell what the prefix cache holds: turn on enable_prefix_caching, or them off",
        )
        _require(self.decision_log != "", "decision_log must name a file, not ''")
        _require(
            -(2**63) <= self.seed < 2**63, f"seed must be an integer of at most 64 bits, not {self.seed}"
        )

    @classmethod
    def from_options(cls, **options: Any) -> EngineConfig:
        """Sort flat options (``block_size=16, dtype="float32"``) into their parts.

        ``kv_events_config`` may be a mapping.  Raises ``ConfigError`` for an unknown name, with the nearest
        known one.
        """
        parts: dict[str, tuple[type[Any], dict[str, Any]]] = {
            "model": (ModelConfig, {}),
            "kv": (KVConfig, {}),
            "scheduler": (SchedulerConfig, {}),
        }
        own: dict[str, Any] = {}
        owners = {item.name: chosen for kind, chosen in parts.values() for item in fields(kind)}
        owners |= dict.fromkeys(("seed", "decision_log", "kv_events_config"), own)
        for name, value in options.items():
            if name not in owners:
                raise ConfigError(_unknown(name, owners))
            owners[name][name] = value
        if isinstance(own.get("kv_events_config"), Mapping):
            own["kv_events_config"] = KVEventsConfig.from_mapping(own["kv_events_config"])
        return cls(**{part: kind(**chosen) for part, (kind, chosen) in parts.items()}, **own)
