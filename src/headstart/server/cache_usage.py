"""What the cache did for a prompt, in the words of bills."""

from __future__ import annotations

from headstart.engine.messages import EngineInfo


def kept_tokens(info: EngineInfo, num_tokens: int) -> int:
    """How many of a prompt's first ``num_tokens`` the cache keeps for later prompts once they are computed.

    A radix tree keeps them all, hashed blocks only what fills a block.
    """
    if not info.enable_prefix_caching:
        return 0
    return num_tokens if info.prefix_index == "radix" else num_tokens - num_tokens % info.block_size
