"""Keys and isolation, as the command line has them: where keys come from, and what people are told."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
from collections.abc import Collection

from headstart.cli.process_list import blot_out
from headstart.config import SECRET_VARIABLES, KeysConfig, ServerConfig
from headstart.errors import ConfigError

logger = logging.getLogger(__name__)


def keys_of(variable: str, given: Collection[str] | None, file: str | None) -> KeysConfig:
    """The keys of the options, or without any those of the environment's ``variable``, between spaces.

    Raises `ConfigError` for a variable that is there and empty: nobody means "no keys" by that.
    """
    if given or file is not None:
        return KeysConfig(tuple(given or ()), file)
    words = os.environ.get(variable)
    if words is None:
        return KeysConfig()
    if not words.strip():
        raise ConfigError(
            f"the environment variable {variable} is set, but empty: unset it to ask for no key"
        )
    return KeysConfig(tuple(words.split()))


def hide_keys(typed: Collection[str]) -> None:
    """Take all keys out of what process lists show of us; say that those ``typed`` stood there until now."""
    hidden = blot_out(typed, SECRET_VARIABLES)
    for name in SECRET_VARIABLES:
        os.environ.pop(name, None)
    if typed:
        logger.warning(
            "an API key on the command line stands in the process list%s and in the shell's history: give "
            "keys with --api-key-file, or in HEADSTART_API_KEY",
            " while the server starts" if hidden else "",
        )


def warn_if_open(sock: socket.socket, server: ServerConfig) -> None:
    """Say so if whoever reaches ``sock`` from elsewhere is served."""
    host, port = sock.getsockname()[:2]
    if not server.api_keys.are_wanted and not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
        logger.warning(
            "whoever reaches port %d of %s is served: there are no API keys (--api-key-file)", port, host
        )


def access_rows(server: ServerConfig, admin_url: str | None) -> dict[str, str]:
    """The banner's rows of who may ask, who shares, and where operators ask."""
    keys = "asked for" if server.api_keys.are_wanted else "none: whoever reaches the address is served"
    if server.isolation_header is not None:
        shares = f"by the header {server.isolation_header}; requests without it share nothing"
    elif server.isolates:
        shares = "by API key: each has a cache of its own"
    else:
        shares = "none: all share one cache, unless a request says cache_salt"
    at = "the address above" if admin_url is None else admin_url
    operators = f"/metrics and /reset_prefix_cache at {at}"
    if server.admin_api_keys.are_wanted:
        operators += ", with an admin key"
    elif server.isolates and admin_url is None:
        operators = "/metrics and /reset_prefix_cache are closed: see --admin-api-key-file, --admin-port"
    return {"API keys": keys, "isolation": shares, "operators": operators}
