"""API keys, as digests: those given at the start, and those of a file that may change."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from headstart.config import NO_KEYS, KeysConfig, is_api_key
from headstart.errors import ConfigError

logger = logging.getLogger(__name__)

UNSETTLED_NS = 2 * 10**9
"""A file that was written so lately may be written again without its time saying so."""
_COMMENT = re.compile(r"(^|\s)#.*")  # not within a word: keys may have a #


@dataclass(frozen=True, slots=True)
class _Version:
    """What tells one content of a file from the next without reading it."""

    modified_ns: int
    changed_ns: int
    num_bytes: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> _Version:
        return cls(status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


class KeyRing:
    """The keys of one kind (``option`` names it to people).  No key is kept, only digests.

    A file is looked at on each `find` and read if it is another than last time.  One that cannot be read, or
    has a line that is no key, changes nothing and is told once; one without keys lets nobody in.
    """

    def __init__(
        self,
        config: KeysConfig = NO_KEYS,
        *,
        option: str = "--api-key-file",
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Raises `ConfigError` if the file cannot be read, or has a line that is no key."""
        self._given = frozenset(map(_digest, config.given))
        self._file = config.file
        self._option = option
        self._clock_ns = clock_ns
        self._known = self._given
        self._version: _Version | None = None
        self._settled = False
        self._trouble: str | None = None
        self.is_wanted = config.are_wanted
        if self._file is not None:
            self._read(self._file)

    def find(self, presented: str) -> bytes | None:
        """The digest of the key that was ``presented``; None if there is no such key.

        It takes equally long wherever the key stands, and however much of it is right.
        """
        self._refresh()
        digest = _digest(presented)
        found = False
        for known in self._known:
            found |= hmac.compare_digest(known, digest)
        return digest if found else None

    def _refresh(self) -> None:
        if self._file is None:
            return
        trouble = None
        try:
            if not self._settled or _Version.of(os.stat(self._file)) != self._version:
                self._read(self._file)
        except ConfigError as error:
            trouble = str(error)
        except OSError as error:
            trouble = self._unreadable(error)
        if trouble is not None and trouble != self._trouble:
            logger.warning("%s; the keys that it had still hold", trouble)
        self._trouble = trouble

    def _read(self, file: str) -> None:
        try:
            with open(file, encoding="utf-8") as lines:
                version = _Version.of(os.fstat(lines.fileno()))
                words = [_COMMENT.sub("", line).strip() for line in lines]
        except OSError as error:
            raise ConfigError(self._unreadable(error)) from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{self._option} {file} is not text in UTF-8") from error
        for number, word in enumerate(words, start=1):
            if word and not is_api_key(word):  # it is not quoted: it may be a key with one letter too many
                raise ConfigError(
                    f"line {number} of {self._option} {file} is no key: 1 to 1024 visible ASCII characters "
                    "without spaces"
                )
        before, self._known = self._known, self._given | {_digest(word) for word in words if word}
        first, self._version = self._version is None, version
        self._settled = self._clock_ns() - max(version.modified_ns, version.changed_ns) > UNSETTLED_NS
        if not self._known and (first or before):
            logger.warning("%s %s has no keys, so it lets nobody in", self._option, file)

    def _unreadable(self, error: OSError) -> str:
        return f"{self._option} {self._file} cannot be read: {error.strerror or error}"


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
