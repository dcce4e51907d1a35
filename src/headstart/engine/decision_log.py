"""The file of a decision log: gzip over JSON lines, so that ``zcat FILE | head`` shows what is in it.

It holds the token ids of prompts and answers, so only its owner may read it.  A file is never
overwritten and never appended to: where FILE exists, FILE.1 is made, and so on, so each engine that a
supervisor starts has a file of its own, and the one of an engine that died stays as it was.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import platform
import zlib
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO

import msgspec

from headstart.config import CacheConfig
from headstart.engine.decisions import Header, Record
from headstart.errors import ConfigError

logger = logging.getLogger(__name__)

_LEVEL = 1  # the fastest; what follows a flush compresses little better with more effort
_GZIP = 31  # zlib's word for the largest window and gzip's header and checksum
_FULL = (errno.ENOSPC, errno.EDQUOT)


class DecisionLog:
    """A `Sink` that is a file.

    Each `flush` reaches the operating system, so that the death of this process loses nothing before it.
    If the file cannot be written any more (the disk is full, say), that is said once and logging ends.
    """

    def __init__(self, path: Path, file: BinaryIO | None, cache: CacheConfig) -> None:
        self.path = path
        self._file = file
        self._encoder = msgspec.json.Encoder()
        self._gzip = zlib.compressobj(_LEVEL, wbits=_GZIP)
        self._records: list[Header | Record] = [
            Header(
                headstart=version("headstart"),
                python=platform.python_version(),
                started=datetime.now(UTC).isoformat(timespec="seconds"),
                cache=cache,
            )
        ]
        self.flush()

    @property
    def is_open(self) -> bool:
        """Whether records are still written."""
        return self._file is not None

    def write(self, record: Record) -> None:
        """See `Sink`."""
        if self._file is not None:
            self._records.append(record)

    def flush(self) -> None:
        """See `Sink`."""
        if self._records:
            self._put(zlib.Z_SYNC_FLUSH)

    def close(self) -> None:
        """See `Sink`."""
        self._put(zlib.Z_FINISH)
        self._stop()

    def _put(self, mode: int) -> None:
        if self._file is None:
            return
        data = self._gzip.compress(self._encoder.encode_lines(self._records)) + self._gzip.flush(mode)
        self._records.clear()
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            why = error.strerror or error
            logger.warning("the decision log %s ends here: %s; serving goes on without it", self.path, why)
            self._stop()

    def _stop(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # it would try once more to write what it could not
                self._file.close()
        self._file = None
        self._records.clear()


def check_place(path: Path) -> None:
    """Raise ``ConfigError`` if no file could be made here: to be told before a model is loaded."""
    if os.path.isdir(path):
        raise ConfigError(f"decision_log must name a file, and {path} is a directory")
    if not os.path.isdir(path.parent):
        raise ConfigError(f"decision_log cannot be {path}: there is no directory {path.parent}")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"decision_log cannot be {path}: {path.parent} may not be written to")


def open_decision_log(path: Path, cache: CacheConfig) -> DecisionLog:
    """A log in a new file: ``path``, or with the first number behind it that is free.

    Raises ``ConfigError`` if it cannot be made.
    """
    check_place(path)
    for number in itertools.count():
        chosen = path.with_name(f"{path.name}.{number}") if number else path
        try:
            descriptor = os.open(chosen, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            continue
        except OSError as error:
            if error.errno not in _FULL:
                raise ConfigError(f"decision_log cannot be {chosen}: {error.strerror}") from error
            logger.warning("there is no decision log %s: %s", chosen, error.strerror)
            return DecisionLog(chosen, None, cache)  # an engine that starts again must not fail for that
        if number:
            logger.warning("%s exists, so the decision log is %s", path, chosen)
        return DecisionLog(chosen, os.fdopen(descriptor, "wb"), cache)
    raise AssertionError("there is always a further number")
