"""What every route needs, and what a chat and a completion do alike before the engine takes over."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass, field

from starlette.requests import Request

from headstart.engine.choices import as_ranked
from headstart.engine.request import SamplingParams
from headstart.engine.supervisor import EngineSupervisor
from headstart.errors import RequestError
from headstart.server.generation import Generation
from headstart.server.metrics import Metrics
from headstart.server.protocol import GenerationRequest
from headstart.text import ChatTemplate, Tokenizer

# Longer texts are tokenised in a thread, so that other requests, and /health, need not wait; for shorter
# ones the thread costs more than it saves.
LONG_TEXT = 4096


@dataclass(frozen=True, slots=True)
class Ticket:
    """An admitted request: its id on the wire, when it arrived, and whose cache it may share."""

    id: str
    arrived: float
    cache_salt: str | None
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
    created: int = field(default_factory=lambda: int(time.time()))

    def admit(self, body: GenerationRequest, prefix: str) -> Ticket:
        """A ticket for this request, if it is one for us; its id begins with ``prefix``.

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
            f"{prefix}-{uuid.uuid4().hex}", self.metrics.clock(), body.cache_salt, body.priority or 0
        )

    def check_model(self, name: str) -> None:
        """Raises `RequestError` unless ``name`` is the served model."""
        if name != self.model:
            raise RequestError(
                f"the model {name!r} is not served here; {self.model!r} is",
                param="model",
                code="model_not_found",
                status=404,
            )

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The tokens of ``text``."""
        if len(text) < LONG_TEXT:
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return await asyncio.to_thread(self.tokenizer.encode, text, add_special_tokens=add_special_tokens)

    def generate(
        self,
        prompt: list[int],
        params: SamplingParams,
        ticket: Ticket,
        *,
        number: int = 0,
        prompt_field: str = "prompt",
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
                cache_salt=ticket.cache_salt,
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
            num_prompt_tokens=len(prompt),
            index=number * params.num_choices,
        )


async def require_json(request: Request) -> None:
    """Refuse a body that does not say it is JSON, before anybody looks into it."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError(
            f"the body must be sent with Content-Type: application/json, got {kind or 'none'}",
            code="unsupported_media_type",
            status=415,
        )
