"""Server-Sent Events, from bytes that may be cut anywhere."""

from __future__ import annotations


class EventDecoder:
    r"""The data of each event of a stream, however the network cut it.

    Works on bytes, because a line ends at ``\n`` or ``\r\n`` only: text decoders also split at
    U+2028 and its kin, which JSON may hold unescaped.  Comments and fields other than ``data`` are
    skipped.  A lone ``\r`` as line end, which the standard allows and no server sends, is not.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def push(self, chunk: bytes) -> list[bytes]:
        """The data of the events that ``chunk`` completes, in order."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        events = []
        for line in lines:
            field, _, value = line.removesuffix(b"\r").partition(b":")
            if field == b"data":
                self._data.append(value.removeprefix(b" "))
            elif not field and not value and self._data:  # an empty line ends the event
                events.append(b"\n".join(self._data))
                self._data = []
        return events
