"""From files to records: unpacked, and cut into lines with their numbers."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from typing import BinaryIO, NamedTuple, Protocol

import msgspec
import zstandard

from headstart.errors import TraceError
from headstart.lab.traces.faults import Faults

_CHUNK = 1 << 14  # a few bytes of a packed file can become a thousand times as many
_LONGEST_LINE = 1 << 26  # as in a decision log: more than any prompt has tokens
_BOM = b"\xef\xbb\xbf"
_BLANK = b" \t\r\n\x00"  # NULs are what a crash leaves at a file's end
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = (b"\x28\xb5\x2f\xfd", *(bytes([nibble]) + b"\x2a\x4d\x18" for nibble in range(0x50, 0x60)))
"""Of a frame, and of those that say nothing, which tools for many cores begin with."""


class Record(NamedTuple):
    """One line of a file, or one element of a JSON list; ``line`` is where it begins, from 1."""

    line: int
    data: bytes


class TraceFile:
    """An open file of recorded traffic, under the name that messages give it.

    gzip and zstd are known by their first bytes and unpacked, of several members or frames too.
    ``progress`` is told how many bytes were read, as they lie on the disk, and counts on from those of
    other files that were ``already_read``.
    """

    def __init__(
        self,
        file: BinaryIO,
        name: str,
        progress: Callable[[int], None] | None = None,
        already_read: int = 0,
    ) -> None:
        self.name = name
        self.num_read = already_read
        """Bytes read so far, of this file and those before it."""
        self._file = file
        self._progress = progress

    def records(self, faults: Faults) -> Iterator[Record]:
        """Every line that is not blank, or, if the file is one JSON list of objects or lists, its elements.

        Lines end at a line feed, with or without a carriage return.  Lines beyond 64 MiB, and the rest of a
        packed file that is damaged, are faults.  Raises ``TraceError`` for a JSON list that is broken.
        """
        chunks = self._unpacked(faults)
        start = b""
        for chunk in chunks:
            start += chunk
            if len(start.translate(None, _BLANK)) > len(_BOM) + 1:
                break
        if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise TraceError(f"{self.name} is UTF-16; traces are read as UTF-8")
        start = start.removeprefix(_BOM)
        chunks = chain([start], chunks)
        return self._elements(chunks) if _is_list(start) else self._lines(chunks, faults)

    def _elements(self, chunks: Iterator[bytes]) -> Iterator[Record]:
        progress, self._progress = self._progress, None  # from here on it is what was done with the elements
        begun_at = self.num_read
        text = b"".join(chunks)
        try:
            elements = msgspec.json.decode(text, type=list[msgspec.Raw])
        except (msgspec.DecodeError, RecursionError) as error:
            raise TraceError(f"{self.name} begins like a JSON list and is none: {error}") from error
        line, end = 1, 0
        for element in elements:
            data = bytes(element)
            begin = text.index(data, end)
            line += text.count(b"\n", end, begin)
            yield Record(line, data)
            end = begin + len(data)
            line += data.count(b"\n")
            if progress is not None:
                progress(begun_at + (self.num_read - begun_at) * end // len(text))
        if progress is not None:
            progress(self.num_read)

    def _lines(self, chunks: Iterator[bytes], faults: Faults) -> Iterator[Record]:
        number, length = 1, 0
        begun: list[bytes] = []
        for chunk in chain(chunks, [b"\n"]):
            *ends, rest = chunk.split(b"\n")
            for end in ends:
                length += len(end)
                if length > _LONGEST_LINE:
                    faults.add(self.name, number, f"the line has more than {_LONGEST_LINE:,} bytes")
                else:
                    data = b"".join([*begun, end]).strip(_BLANK) if begun else end.strip(_BLANK)
                    if data:
                        yield Record(number, data)
                number, length = number + 1, 0
                begun.clear()
            length += len(rest)
            if length > _LONGEST_LINE:
                begun.clear()
            elif rest:
                begun.append(rest)

    def _unpacked(self, faults: Faults) -> Iterator[bytes]:
        chunks = self._chunks()
        first = next(chunks, b"")
        chunks = chain([first], chunks)
        if first.startswith(_GZIP_MAGIC):
            return self._unpack(chunks, lambda: zlib.decompressobj(wbits=31), faults)
        if first.startswith(_ZSTD_MAGIC):
            return self._unpack(chunks, zstandard.ZstdDecompressor().decompressobj, faults)
        return chunks

    def _unpack(
        self, chunks: Iterator[bytes], begin: Callable[[], _Unpacker], faults: Faults
    ) -> Iterator[bytes]:
        unpacker, line = None, 1
        try:
            for chunk in chunks:
                rest = chunk
                while rest:
                    unpacker = unpacker or begin()
                    data = unpacker.decompress(rest)
                    line += data.count(b"\n")
                    yield data
                    rest = b""
                    if unpacker.eof:
                        rest = unpacker.unused_data.lstrip(b"\0")  # tapes and block devices pad
                        unpacker = None
        except (zlib.error, zstandard.ZstdError) as error:
            faults.add(self.name, line, f"the packed file is damaged from here on: {error}")
        else:
            if unpacker is not None:
                faults.add(self.name, line, "the packed file breaks off here")

    def _chunks(self) -> Iterator[bytes]:
        while chunk := self._file.read(_CHUNK):
            self.num_read += len(chunk)
            if self._progress is not None:
                self._progress(self.num_read)
            yield chunk


class _Unpacker(Protocol):
    """What zlib and zstandard have in common."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


def _is_list(start: bytes) -> bool:
    """Whether a file is one JSON list of records, rather than a bare list of token ids on each line."""
    begin = start.translate(None, _BLANK)[:2]
    return begin in (b"[{", b"[[")
