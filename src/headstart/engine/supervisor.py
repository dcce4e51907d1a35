"""Keeps an engine running: when its process dies, a new one is started.

It keeps `EngineClient`'s interface, so whoever serves requests need not know which engine it is now.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress

from headstart.cache import MissReport
from headstart.config import EngineConfig
from headstart.engine.client import EngineClient
from headstart.engine.messages import EngineInfo, EngineStats
from headstart.engine.request import PLAIN_TERMS, CacheTerms, RequestOutput, SamplingParams
from headstart.errors import EngineDeadError, HeadstartError

logger = logging.getLogger(__name__)

MAX_DEATHS, WINDOW_S = 5, 300.0
"""So many deaths within so many seconds, and no further engine is started."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 10.0
"""Between a death and the next start: doubled with each death in the window."""
HUNG_S = 300.0
"""An engine at work speaks after each step; a large step of a large model may take minutes on a CPU."""


class EngineSupervisor:
    """An engine that comes back.  Requests in flight when it dies fail at once; later ones are served."""

    info: EngineInfo

    def __init__(
        self,
        config: EngineConfig,
        make_client: Callable[[EngineConfig], EngineClient] = EngineClient,
        *,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        self._config = config
        self._make_client = make_client
        self._first_pause_s = first_pause_s
        self._client = make_client(config)
        self._earlier = EngineStats()
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS)
        self._down: str | None = "the engine was not started"
        self._keeper: asyncio.Task[None] | None = None

    @property
    def stats(self) -> EngineStats:
        """What the engine reported last, with the counters of all engines that went before it."""
        stats = self._client.stats.after(self._earlier)
        return stats if self.is_alive else stats.at_rest()

    def on_explained(self, told: Callable[[MissReport], object]) -> None:
        """Let ``told`` be told why each prompt missed, by this engine and those after it."""
        self._client.on_explained = told

    @property
    def is_alive(self) -> bool:
        """Whether an engine serves."""
        return self._down is None and self._client.is_alive

    @property
    def why_down(self) -> str | None:
        """A sentence that says why no engine serves; None while one does."""
        if self.is_alive:
            return None
        return self._down or "the engine has just ended and will be started again"

    @property
    def why_unhealthy(self) -> str | None:
        """A sentence that says why nobody is served: no engine, or one that hangs; None if all is well."""
        if self.why_down is None and self._client.silence_s > HUNG_S:
            return (
                f"the engine has said nothing for {self._client.silence_s:.0f} s, though requests wait for it"
            )
        return self.why_down

    async def start(self) -> EngineInfo:
        """Start the first engine.  Raises as `EngineClient.start` does: a bad start is not tried again."""
        self.info = await self._client.start()
        self._down = None
        self._keeper = asyncio.create_task(self._keep())
        return self.info

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str,
        terms: CacheTerms = PLAIN_TERMS,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """As `EngineClient.generate`; raises ``EngineDeadError`` at once while no engine serves."""
        self._demand_engine()
        return self._client.generate(
            prompt_token_ids, params, request_id=request_id, terms=terms, priority=priority
        )

    def check_queue(self, params: SamplingParams, num_prompts: int = 1) -> None:
        """As `EngineClient.check_queue`; raises ``EngineDeadError`` while no engine serves."""
        self._demand_engine()
        self._client.check_queue(params, num_prompts)

    def abort(self, request_id: str) -> None:
        """As `EngineClient.abort`."""
        self._client.abort(request_id)

    async def reset_prefix_cache(self) -> bool:
        """As `EngineClient.reset_prefix_cache`."""
        self._demand_engine()
        return await self._client.reset_prefix_cache()

    async def shutdown(self) -> None:
        """End the engine for good.  Harmless when repeated."""
        self._down = "the server is shutting down"
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        await self._client.shutdown()

    def _demand_engine(self) -> None:
        if (why := self.why_down) is not None:
            raise EngineDeadError(why if self._gave_up() else f"{why}; please try again")

    async def _keep(self) -> None:
        """Wait for a death, start anew; until it happens too often."""
        while True:
            why = await self._client.died()
            await self._client.shutdown()
            while not await self._restart(why):
                if self._gave_up():
                    return
                why = self._down or why

    async def _restart(self, why: str) -> bool:
        """One attempt after a pause; False if it failed or no more are made."""
        now = asyncio.get_running_loop().time()
        while self._deaths and now - self._deaths[0] > WINDOW_S:
            self._deaths.popleft()
        self._deaths.append(now)
        if self._gave_up():
            self._down = f"{why}; it died {MAX_DEATHS} times within {WINDOW_S:.0f} s and is not started again"
            logger.critical("%s; restart the server when the cause is mended", self._down)
            return False
        pause = min(self._first_pause_s * 2 ** (len(self._deaths) - 1), LONGEST_PAUSE_S)
        self._down = f"{why}; a new one is being started"
        logger.error("%s (in %.2f s; death %d of %d)", self._down, pause, len(self._deaths), MAX_DEATHS)
        await asyncio.sleep(pause)
        self._earlier = self.stats
        told, self._client = self._client.on_explained, self._make_client(self._config)
        self._client.on_explained = told
        try:
            self.info = await self._client.start()
        except HeadstartError as error:
            self._down = f"the engine could not be started again: {error}"
            return False
        self._down = None
        logger.warning("a new engine serves")
        return True

    def _gave_up(self) -> bool:
        return len(self._deaths) == MAX_DEATHS
