"""The operator's routes, and those that say what is served."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import prometheus_client
from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from headstart.errors import EngineDeadError
from headstart.server.front import Front
from headstart.server.replies import Health, ModelCard, ModelList, RefusedReset, Reset, Version


def models_router(front: Front) -> APIRouter:
    """What is served: one model."""
    routes = APIRouter(tags=["Models"])
    card = ModelCard(
        id=front.model,
        object="model",
        created=front.created,
        owned_by="headstart",
        max_model_len=front.client.info.max_model_len,
    )

    @routes.get("/v1/models", summary="The served models")
    async def models() -> ModelList:
        """The served models: one."""
        return ModelList(object="list", data=[card])

    @routes.get("/v1/models/{name:path}", summary="One served model")
    async def model(name: str) -> ModelCard:
        """One served model."""
        front.check_model(name)
        return card

    return routes


def health_router(front: Front) -> APIRouter:
    """What a load balancer asks, and whoever wants to know what this is: it shows nothing of anybody's."""
    routes = APIRouter(tags=["Operations"])

    @routes.get("/health", summary="Whether an engine serves")
    @routes.get("/ping", summary="The same, as SageMaker asks")
    @routes.post("/ping", summary="The same, as SageMaker asks")
    async def health() -> Health:
        """200 while an engine serves, else 503 with the reason."""
        if (why := front.client.why_unhealthy) is not None:
            raise EngineDeadError(why)
        return Health(status="ok")

    @routes.get("/version", summary="The server's version")
    async def which() -> Version:
        """Which headstart this is."""
        return Version(version=version("headstart"))

    return routes


def operator_router(front: Front) -> APIRouter:
    """What shows or changes the state that all requests share."""
    routes = APIRouter(tags=["Operations"])

    @routes.get(
        "/metrics",
        summary="Metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics() -> Response:
        """Prometheus' text form."""
        return Response(front.metrics.exposition(), media_type=prometheus_client.CONTENT_TYPE_LATEST)

    @routes.post(
        "/reset_prefix_cache",
        summary="Forget everything cached",
        responses={200: {"model": Reset}, 409: {"model": RefusedReset}},
    )
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

    return routes
