"""Parts of a request's body that come in several spellings of the same: each is given its first one."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

Body = Mapping[str, Any]
T = TypeVar("T")
_COMMON = 3
"""What is in so many requests is a part of a prompt's making, not of one conversation."""
_FEWEST_WORDS = 3
_WORD = re.compile(r"\w+")


class Part(Protocol):
    """One kind of part.  It remembers what came first, so bodies are to be given in the log's order."""

    def settle(self, body: Body) -> Body:
        """The body with this part as it was first seen; the very same object if nothing changes."""


class _FirstOrder:
    """The order in which each set of things was first seen."""

    def __init__(self) -> None:
        self._first: dict[frozenset[tuple[Hashable, int]], list[Hashable]] = {}

    def settle(self, names: Sequence[Hashable]) -> list[int] | None:
        """The indices of ``names`` in their first order; None if they have it."""
        first = self._first.setdefault(frozenset(Counter(names).items()), list(names))
        if first == names:
            return None
        places: defaultdict[Hashable, list[int]] = defaultdict(list)
        for index, name in reversed(list(enumerate(names))):
            places[name].append(index)
        return [places[name].pop() for name in first]


class ToolOrder:
    """The order of the tools."""

    def __init__(self, _bodies: Iterable[Body]) -> None:
        self._order = _FirstOrder()

    def settle(self, body: Body) -> Body:
        """See `Part`."""
        tools = body.get("tools")
        if not isinstance(tools, list) or len(tools) < 2:
            return body
        order = self._order.settle([_canonical(tool) for tool in tools])
        return body if order is None else {**body, "tools": [tools[index] for index in order]}


class ToolKeys:
    """The order of the keys in the tools' JSON."""

    def __init__(self, _bodies: Iterable[Body]) -> None:
        self._first: dict[str, tuple[str, Any]] = {}

    def settle(self, body: Body) -> Body:
        """See `Part`."""
        tools = body.get("tools")
        if not isinstance(tools, list):
            return body
        settled, changed = [], False
        for tool in tools:
            spelling, first = self._first.setdefault(_canonical(tool), (json.dumps(tool), tool))
            changed |= spelling != json.dumps(tool)
            settled.append(first)
        return {**body, "tools": settled} if changed else body


class MessageOrder:
    """The order of messages that many requests have: examples."""

    def __init__(self, bodies: Iterable[Body]) -> None:
        self._order = _FirstOrder()
        counts = Counter(
            name for body in bodies for name in {_canonical(one) for one in _messages(body)[:-1]}
        )
        self._common = {name for name, count in counts.items() if count >= _COMMON}

    def settle(self, body: Body) -> Body:
        """See `Part`."""
        messages = _messages(body)
        names = [_canonical(message) for message in messages[:-1]]
        places = [index for index, name in enumerate(names) if name in self._common]
        order = self._order.settle([names[index] for index in places])
        if order is None:
            return body
        settled = list(messages)
        for place, index in zip(places, order, strict=True):
            settled[place] = messages[places[index]]
        return {**body, "messages": settled}


class LineOrder:
    """The order of lines, and of words (JSON keys, items) in a line, that many requests have."""

    def __init__(self, bodies: Iterable[Body]) -> None:
        self._order = _FirstOrder()
        self._spellings: dict[tuple[str, ...], str] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        counts = Counter(name for body in bodies for name in self._names_in(body))
        self._common = {name for name, count in counts.items() if count >= _COMMON}

    def settle(self, body: Body) -> Body:
        """See `Part`."""
        return with_texts(body, self._settle)

    def _names_in(self, body: Body) -> set[tuple[str, ...]]:
        return {self._name(line) for text in texts(body) for line in text.split("\n")}

    def _name(self, line: str) -> tuple[str, ...]:
        """A line's words, in the order of the alphabet."""
        name = self._names.get(line)
        if name is None:
            name = self._names[line] = tuple(sorted(_WORD.findall(line)))
        return name

    def _settle(self, text: str) -> str:
        lines = text.split("\n")
        names = [self._name(line) for line in lines]
        places = [
            index for index, name in enumerate(names) if len(name) >= _FEWEST_WORDS and name in self._common
        ]
        for index in places:
            first = self._spellings.setdefault(names[index], lines[index])
            if first.split() != lines[index].split():  # white space alone is another part's affair
                lines[index] = first
        order = self._order.settle([names[index] for index in places])
        if order is not None:
            old = [lines[index] for index in places]
            for place, index in zip(places, order, strict=True):
                lines[place] = old[index]
        return "\n".join(lines)


