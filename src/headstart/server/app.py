"""The HTTP applications: OpenAI's routes and the operator's, over one engine."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import FastAPI

from headstart.cache import MissReport
from headstart.config import PLAIN_SERVER, ServerConfig
from headstart.engine.supervisor import EngineSupervisor
from headstart.server import chat, completions, errors, operations, request_log
from headstart.server.access import Access
from headstart.server.body_limit import BodyLimit
from headstart.server.door import Door
from headstart.server.front import Front
from headstart.server.metrics import Metrics
from headstart.text import ChatTemplate, Tokenizer

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
    front = Front(client, tokenizer, template, metrics, name, config)

    def explained(report: MissReport) -> None:
        metrics.explained(report)
        request_log.write(report)

    client.on_explained(explained)
    access = access or Access(config)
    app = _empty_app(access)
    app.include_router(chat.router(front))
    app.include_router(completions.router(front))
    app.include_router(operations.models_router(front))
    app.include_router(operations.health_router(front))
    if not config.has_admin_port:
        app.include_router(operations.operator_router(front, access))
        return Apps(app, None)
    # At a port of its own nobody is a tenant: there are operators, and where no admin key is wanted all are.
    operators = Access(ServerConfig(admin_api_keys=config.admin_api_keys, has_admin_port=True))
    admin = _empty_app(operators)
    admin.include_router(operations.health_router(front))
    admin.include_router(operations.operator_router(front, operators))
    return Apps(app, admin)


def _empty_app(access: Access) -> FastAPI:
    app = FastAPI(
        title="headstart", description="OpenAI-compatible, with prefix caching.", responses=errors.RESPONSES
    )
    app.add_middleware(BodyLimit, max_bytes=MAX_BODY_BYTES)
    app.add_middleware(Door, access=access)  # the last one added is the first to be asked
    errors.install(app)
    return app
