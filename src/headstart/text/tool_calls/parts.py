"""What a model's text is taken apart into: text for people, and calls of tools."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class CallPart:
    """A part of call ``number`` (from 0): the first has its ``name``, the others pieces of ``arguments``.

    The pieces together are the arguments' JSON as the model wrote it, right or wrong; only line breaks and
    the like in strings, which JSON forbids and models write, are escaped.
    """

    number: int
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Parsed:
    """What some text settled.  ``num_complete`` calls have come to their end since the beginning."""

    text: str
    calls: tuple[CallPart, ...]
    num_complete: int


class Output:
    """Where a format's reader puts what it has decided on.

    White space before a call and behind the last one belongs to the format; so it is kept until it is known
    what follows.  Behind ``most`` calls nothing is told any more.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self.num_calls = 0
        self.num_complete = 0
        self._text: list[str] = []
        self._space: list[str] = []
        self._calls: list[CallPart] = []
        self._follows_call = False

    @property
    def is_full(self) -> bool:
        """Whether nothing is told any more."""
        return self.num_complete == self._most

    @property
    def follows_call(self) -> bool:
        """Whether there was no text, but for white space, since the last call."""
        return self._follows_call

    def text(self, new: str) -> None:
        """Text for people."""
        if self.is_full:
            return
        settled = new.rstrip()
        if settled:
            self._text += [*self._space, settled]
            self._space.clear()
            self._follows_call = False
        if len(settled) < len(new):
            self._space.append(new[len(settled) :])

    def open(self, name: str) -> None:
        """A call begins."""
        if self.is_full:
            return
        self._space.clear()
        self._calls.append(CallPart(self.num_calls, name))
        self.num_calls += 1
        self._follows_call = True

    def arguments(self, new: str) -> None:
        """More of the arguments of the call that was opened last."""
        if self.is_full:
            return
        last = self._calls[-1] if self._calls else None
        if last is not None and last.name is None:
            self._calls[-1] = replace(last, arguments=last.arguments + new)
        else:
            self._calls.append(CallPart(self.num_calls - 1, arguments=new))

    def close(self) -> None:
        """The arguments of the call that was opened last are complete."""
        self.num_complete += not self.is_full

    def take(self, *, last: bool = False) -> Parsed:
        """What came since the last time; ``last``: and nothing more comes."""
        if last and not self._follows_call:
            self._text += self._space
            self._space.clear()
        parsed = Parsed("".join(self._text), tuple(self._calls), self.num_complete)
        self._text.clear()
        self._calls.clear()
        return parsed
