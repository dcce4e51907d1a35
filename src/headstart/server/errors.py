"""Every failure as OpenAI's error object, or Anthropic's on Anthropic's routes, with the right status.

Whatever goes wrong becomes an exception of `headstart.errors`, and one function turns that tree into an
answer; so a plain reply, a stream that had begun and an unknown route all speak alike.
"""

from __future__ import annotations

import sys
from http import HTTPStatus
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match

from headstart.errors import EngineDeadError, HeadstartError, RequestError, shown_json
from headstart.server.replies import Event

CLIENT_CLOSED_REQUEST = 499  # nginx's word for it; nobody is left to read it


HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    429: {"Retry-After": "1"},
    503: {"Retry-After": "5"},
}
"""In seconds: a seat is free as soon as one answer ends; an engine that died takes a few to start."""

UNQUOTED = {"cache_salt"}
"""Fields whose value is a secret, which no sentence repeats."""


class ErrorBody(BaseModel):
    """What went wrong: a sentence, its kind, the field at fault and a stable word for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    """OpenAI's error object."""

    error: ErrorBody


class AnthropicErrorBody(BaseModel):
    """What went wrong: its kind and a sentence."""

    type: str
    message: str


class AnthropicErrorReply(Event):
    """Anthropic's error object, which is an event, too."""

    type: Literal["error"]
    error: AnthropicErrorBody


ANTHROPIC_ROUTES = "/v1/messages"
ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}
"""By status; every other one is an ``invalid_request_error``."""

# For the OpenAPI document, in place of FastAPI's own form of validation errors.
RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorReply, "description": "The request is at fault; the message names the field."},
    "5XX": {"model": ErrorReply, "description": "The server is at fault; the request may be tried again."},
}
ANTHROPIC_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {**told, "model": AnthropicErrorReply} for status, told in RESPONSES.items()
}


def describe(error: Exception) -> tuple[int, ErrorReply]:
    """The HTTP status and the error object for ``error``.

    What is not of our tree is a bug: its text stays in the log and the client gets a plain sentence.
    """
    match error:
        case RequestError():
            status = error.status
            body = ErrorBody(
                message=str(error),
                type="rate_limit_error" if status == 429 else "invalid_request_error",
                param=error.param,
                code=error.code,
            )
        case HeadstartError():
            dead = isinstance(error, EngineDeadError)
            status = 503 if dead else 500
            code = "engine_unavailable" if dead else "engine_error"
            body = ErrorBody(message=str(error), type="server_error", param=None, code=code)
        case _:
            status = 500
            body = ErrorBody(
                message="the server failed on this request; its log says how",
                type="server_error",
                param=None,
                code="internal_error",
            )
    return status, ErrorReply(error=body)


def describe_for_anthropic(error: Exception) -> tuple[int, AnthropicErrorReply]:
    """As `describe`, in Anthropic's words; a field at fault is named in the sentence alone."""
    status, reply = describe(error)
    kind = ANTHROPIC_TYPES.get(status, "invalid_request_error")
    return status, AnthropicErrorReply(
        type="error", error=AnthropicErrorBody(type=kind, message=reply.error.message)
    )


def is_anthropic(path: str) -> bool:
    """Whether Anthropic's clients ask there, so that answers are in their words."""
    return path == ANTHROPIC_ROUTES or path.startswith(f"{ANTHROPIC_ROUTES}/")


def response_to(request: Request, error: Exception) -> Response:
    """The answer to a request that ended in ``error``, in the words of the API that it asked for."""
    anthropic = is_anthropic(request.scope["path"])
    status, reply = describe_for_anthropic(error) if anthropic else describe(error)
    return JSONResponse(reply.model_dump(), status, HEADERS.get(status))


