"""Tenants: what each one's salts are derived from, so that isolation depends on no client."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import stat
import tempfile
from pathlib import Path
from typing import Literal

import platformdirs

from headstart.errors import ConfigError
from headstart.server.caller import Caller, derived

logger = logging.getLogger(__name__)

IdentityKind = Literal["api-key", "admin-api-key", "header"]

SECRET_BYTES = 32
_LONGEST_SECRET = 4096


class Tenants:
    """Makes callers of identities, with a secret that only this installation has.

    A tenant's own secret is HMAC-SHA256 of the installation's and the identity, with its kind; each salt is
    the same of the tenant's secret and the salt that the client sent, if any.  So who does not know the
    installation's secret can neither guess a tenant's salt nor choose it.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def known(self, kind: IdentityKind, identity: bytes, *, is_operator: bool = False) -> Caller:
        """The tenant whom ``identity`` of this kind stands for: the same one each time."""
        own = derived(self._secret, b"tenant", kind.encode(), identity)
        return Caller(derived(own, b"name").hex()[:12], own, is_operator=is_operator)

    def anonymous(self, *, is_operator: bool = False) -> Caller:
        """A tenant who never was before and never will be again."""
        own = secrets.token_bytes(SECRET_BYTES)
        return Caller(derived(own, b"name").hex()[:12], own, is_anonymous=True, is_operator=is_operator)


def default_secret_file() -> Path:
    """Where the installation's secret lies unless said otherwise: in the user's own state directory."""
    return Path(platformdirs.user_state_dir("headstart")) / "isolation-secret"


def load_secret(file: str | None) -> bytes:
    """The secret in ``file``, which must be there; with None in our own, which is made on first use.

    Raises `ConfigError` if it cannot be read or made, or is shorter than `SECRET_BYTES`.
    """
    path = default_secret_file() if file is None else Path(file)
    try:
        if file is None and not path.exists():
            _make(path)
        with path.open("rb") as content:
            mode = os.fstat(content.fileno()).st_mode
            secret = content.read(_LONGEST_SECRET + 1)
    except OSError as error:
        raise ConfigError(
            f"the isolation secret {path} cannot be {'made' if file is None else 'read'}: "
            f"{error.strerror or error}; --isolation-secret-file names a file of {SECRET_BYTES} random bytes"
        ) from error
    if not SECRET_BYTES <= len(secret) <= _LONGEST_SECRET:
        raise ConfigError(
            f"the isolation secret {path} must be a file of {SECRET_BYTES} to {_LONGEST_SECRET} bytes, best "
            f"made with: head -c {SECRET_BYTES} /dev/urandom"
        )
    if mode & stat.S_IROTH:
        logger.warning("the isolation secret %s can be read by every user of this machine", path)
    return secret


def _make(path: Path) -> None:
    """A file of random bytes for this user's eyes; whole from the start, and the first one wins."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)  # mode 600
    try:
        with open(descriptor, "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # another server was faster: its secret is everybody's
            os.link(temporary, path)
    finally:
        Path(temporary).unlink()
