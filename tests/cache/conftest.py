from __future__ import annotations

from typing import Any

import pytest

from tests.cache.checked import FLAVOURS, CheckedManager, Make, make_manager


@pytest.fixture(params=FLAVOURS)
def make(request: pytest.FixtureRequest) -> Make:
    """What makes a checked manager, once for each index and order."""

    def build(num_blocks: int, block_size: int = 4, **options: Any) -> CheckedManager:
        return make_manager(num_blocks, block_size, **FLAVOURS[request.param] | options)

    return build