def install(app: FastAPI) -> None:
    """Make every exception that leaves a route of ``app`` an error object."""

    async def ours(request: Request, error: Exception) -> Response:
        return response_to(request, error)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return await ours(request, _from_validation(error.errors()[0]))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        response = await ours(request, _from_http(request, error))
        response.headers.update(error.headers or {})
        return response

    async def gone(_request: Request, _error: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    app.add_exception_handler(HeadstartError, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(Exception, ours)  # starlette raises it again for the log


def _from_validation(error: Any) -> RequestError:
    """Pydantic's first complaint as a sentence; the custom kinds are those of `server.protocol`."""
    param = _path(error["loc"][1:])
    details = error.get("ctx", {})
    given = shown_json(error["input"])
    code = "invalid_value"
    match error["type"]:
        case "json_invalid":
            where = error["loc"][1]
            what = details["error"].removesuffix(" at")
            message = f"the body is not valid JSON: {what} at character {where}"
            return RequestError(message, code="invalid_json")
        case _ if not param:
            return RequestError("the body must be a JSON object", code="invalid_type")
        case "missing":
            message, code = f"{param} is missing", "missing_required_parameter"
        case "too_long":
            message = (
                f"{param} must have at most {details['max_length']} entries, got {details['actual_length']}"
            )
        case "too_short":
            message = f"{param} must not be empty"
        case "list_type":
            message = f"{param} must be a list, got {given}"
        case "model_attributes_type":
            message = f"{param} must be an object, got {given}"
        case "must_be":
            message = f"{param} must be {details['allowed']}, got {given}"
        case "not_yet":
            message = f"{param} is not supported yet: leave it out or send {details['neutral']}, got {given}"
            code = "unsupported_parameter"
        case "refused":
            message, code = f"{param} {details['why']}", "unsupported_parameter"
        case _:
            message = f"{param}: {error['msg']}, got {given}"
    if param in UNQUOTED:
        message = message.removesuffix(f", got {given}")
    return RequestError(message, param=param, code=code)


def _from_http(request: Request, error: HTTPException) -> RequestError:
    """The framework's own refusals, in words."""
    path = request.scope["path"]
    asked = f"{request.method} {path if len(path) <= 200 else f'{path[:200]}…'}"
    match error.status_code:
        case 404:
            meant = _meant(request)
            hint = "GET /openapi.json lists what there is" if meant is None else f"did you mean {meant}?"
            return RequestError(f"there is no {asked}; {hint}", code="unknown_url", status=404)
        case 405:
            allowed = (error.headers or {}).get("Allow", "another method")
            return RequestError(
                f"{asked} is not possible: use {allowed}", code="method_not_supported", status=405
            )
        case 400:
            return _from_reading(error.__cause__)
        case status:
            detail = error.detail or HTTPStatus(status).phrase.lower()
            return RequestError(str(detail), status=status)


def _meant(request: Request) -> str | None:
    """The path with one ``/v1`` more or less, if there is such a route: base URLs are easily mistaken."""
    path = request.scope["path"]
    for near in (f"/v1{path}", path.removeprefix("/v1")):
        scope = {**request.scope, "path": near, "raw_path": near.encode()}
        if any(route.matches(scope)[0] is not Match.NONE for route in request.app.routes):
            return near
    return None


def _from_reading(cause: BaseException | None) -> RequestError:
    """Why the body could not be read: FastAPI says 400 to all, `BodyLimit`'s refusals too."""
    match cause:
        case RequestError():
            return cause
        case UnicodeDecodeError():
            why = f"not text in {cause.encoding.upper()}: byte {cause.start} is wrong ({cause.reason})"
        case RecursionError():
            why = "not valid JSON: its lists and objects are nested too deeply"
        case ValueError():  # the one thing that JSON allows and Python refuses
            why = f"not valid JSON: no number may have more than {sys.get_int_max_str_digits()} digits"
        case _:
            why = "not valid JSON"
    return RequestError(f"the body is {why}", code="invalid_json")


HIDDEN_TAG = "~"
"""What the tags of a body's alternatives begin with: they are in pydantic's paths, and no client sent any."""


def _path(location: tuple[str | int, ...]) -> str:
    """``("messages", 0, "role")`` as ``messages[0].role``."""
    path = ""
    for part in location:
        if isinstance(part, str) and part.startswith(HIDDEN_TAG):
            continue
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path