class Spacing:
    """White space: of a whole text, and of lines."""

    def __init__(self, _bodies: Iterable[Body]) -> None:
        self._texts: dict[str, str] = {}
        self._lines: dict[str, str] = {}

    def settle(self, body: Body) -> Body:
        """See `Part`."""
        return with_texts(body, self._settle)

    def _settle(self, text: str) -> str:
        whole = " ".join(text.split())
        if not whole:
            return text
        if whole not in self._texts:
            self._texts[whole] = "\n".join(
                self._lines.setdefault(" ".join(line.split()), line) if line.strip() else line
                for line in text.split("\n")
            )
        return self._texts[whole]


class Switches:
    """The variables of the chat template: each gets the value that most requests have."""

    def __init__(self, bodies: Iterable[Body]) -> None:
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        values: dict[str, Any] = {}
        num_bodies = 0
        for body in bodies:
            num_bodies += 1
            for name, value in _variables(body).items():
                spelling = _canonical(value)
                values[spelling] = value
                counts[name][spelling] += 1
        self._usual: dict[str, Any] = {}
        self.differing: list[str] = []
        for name, spellings in counts.items():
            absent = num_bodies - spellings.total()
            [(spelling, most)] = spellings.most_common(1)
            if len(spellings) > 1 or absent:
                self.differing.append(name)
            if most >= absent:
                self._usual[name] = values[spelling]

    def settle(self, body: Body) -> Body:
        """See `Part`."""
        kept = {name: value for name, value in _variables(body).items() if name not in self.differing}
        usual = {name: value for name, value in self._usual.items() if name in self.differing}
        settled = {**kept, **usual}
        return body if settled == _variables(body) else {**body, "chat_template_kwargs": settled}


def texts(body: Body) -> list[str]:
    """All texts of a body: its prompt, its messages' contents and their text parts."""
    found: list[str] = []

    def keep(text: str) -> str:
        found.append(text)
        return text

    with_texts(body, keep)
    return found


def with_texts(body: Body, change: Callable[[str], str]) -> Body:
    """The body with each text changed; the very same object if all stay what they are."""
    if "messages" not in body:
        prompt = body.get("prompt")
        return _with(body, "prompt", change(prompt)) if isinstance(prompt, str) else body
    messages = _messages(body)
    settled = [_with_content(message, change) for message in messages]
    same = all(one is other for one, other in zip(messages, settled, strict=True))
    return body if same else {**body, "messages": settled}


def _with_content(message: Any, change: Callable[[str], str]) -> Any:
    if not isinstance(message, Mapping):
        return message
    content = message.get("content")
    if isinstance(content, str):
        return _with(message, "content", change(content))
    if isinstance(content, list):
        parts = [
            _with(part, "text", change(part["text"]))
            if isinstance(part, Mapping) and isinstance(part.get("text"), str)
            else part
            for part in content
        ]
        return message if parts == content else {**message, "content": parts}
    return message


def _with(thing: Mapping[str, Any], name: str, value: str) -> Mapping[str, Any]:
    return thing if thing[name] == value else {**thing, name: value}


def _messages(body: Body) -> list[Any]:
    messages = body.get("messages")
    return messages if isinstance(messages, list) else []


def _variables(body: Body) -> Mapping[str, Any]:
    variables = body.get("chat_template_kwargs")
    return variables if isinstance(variables, Mapping) else {}


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
