"""What every route needs, and what a chat and a completion do alike before the engine takes over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from starlette.requests import Request

from headstart.config import PLAIN_SERVER, ServerConfig
from headstart.engine.choices import as_ranked
from headstart.engine.grammars import Grammars
from headstart.engine.request import CacheTerms, SamplingParams
from headstart.engine.supervisor import EngineSupervisor
from headstart.errors import RequestError, shown
from headstart.server.caller import Caller, caller_of
from headstart.server.choice import PLAINLY, Echo, Telling
from headstart.server.explanations import Explanations
from headstart.server.generation import Generation
from headstart.server.hints import terms_of
from headstart.server.metrics import Metrics
from headstart.server.protocol import EngineRequest, Truncation
from headstart.server.salt_watch import SaltWatch
from headstart.server.visit import Visit, Visits, visit_of
from headstart.text import ChatTemplate, RequestTemplates, Tokenizer

# Longer texts are tokenised in a thread, so that other requests, and /health, need not wait; for shorter
# ones the thread costs more than it saves.
LONG_TEXT = 4096


@dataclass(frozen=True, slots=True)
class Ticket:
    """An admitted request: its id on the wire, when it came, from whom, and what of the cache it shares.

    ``engine_id`` is what the engine calls it: ours alone, while ``id`` may be the client's, and come twice.
    ``telling`` is how its answers are told, ``truncation`` how much of its prompts is kept.
    """

    id: str
    engine_id: str
    visit: Visit
    arrived: float
    caller: Caller
    terms: CacheTerms
    priority: int
    telling: Telling = PLAINLY
    truncation: Truncation | None = None
    created: int = field(default_factory=lambda: int(time.time()))


@dataclass(frozen=True, slots=True)
class Front:
    """The HTTP side of one served model; owned by the app, shared by its routes."""

    client: EngineSupervisor
    tokenizer: Tokenizer
    template: ChatTemplate | None
    metrics: Metrics
    model: str
    visits: Visits
    config: ServerConfig = PLAIN_SERVER
    request_templates: RequestTemplates = field(default_factory=RequestTemplates)
    explanations: Explanations = field(default_factory=Explanations)
    created: int = field(default_factory=lambda: int(time.time()))
    salt_watch: SaltWatch = field(default_factory=SaltWatch)
    grammars: Grammars = field(init=False)

    def __post_init__(self) -> None:
        grammars = Grammars(lambda: self.tokenizer, self.client.info.vocab_size)
        object.__setattr__(self, "grammars", grammars)

    def admit(self, body: EngineRequest, request: Request, prefix: str) -> Ticket:
        """A ticket for this request, if it is one for us; its id begins with ``prefix`` (``cmpl-``).

        Raises `RequestError` for another model, and where more of a prompt is to be kept than fits the model.
        """
        if body.model is not None:
            self.check_model(body.model)
        truncation, longest = body.truncation, self.client.info.max_model_len
        if truncation is not None and (truncation.most or 0) > longest:
            raise RequestError(
                f"truncate_prompt_tokens is {truncation.most}, but this model's maximum context length is "
                f"{longest} tokens",
                param="truncate_prompt_tokens",
                code="invalid_value",
            )
        caller, visit = caller_of(request), visit_of(request)
        if body.cache_salt is not None:
            self.salt_watch.look(body.cache_salt, caller)
        return Ticket(
            f"{prefix}{body.request_id or visit.name}",
            f"{prefix}{visit.name}",
            visit,
            self.metrics.clock(),
            caller,
            terms_of(body, caller),
            body.priority or 0,
            body.telling,
            truncation,
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

    def fitting(self, wanted: int | None, prompt: Sequence[int]) -> int | None:
        """``wanted`` tokens, or as many as fit behind ``prompt``; at least one, for the engine to refuse."""
        if wanted is None:
            return None
        info = self.client.info
        room = min(info.max_model_len, info.kv_capacity_tokens + 1) - len(prompt)
        return max(1, min(wanted, room))

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

    def truncated(self, prompt: list[int], params: SamplingParams, ticket: Ticket) -> list[int]:
        """The end of the prompt, as far as the request wants it; harmless when repeated."""
        if ticket.truncation is None:
            return prompt
        info = self.client.info
        room = min(info.max_model_len, info.kv_capacity_tokens + 1)
        answer = 1 if params.max_tokens is None else params.max_tokens
        return prompt[-(ticket.truncation.most or max(1, room - answer)) :]

    async def check_structure(self, params: SamplingParams) -> None:
        """Raises `RequestError` for structured outputs that cannot be compiled, or that no text can match.

        So a client learns at once, and the engine is not bothered; compiling takes place off the event loop.
        """
        wanted = params.structured_outputs
        if wanted is not None:
            await asyncio.to_thread(self.grammars.matcher, wanted, params.stop_token_ids)

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
        prompt = self.truncated(prompt, params, ticket)
        request_id = f"{ticket.engine_id}-{number}"
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
        self.explanations.expect(ticket.caller.tenant, ticket.id, number, request_id)
        generation = Generation(
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
            telling=ticket.telling,
        )
        self.visits.asked(ticket.visit, generation, ticket.id)
        return generation


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
