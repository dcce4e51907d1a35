"""The HTTP application: OpenAI's routes, Anthropic's and the operator's, over one engine."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import Depends, FastAPI

from headstart.cache import MissReport
from headstart.config import PLAIN_SERVER, ServerConfig
from headstart.engine.supervisor import EngineSupervisor
from headstart.server import (
    chat,
    completions,
    docs,
    errors,
    explain,
    known_fields,
    messages,
    operations,
    request_log,
    responses,
    tokenize,
    warm,
)
from headstart.server.body_limit import BodyLimit
from headstart.server.front import Front
from headstart.server.head import HeadAsGet
from headstart.server.metrics import Metrics
from headstart.text import ChatTemplate, Tokenizer

ABOUT = (
    "OpenAI's API with prefix caching: every answer says in usage.prompt_tokens_details.cached_tokens how "
    "much of its prompt was computed before. Fields that nobody knows are ignored and named in the header "
    f"{known_fields.HEADER}."
)
MAX_BODY_BYTES = 16 * 2**20  # a million tokens as decimal ids fit twice


def build_app(
    client: EngineSupervisor,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    config: ServerConfig = PLAIN_SERVER,
) -> FastAPI:
    """The application that serves a started engine's model under `EngineInfo.model_name`.

    The caller owns ``client``: it starts and ends the engine.  ``template`` is ``None`` for a model
    without one, which then serves completions only.
    """
    name = client.info.model_name
    metrics = Metrics(client, name)
    front = Front(client, tokenizer, template, metrics, name, config)

    def explained(report: MissReport) -> None:
        metrics.explained(report)
        request_log.write(report)
        front.explanations.told(report)

    client.on_explained(explained)
    app = FastAPI(
        title="headstart",
        version=version("headstart"),
        description=ABOUT,
        responses=errors.RESPONSES,
        dependencies=[Depends(known_fields.watch(strict=config.strict))],
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(BodyLimit, max_bytes=MAX_BODY_BYTES)
    app.add_middleware(known_fields.IgnoredFields)
    app.add_middleware(HeadAsGet)
    errors.install(app)
    app.include_router(chat.router(front))
    app.include_router(completions.router(front))
    app.include_router(responses.router(front))
    app.include_router(messages.router(front))
    app.include_router(tokenize.router(front))
    app.include_router(warm.router(front))
    app.include_router(explain.router(front))
    app.include_router(operations.models_router(front))
    app.include_router(operations.health_router(front))
    app.include_router(operations.operator_router(front))
    app.include_router(docs.router())
    return app
