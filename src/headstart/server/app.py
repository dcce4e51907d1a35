"""The HTTP application: OpenAI's routes and the operator's, over one engine."""

from __future__ import annotations

from typing import Any

import prometheus_client
from fastapi import FastAPI
from starlette.responses import JSONResponse, Response

from headstart.cache import MissReport
from headstart.engine.supervisor import EngineSupervisor
from headstart.errors import EngineDeadError
from headstart.server import chat, completions, errors, request_log
from headstart.server.body_limit import BodyLimit
from headstart.server.front import Front
from headstart.server.metrics import Metrics
from headstart.server.replies import ModelCard, ModelList
from headstart.text import ChatTemplate, Tokenizer

MAX_BODY_BYTES = 16 * 2**20  # a million tokens as decimal ids fit twice


def build_app(client: EngineSupervisor, tokenizer: Tokenizer, template: ChatTemplate | None) -> FastAPI:
    """The application that serves a started engine's model under `EngineInfo.model_name`.

    The caller owns ``client``: it starts and ends the engine.  ``template`` is ``None`` for a model
    without one, which then serves completions only.
    """
    name = client.info.model_name
    metrics = Metrics(client, name)
    front = Front(client, tokenizer, template, metrics, name)

    def explained(report: MissReport) -> None:
        metrics.explained(report)
        request_log.write(report)

    client.on_explained(explained)
    app = FastAPI(
        title="headstart", description="OpenAI-compatible, with prefix caching.", responses=errors.RESPONSES
    )
    app.add_middleware(BodyLimit, max_bytes=MAX_BODY_BYTES)
    errors.install(app)
    app.include_router(chat.router(front))
    app.include_router(completions.router(front))
    _add_models(app, front)
    _add_operations(app, front)
    return app


def _add_models(app: FastAPI, front: Front) -> None:
    card = ModelCard(
        id=front.model,
        object="model",
        created=front.created,
        owned_by="headstart",
        max_model_len=front.client.info.max_model_len,
    )

    @app.get("/v1/models")
    async def models() -> ModelList:
        """The served models: one."""
        return ModelList(object="list", data=[card])

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> ModelCard:
        """One served model."""
        front.check_model(name)
        return card


def _add_operations(app: FastAPI, front: Front) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        """200 while an engine serves, else 503 with the reason."""
        if (why := front.client.why_unhealthy) is not None:
            raise EngineDeadError(why)
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus' text form."""
        return Response(front.metrics.exposition(), media_type=prometheus_client.CONTENT_TYPE_LATEST)

    @app.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> Response:
        """Forget everything cached; 409, and nothing is forgotten, while requests hold blocks."""
        if await front.client.reset_prefix_cache():
            return JSONResponse({"success": True})
        refusal: dict[str, Any] = {
            "message": "nothing was reset: running requests hold blocks; try again when they are done",
            "type": "invalid_request_error",
            "param": None,
            "code": "blocks_in_use",
        }
        return JSONResponse({"success": False, "error": refusal}, 409)
