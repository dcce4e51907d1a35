"""Who is let in, to what, and as whom."""

from __future__ import annotations

from starlette.datastructures import Headers

from headstart.config import ServerConfig
from headstart.errors import RequestError
from headstart.server.caller import ANYONE, Caller
from headstart.server.key_ring import KeyRing
from headstart.server.tenants import Tenants, load_secret

OPEN_PATHS = frozenset({"/health", "/ping", "/version", "/openapi.json", "/docs"})
"""What anybody may ask: it shows nothing of anybody's.  Everything else is behind the keys."""
METRICS_PATH = "/metrics"
_SPACE = " \t"
"""What HTTP lets stand around a value.  No more is taken off: other bytes at its ends may be a letter's."""


class Access:
    """The rules of one server.

    With API keys all but `OPEN_PATHS` needs one; /metrics does not, as in vLLM, unless tenants are isolated.
    An admin key opens everything.
    """

    def __init__(self, config: ServerConfig) -> None:
        """Raises `ConfigError` for a file of keys, or of the isolation's secret, that cannot be used."""
        self._header = config.isolation_header
        self._tenants = Tenants(load_secret(config.isolation_secret_file)) if config.isolates else None
        self._api_keys = KeyRing(config.api_keys, option="--api-key-file")
        self._admin_keys = KeyRing(config.admin_api_keys, option="--admin-api-key-file")
        self._has_admin_port = config.has_admin_port
        self._asks_nothing = not (
            config.isolates or config.api_keys.are_wanted or config.admin_api_keys.are_wanted
        )

    def identify(self, path: str, headers: Headers) -> Caller:
        """Who asks for ``path``.

        Raises `RequestError`: 401 without a key that is needed, 400 where it is not clear who asks.
        """
        if self._asks_nothing or path in OPEN_PATHS:
            return ANYONE
        key = _presented(headers)
        admin = None if key is None else self._admin_keys.find(key)
        user = None if key is None else self._api_keys.find(key)
        if self._api_keys.is_wanted and user is None and admin is None:
            if path == METRICS_PATH and self._tenants is None:
                return ANYONE
            raise _refused(key)
        is_operator = admin is not None
        if self._tenants is None:
            return Caller(is_operator=is_operator)
        if self._header is not None:
            value = _only(headers, self._header)
            if value is None:
                return self._tenants.anonymous(is_operator=is_operator)
            return self._tenants.known("header", value, is_operator=is_operator)
        if user is not None:
            return self._tenants.known("api-key", user, is_operator=is_operator)
        assert admin is not None  # isolation by keys is never without keys
        return self._tenants.known("admin-api-key", admin, is_operator=True)

    def require_operator(self, caller: Caller, headers: Headers) -> None:
        """Raises `RequestError` (401 or 403) unless ``caller`` may see and change what all share."""
        if self._admin_keys.is_wanted:
            if not caller.is_operator:
                key = _presented(headers)
                known = key is not None and self._api_keys.find(key) is not None
                raise RequestError(
                    "this is for operators: it needs one of the server's admin API keys",
                    code="admin_key_required",
                    status=403 if known else 401,
                )
        elif self._tenants is not None and not self._has_admin_port:
            raise RequestError(
                "with --isolate-by this is closed, since it shows or changes what tenants share: start the "
                "server with --admin-api-key-file or --admin-port",
                code="operators_only",
                status=403,
            )


def _presented(headers: Headers) -> str | None:
    """The key in ``Authorization: Bearer …`` or, as Anthropic's clients send it, in ``x-api-key``."""
    told = set()
    for value in headers.getlist("authorization"):
        scheme, _, key = value.strip(_SPACE).partition(" ")
        told.add(key.strip(_SPACE) if scheme.lower() == "bearer" else "")
    told |= {value.strip(_SPACE) for value in headers.getlist("x-api-key")}
    told.discard("")
    if len(told) > 1:
        raise RequestError(
            "two different API keys were sent: Authorization and x-api-key must agree, or one be left out",
            code="invalid_api_key",
            status=401,
        )
    return told.pop() if told else None


def _only(headers: Headers, name: str) -> bytes | None:
    """The value of a header that a proxy sets; None without one.  Two could be a client's and the proxy's."""
    values = headers.getlist(name)
    if len(values) > 1:
        raise RequestError(
            f"the header {name} came {len(values)} times: the proxy must set it once and drop clients' own",
            code="invalid_header",
        )
    value = "".join(values).strip(_SPACE)
    return value.encode("latin-1") if value else None


def _refused(key: str | None) -> RequestError:
    if key is None:
        why = "this server asks for an API key: send Authorization: Bearer KEY, or x-api-key"
    else:
        why = "this API key is not known here"
    return RequestError(why, code="invalid_api_key", status=401)
