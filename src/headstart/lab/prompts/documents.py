"""What a file holds: bodies, a template within JSON, or neither, and on which line and column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headstart.lab.prompts.json_places import JsonPlaces
from headstart.lab.prompts.problem import Path, Spot


@dataclass(frozen=True, slots=True)
class Document:
    """A body within a file: its JSON, where in that the body is, and the line on which the JSON begins."""

    text: str
    places: JsonPlaces
    root: Path
    line: int

    @property
    def fields(self) -> Mapping[str, Any]:
        """The body itself."""
        value = self.places.value
        for key in self.root:
            value = value[key]
        return value  # type: ignore[no-any-return]  # JSON

    def place(self, spot: Spot) -> tuple[int, int]:
        """Line and column of what a rule found."""
        line, column = line_of(self.text, self.places.offset((*self.root, *spot.where), spot.offset))
        return self.line + line - 1, column


def bodies_in(text: str) -> list[Document] | None:
    """The bodies of a file; None if it is no JSON, or JSON of something else."""
    try:
        places = JsonPlaces(text)
    except ValueError:
        found = []
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                try:
                    found.append(_document(line, JsonPlaces(line), (), number))
                except ValueError:
                    return None
        return None if None in found else [document for document in found if document is not None]
    if isinstance(places.value, list) and places.value:
        listed = [_document(text, places, (number,), 1) for number in range(len(places.value))]
        return None if None in listed else [document for document in listed if document is not None]
    one = _document(text, places, (), 1)
    return None if one is None else [one]


def _document(text: str, places: JsonPlaces, root: Path, line: int) -> Document | None:
    """Also of a body inside a line of a batch or of a log."""
    value = places.value
    for key in root:
        value = value[key]
    if not isinstance(value, dict):
        return None
    for key in ("body", "request"):
        if isinstance(value.get(key), dict) and not value.keys() & {"messages", "prompt"}:
            return Document(text, places, (*root, key), line)
    return Document(text, places, root, line)


def template_in(text: str) -> tuple[JsonPlaces, Path, str] | None:
    """The chat template of a tokenizer_config.json, with its way there; of several, the default one."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        places = JsonPlaces(text)
    except ValueError:
        return None
    value = places.value
    if not isinstance(value, dict) or "messages" in value:
        return None
    match value.get("chat_template"):
        case str(template):
            return places, ("chat_template",), template
        case list(named):
            for number, entry in enumerate(named):
                match entry:
                    case {"name": "default", "template": str(template)}:
                        return places, ("chat_template", number, "template"), template
    return None


def looks_like_json(name: str, text: str) -> bool:
    """Whether it was meant to be JSON, so that one must not take it for a template."""
    return name.endswith((".json", ".jsonl")) or text.lstrip().startswith(('{"', "[{", "{\n"))


def why_no_body(text: str) -> str:
    """What is wrong with a file that `bodies_in` could not read: of JSON Lines, the first bad one."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    try:
        JsonPlaces(lines[0][1])
    except ValueError:
        lines = [(0, text)]
    for number, line in lines:
        try:
            JsonPlaces(line)
        except ValueError as error:
            return f"line {number}: {error}" if number else str(error)
    return "a body is an object with messages or a prompt"


def line_of(text: str, offset: int) -> tuple[int, int]:
    """Line and column, from 1, of a character."""
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)
