"""Who asks, as far as the cache is concerned: a tenant, or anybody."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field

from starlette.requests import Request

CALLER = "headstart.caller"
"""Where the door leaves the caller in a request's scope."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request.  ``tenant`` names whose cache it shares; None while nobody is told apart.

    The name is derived, so that it may stand in a log: it is neither a key nor a header's value.  Of who
    cannot be told (``is_anonymous``) each request is a tenant of its own.  ``secret`` is the tenant's own,
    from which its salts are made.
    """

    tenant: str | None = None
    secret: bytes | None = field(default=None, repr=False)
    is_anonymous: bool = False
    is_operator: bool = False

    def salt(self, client_salt: str | None) -> str | None:
        """What keeps this caller's cache apart from others'; a client's own salt can only refine it."""
        if self.secret is None:
            return client_salt
        refined = () if client_salt is None else (client_salt.encode(),)
        return derived(self.secret, b"salt", *refined).hex()


ANYONE = Caller()
"""The caller of every request while nobody is told apart."""


def derived(key: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA256 of ``parts`` under ``key``: 32 bytes that other parts, cut elsewhere, do not give."""
    message = len(parts).to_bytes(8) + b"".join(len(part).to_bytes(8) + part for part in parts)
    return hmac.digest(key, message, "sha256")


def caller_of(request: Request) -> Caller:
    """Whoever the door in front of the routes found to be asking; nothing gets here around it."""
    caller = request.scope[CALLER]
    assert isinstance(caller, Caller)
    return caller
