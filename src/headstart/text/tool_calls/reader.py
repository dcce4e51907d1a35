"""Reading a model's text one character at a time, however it arrives.

A reader is a generator that is sent characters.  So it reads like a parser of a whole text, and yet what it
decides cannot depend on how the text was cut into pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import suppress
from typing import TypeAlias, TypeVar

from headstart.text.tool_calls.parts import Output, Parsed

END = ""
"""What is read behind the last character, any number of times."""

T = TypeVar("T")
Reading: TypeAlias = Generator[None, str, T]


class Broken(Exception):  # noqa: N818 - the reader's affair: what was held is text after all
    """What is being read is no call; the character that showed it has been put back."""


class Characters:
    """The text to read, and what was read of it since the last decision."""

    def __init__(self) -> None:
        self._held: list[str] = []
        self._again: str | None = None

    def next(self) -> Reading[str]:
        """The next character, which is held from now on."""
        if self._again is None:
            char = yield
        else:
            char, self._again = self._again, None
        if char == END:
            self._again = END
        else:
            self._held.append(char)
        return char

    def back(self) -> None:
        """Unread the last character."""
        if self._again is None:
            self._again = self._held.pop()

    def peek(self) -> Reading[str]:
        """The next character, which is not read yet."""
        char = yield from self.next()
        self.back()
        return char

    def release(self) -> str:
        """What is held, which is not any more."""
        held = "".join(self._held)
        self._held.clear()
        return held

    def skip_space(self) -> Reading[str]:
        """Read over white space; what comes behind it, unread."""
        while (char := (yield from self.peek())).isspace():
            yield from self.next()
        return char

    def try_literal(self, literal: str) -> Reading[bool]:
        """Read as much of ``literal`` as is there; whether it was all of it."""
        for expected in literal:
            if (yield from self.next()) != expected:
                self.back()
                return False
        return True

    def literal(self, literal: str) -> Reading[None]:
        """Read ``literal``.  Raises `Broken` if something else is there."""
        if not (yield from self.try_literal(literal)):
            raise Broken


Start: TypeAlias = Callable[[Characters, Output], Reading[None]]
"""Reads a call from its marker on.  Raises `Broken` if it is none after all."""


class CallParser:
    """Text in, text and calls out, as soon as it is certain which is which.

    ``starts`` are the markers that calls begin with, no two with one first character, which must not come
    again in them: so a marker that was only begun is text but for the character that broke it.
    Where what follows a marker is no call, it is text, but for the ``hidden`` markers: special tokens.
    Unless ``several``, nothing is told that follows the first call.
    """

    def __init__(
        self, starts: Mapping[str, Start], hidden: Collection[str] = (), *, several: bool = True
    ) -> None:
        self._chars = Characters()
        self._out = Output(most=None if several else 1)
        self._starts = {marker[0]: (marker, start) for marker, start in starts.items()}
        self._hidden = tuple(hidden)
        self._reading = self._read()
        next(self._reading)

    def push(self, text: str) -> Parsed:
        """What ``text`` settles."""
        for char in text:
            self._reading.send(char)
        return self._out.take()

    def finish(self) -> Parsed:
        """What was undecided, now that no more text comes."""
        with suppress(StopIteration):
            self._reading.send(END)
        return self._out.take(last=True)

    def _read(self) -> Reading[None]:
        chars, out = self._chars, self._out
        while (char := (yield from chars.peek())) != END:
            if char in self._starts:
                marker, start = self._starts[char]
                with suppress(Broken):
                    yield from chars.literal(marker)
                    yield from start(chars, out)
                    chars.release()
            else:
                yield from chars.next()
            out.text(self._shown(chars.release()))

    def _shown(self, text: str) -> str:
        for marker in self._hidden:
            text = text.replace(marker, "")
        return text
