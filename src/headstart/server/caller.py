"""Who asks, as far as the cache is concerned: a tenant, or anybody."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request.  ``tenant`` names whose cache it shares; None while nobody is told apart.

    The name is derived, so that it may stand in a log: it is neither a key nor a header's value.
    """

    tenant: str | None = None

    def salt(self, client_salt: str | None) -> str | None:
        """What keeps this caller's cache apart from others'; a client's own salt can only refine it."""
        return client_salt


ANYONE = Caller()
"""The caller of every request while nobody is told apart."""


def caller_of(request: Request) -> Caller:
    """Whoever the middleware in front of the routes found to be asking."""
    caller = request.scope.get("headstart.caller", ANYONE)
    assert isinstance(caller, Caller)
    return caller
