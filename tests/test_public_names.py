"""The public names.  A change here is a change for every user: it belongs into the change log."""

from __future__ import annotations

import importlib

import pytest

import headstart
import headstart.cache

HEADSTART = {
    "CacheConfig": "headstart.config",
    "CacheRequest": "headstart.cache.keys",
    "EngineConfig": "headstart.config",
    "Generation": "headstart.engine.llm",
    "HeadstartError": "headstart.errors",
    "KVCacheManager": "headstart.cache.manager",
    "LLM": "headstart.engine.llm",
    "Namespace": "headstart.cache.keys",
    "SamplingParams": "headstart.engine.request",
    "StructuredOutputs": "headstart.engine.structured",
}
CACHE = {
    "Adapter": "headstart.cache.keys",
    "Allocation": "headstart.cache.manager",
    "BlockCopy": "headstart.cache.index",
    "CacheConfig": "headstart.config",
    "CacheRequest": "headstart.cache.keys",
    "CacheStats": "headstart.cache.manager",
    "KVCacheManager": "headstart.cache.manager",
    "MediaSpan": "headstart.cache.media",
    "MissReason": "headstart.cache.reasons",
    "MissReport": "headstart.cache.reasons",
    "Namespace": "headstart.cache.keys",
    "PartialBlock": "headstart.cache.index",
    "Pin": "headstart.cache.manager",
    "PrefixHit": "headstart.cache.manager",
    "PromptEmbeds": "headstart.cache.media",
}


@pytest.mark.parametrize(("module", "names"), [(headstart, HEADSTART), (headstart.cache, CACHE)])
def test_the_public_list(module: object, names: dict[str, str]) -> None:
    assert set(module.__all__) == set(names)  # type: ignore[attr-defined]  # both modules have one
    assert len(module.__all__) == len(names)  # type: ignore[attr-defined]  # as above
    for name, home in names.items():
        found = getattr(module, name)
        assert found is getattr(importlib.import_module(home), name)
        assert found.__module__ == home
        assert found.__doc__


def test_names_that_load_late_are_listed_like_others() -> None:
    assert dir(headstart) == sorted(HEADSTART)
    for name in ("llm", "nonsense", "_HOME"):
        with pytest.raises(AttributeError, match=f"module 'headstart' has no attribute '{name}'"):
            getattr(headstart, name)
    with pytest.raises(ImportError):
        exec("from headstart import nonsense")
