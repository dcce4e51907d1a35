"""A decision log as records.  The engine that wrote it may have died in the middle of one."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from headstart.engine.decisions import FORMAT, VERSION, Header, Record
from headstart.errors import ConfigError, LogError

_CHUNK = 1 << 12  # what a damaged byte costs of what was before it
_LONGEST_LINE = 1 << 26  # more than any prompt has tokens, and what a file of nonsense may cost in memory
_GZIP_MAGIC = b"\x1f\x8b"


class _Identity(msgspec.Struct):
    """What a header of any version has."""

    format: str
    version: int


class LogReader:
    """The log that ``file`` holds, from its beginning; gzip, or the bare lines of an unpacked one.

    ``header`` is there at once.  `records` ends quietly where the file breaks off; then `num_lost` says how
    many bytes of half a record were left out.  Raises ``LogError`` for what is no log of this format, and,
    while records are read, for a damaged one.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._name = name
        self.num_read = 0
        """Bytes of the file taken in so far."""
        self.num_lost = 0
        """Bytes of half a record at the end, once all records were read."""
        self._lines = self._read_lines(file)
        self._num_lines = 1
        self.header = read_header(next(self._lines, b""), name)

    def records(self) -> Iterator[Record]:
        """The records, in order."""
        decoder = msgspec.json.Decoder(Record)
        for line in self._lines:
            self._num_lines += 1
            try:
                record = decoder.decode(line)
            except msgspec.DecodeError as error:
                raise LogError(f"{self._name} is damaged in line {self._num_lines}: {error}") from error
            yield record

    def _read_lines(self, file: BinaryIO) -> Iterator[bytes]:
        half: list[bytes] = []
        for data in self._unpacked(file):
            half.append(data)
            if b"\n" in data:
                *lines, last = b"".join(half).split(b"\n")
                half = [last]
                yield from lines
            elif sum(map(len, half)) > _LONGEST_LINE:
                raise LogError(f"{self._name} is damaged: a line has more than {_LONGEST_LINE:,} bytes")
        self.num_lost = sum(map(len, half))

    def _unpacked(self, file: BinaryIO) -> Iterator[bytes]:
        chunk = self._take(file)
        if not chunk.startswith(_GZIP_MAGIC):
            while chunk:
                yield chunk
                chunk = self._take(file)
            return
        gzip = zlib.decompressobj(wbits=31)
        while chunk and not gzip.eof:
            try:
                data = gzip.decompress(chunk, _CHUNK)
                chunk = gzip.unconsumed_tail or self._take(file)
            except zlib.error as error:
                raise LogError(f"{self._name} is damaged before byte {self.num_read}: {error}") from error
            yield data
        yield gzip.flush()
        if gzip.eof and (gzip.unused_data or chunk):
            raise LogError(f"{self._name} goes on behind the log's end; a file holds one log")

    def _take(self, file: BinaryIO) -> bytes:
        chunk = file.read(_CHUNK)
        self.num_read += len(chunk)
        return chunk


def read_header(line: bytes, name: str) -> Header:
    """The header that the first line of ``name`` is.  Raises ``LogError`` if it is none of this version."""
    try:
        identity = msgspec.json.decode(line, type=_Identity)
    except msgspec.DecodeError as error:
        raise LogError(f"{name} is no decision log of headstart") from error
    if identity.format != FORMAT:
        raise LogError(f"{name} is no decision log of headstart")
    if identity.version != VERSION:
        raise LogError(
            f"{name} is a decision log of format {identity.version}, and this headstart reads "
            f"format {VERSION}: verify it with the headstart that wrote it"
        )
    try:
        return msgspec.json.decode(line, type=Header)
    except (msgspec.DecodeError, ConfigError) as error:
        raise LogError(f"{name} has a header that makes no sense: {error}") from error
