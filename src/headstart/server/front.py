"""What every route needs, and what a chat and a completion do alike before the engine takes over."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass, field

from starlette.requests import Request

from headstart.config import PLAIN_SERVER, ServerConfig
from headstart.engine.choices import as_ranked
from headstart.engine.request import CacheTerms, SamplingParams
from headstart.engine.supervisor import EngineSupervisor
from headstart.errors import RequestError, shown
from headstart.server.caller import Caller
from headstart.server.choice import Echo
from headstart.server.generation import Generation
from headstart.server.metrics import Metrics
from headstart.server.protocol import GenerationRequest
from headstart.text import ChatTemplate, Tokenizer

# Longer texts are tokenised in a thread, so that other requests, and /health, need not wait; for shorter
# ones the thread costs more than it saves.
LONG_TEXT = 4096


@dataclass(frozen=True, slots=True)
class Ticket:
    """An admitted request: its id on the wire, when it came, from whom, and what of the cache it shares."""

    id: str
    arrived: float
    caller: Caller
    terms: CacheTerms
    priority: int
    created: int = field(default_factory=lambda: int(time.time()))


@dataclass(frozen=True, slots=True)
class Front:
    """The HTTP side of one served model; owned by the app, shared by its routes."""

    client: EngineSupervisor
    tokenizer: Tokenizer
    template: ChatTemplate | None
    metrics: Metrics
    model: str
    config: ServerConfig = PLAIN_SERVER
    created: int = field(default_factory=lambda: int(time.time()))

    def admit(self, body: GenerationRequest, caller: Caller, prefix: str) -> Ticket:
        """A ticket for this request of ``caller``, if it is one for us; its id begins with ``prefix``.

        Raises `RequestError` for another model, and for stream options without a stream.
        """
        if body.model is not None:
            self.check_model(body.model)
        if body.stream_options is not None and not body.stream:
            raise RequestError(
                "stream_options is allowed only with stream set to true",
                param="stream_options",
                code="invalid_value",
            )
        return Ticket(
            f"{prefix}-{uuid.uuid4().hex}",
            self.metrics.clock(),
            caller,
            CacheTerms(salt=caller.salt(body.cache_salt), tenant=caller.tenant),
            body.priority or 0,
        )

    def check_model(self, name: str) -> None:
        """Raises `RequestError` unless ``name`` is the served model."""
        if name != self.model:
            raise RequestError(
                f"the model {shown(name)} is not served here; {self.model!r} is",
                param="model",
                code="model_not_found",
                status=404,
            )

    async def encode(self, text: str, *, add_special_tokens: bool, field: str = "prompt") -> list[int]:
        """The tokens of ``text``.

        Raises `RequestError` that names ``field`` if it is not valid Unicode, and, before a tokenizer spends
        minutes and gigabytes on it, if it would be too long even in the longest tokens there are.
        """
        info = self.client.info
        if len(text) > info.max_model_len * self.tokenizer.longest_token:
            raise RequestError(
                f"this model's maximum context length is {info.max_model_len} tokens, "
                f"far too few for a text of {len(text):,} characters",
                param=field,
                code="context_length_exceeded",
            )
        try:
            if len(text) >= LONG_TEXT:
                return await asyncio.to_thread(
                    self.tokenizer.encode, text, add_special_tokens=add_special_tokens
                )
            await asyncio.sleep(0)  # a thousand short texts must not keep the others waiting either
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        except RequestError as error:
            error.param = field
            raise

    def generate(
        self,
        prompt: list[int],
        params: SamplingParams,
        ticket: Ticket,
        *,
        number: int = 0,
        prompt_field: str = "prompt",
        echo: Echo | None = None,
    ) -> Generation:
        """One prompt given to the engine; ``number`` counts the prompts of one request.

        Raises `RequestError` for what can never be served; where that is the prompt's fault, it names
        ``prompt_field``, which is what the client calls it.
        """
        request_id = f"{ticket.id}-{number}"
        try:
            outputs = self.client.generate(
                prompt,
                as_ranked(params),
                request_id=request_id,
                terms=ticket.terms,
                priority=ticket.priority,
            )
        except RequestError as error:
            if error.param == "prompt":
                error.param = prompt_field
            raise
        return Generation(
            outputs,
            self.client.abort,
            self.tokenizer,
            params,
            self.metrics,
            request_id=request_id,
            arrived=ticket.arrived,
            prompt=prompt,
            index=number * params.num_choices,
            echo=echo,
        )


async def require_json(request: Request) -> None:
    """Refuse a body that does not say it is JSON, before anybody looks into it."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        got = shown(kind) if kind else "none"
        raise RequestError(
            f"the body must be sent with Content-Type: application/json, got {got}",
            code="unsupported_media_type",
            status=415,
        )
