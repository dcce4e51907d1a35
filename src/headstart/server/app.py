"""The HTTP application: OpenAI's routes, Anthropic's and the operator's, over one engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version

from fastapi import Depends, FastAPI
from starlette.types import Lifespan

from headstart.cache import MissReport
from headstart.config import PLAIN_SERVER, ServerConfig
from headstart.engine.supervisor import EngineSupervisor
from headstart.server import (
    access_log,
    chat,
    completions,
    docs,
    errors,
    explain,
    known_fields,
    messages,
    operations,
    responses,
    tokenize,
    warm,
)
from headstart.server.access import Access
from headstart.server.body_limit import BodyLimit
from headstart.server.door import Door
from headstart.server.front import Front
from headstart.server.head import HeadAsGet
from headstart.server.metrics import Metrics
from headstart.server.tracing import Tracing
from headstart.server.visit import VisitMiddleware, Visits
from headstart.text import ChatTemplate, Tokenizer

ABOUT = (
    "OpenAI's API with prefix caching: every answer says in usage.prompt_tokens_details.cached_tokens how "
    "much of its prompt was computed before. Fields that nobody knows are ignored and named in the header "
    f"{known_fields.HEADER}."
)
MAX_BODY_BYTES = 16 * 2**20  # a million tokens as decimal ids fit twice


@dataclass(frozen=True, slots=True)
class Apps:
    """What one server serves: ``public`` to all, ``admin``, if there is one, at a port of its own."""

    public: FastAPI
    admin: FastAPI | None


def build_app(
    client: EngineSupervisor,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    config: ServerConfig = PLAIN_SERVER,
) -> FastAPI:
    """As `build_apps`, without the operators' own."""
    return build_apps(client, tokenizer, template, config).public


def build_apps(
    client: EngineSupervisor,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    config: ServerConfig = PLAIN_SERVER,
    access: Access | None = None,
) -> Apps:
    """The applications that serve a started engine's model under `EngineInfo.model_name`.

    The caller owns ``client``: it starts and ends the engine.  ``template`` is ``None`` for a model
    without one, which then serves completions only.  ``access`` is made of ``config`` unless given, and
    raises what it raises.
    """
    name = client.info.model_name
    metrics = Metrics(client, name)
    tracing = None if config.otlp_endpoint is None else Tracing(config.otlp_endpoint, name)
    observers = [access_log.write] if tracing is None else [access_log.write, tracing.observe]
    visits = Visits(observers, explained=client.info.explain_misses)
    front = Front(client, tokenizer, template, metrics, name, visits, config)

    def explained(report: MissReport) -> None:
        metrics.explained(report)
        visits.explained(report)
        front.explanations.told(report)

    client.on_explained(explained)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        visits.flush()
        if tracing is not None:
            await asyncio.to_thread(tracing.close)

    access = access or Access(config)
    app = _empty_app(access, visits, strict=config.strict, lifespan=lifespan)
    app.include_router(chat.router(front))
    app.include_router(completions.router(front))
    app.include_router(responses.router(front))
    app.include_router(messages.router(front))
    app.include_router(tokenize.router(front))
    app.include_router(warm.router(front))
    app.include_router(explain.router(front))
    app.include_router(operations.models_router(front))
    app.include_router(operations.health_router(front))
    if not config.has_admin_port:
        app.include_router(operations.operator_router(front, access))
        return Apps(app, None)
    # At a port of its own nobody is a tenant: there are operators, and where no admin key is wanted all are.
    operators = Access(ServerConfig(admin_api_keys=config.admin_api_keys, has_admin_port=True))
    admin = _empty_app(operators, visits, strict=config.strict)
    admin.include_router(operations.health_router(front))
    admin.include_router(operations.operator_router(front, operators))
    return Apps(app, admin)


def _empty_app(
    access: Access, visits: Visits, *, strict: bool, lifespan: Lifespan[FastAPI] | None = None
) -> FastAPI:
    app = FastAPI(
        title="headstart",
        version=version("headstart"),
        description=ABOUT,
        responses=errors.RESPONSES,
        dependencies=[Depends(known_fields.watch(strict=strict))],
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    # The last one added is the first to be asked.
    app.add_middleware(BodyLimit, max_bytes=MAX_BODY_BYTES)
    app.add_middleware(known_fields.IgnoredFields)
    app.add_middleware(HeadAsGet)
    app.add_middleware(Door, access=access)
    app.add_middleware(VisitMiddleware, visits=visits)
    errors.install(app)
    app.include_router(docs.router())
    return app
