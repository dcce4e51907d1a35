"""headstart: serve language models and never compute the same prompt prefix twice.

::

    from headstart import LLM, SamplingParams
    LLM("smollm2-135m").generate(["Hello"], SamplingParams(max_tokens=8))

Public names load when they are first used, so that ``import headstart`` alone brings no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headstart.cache import CacheRequest, KVCacheManager, Namespace
    from headstart.config import CacheConfig, EngineConfig
    from headstart.engine.llm import LLM, Generation
    from headstart.engine.request import SamplingParams
    from headstart.engine.structured import StructuredOutputs
    from headstart.errors import HeadstartError

_HOMES = {
    "CacheConfig": "headstart.config",
    "CacheRequest": "headstart.cache",
    "EngineConfig": "headstart.config",
    "Generation": "headstart.engine.llm",
    "HeadstartError": "headstart.errors",
    "KVCacheManager": "headstart.cache",
    "LLM": "headstart.engine.llm",
    "Namespace": "headstart.cache",
    "SamplingParams": "headstart.engine.request",
    "StructuredOutputs": "headstart.engine.structured",
}

__all__ = [
    "LLM",
    "CacheConfig",
    "CacheRequest",
    "EngineConfig",
    "Generation",
    "HeadstartError",
    "KVCacheManager",
    "Namespace",
    "SamplingParams",
    "StructuredOutputs",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headstart' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
