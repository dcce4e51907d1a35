"""The cache core: pure Python data, no torch, no clock, no I/O.  `KVCacheManager` is its one door."""

from headstart.cache.index import BlockCopy, PartialBlock
from headstart.cache.keys import Adapter, CacheRequest, Namespace
from headstart.cache.manager import Allocation, CacheStats, KVCacheManager, Pin, PrefixHit
from headstart.cache.media import MediaSpan, PromptEmbeds
from headstart.cache.reasons import MissReason, MissReport
from headstart.config import CacheConfig

__all__ = [
    "Adapter",
    "Allocation",
    "BlockCopy",
    "CacheConfig",
    "CacheRequest",
    "CacheStats",
    "KVCacheManager",
    "MediaSpan",
    "MissReason",
    "MissReport",
    "Namespace",
    "PartialBlock",
    "Pin",
    "PrefixHit",
    "PromptEmbeds",
]
