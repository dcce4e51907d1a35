"""The static part of an explanation: one body, a file of them, or a template, and what in it costs hits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from headstart.errors import CorruptModelError, LintError, RequestError
from headstart.lab.prompts.body import Body, Section, read_body
from headstart.lab.prompts.chat_template_rules import ChatTemplateCheck, is_chat_template
from headstart.lab.prompts.drift_rules import drift
from headstart.lab.prompts.field_rules import salts_across, salts_and_keys, uncached
from headstart.lab.prompts.json_places import JsonPlaces
from headstart.lab.prompts.layout_rules import (
    data_before_text,
    documents_before_instructions,
    examples_behind_variables,
    short_prefix,
)
from headstart.lab.prompts.order_rules import json_in_text, key_order, orders_across, tool_order
from headstart.lab.prompts.placeholders import check_template, unsorted_loops
from headstart.lab.prompts.problem import LintReport, Path, Problem, Sharing, Spot, spelled
from headstart.lab.prompts.variable_rules import sharing, variables
from headstart.lab.traces.texts import PromptReader

Kind = Literal["body", "template"]


@dataclass(frozen=True, slots=True)
class Linter:
    """How files are looked at.

    ``reader`` measures in tokens; without one characters are counted.  ``with_template`` it also renders
    bodies, as the model that it belongs to would.
    """

    reader: PromptReader | None = None
    with_template: bool = False
    block_size: int = 16

    def lint(self, name: str, text: str, kind: Kind | None = None) -> LintReport:
        """All problems of a file called ``name``, by place.

        A kind that is not given is found out: JSON, or a JSON object on each line, are bodies; all else is a
        template.  Raises ``LintError`` for what is neither, or not of that kind.
        """
        if not text.strip():
            raise LintError(f"{name} is empty")
        documents = None if kind == "template" else _documents(text)
        if documents is None and (kind == "body" or _looks_like_json(name, text)):
            raise LintError(f"{name} is not JSON, nor has it a JSON object on each line: {_why_not(text)}")
        template = _template_within(text)
        if template is not None and kind != "body":
            places, path = template
            return self._template(name, places.value[path[0]], lambda at: _line(text, places.offset(path, at)))
        if documents is None:
            return self._template(name, text, lambda at: _line(text, at))
        return self._bodies(name, documents)

    def _bodies(self, name: str, documents: list[_Document]) -> LintReport:
        bodies, shares, found = [], [], []
        for number, document in enumerate(documents):
            try:
                body = read_body(document.fields, self.reader, with_template=self.with_template)
            except RequestError as error:
                raise LintError(f"{name}:{document.line}: {error}") from error
            shared = sharing(body)
            bodies.append(body)
            shares.append(shared)
            found += [(number, spot) for spot in _body_spots(body, shared, self.block_size)]
        found += [*orders_across(bodies), *salts_across(bodies)]
        found = _worst_of_each_place(found)
        problems = [_problem(spot, *documents[number].place(spot), spelled(spot.where)) for number, spot in found]
        kind: Literal["body", "bodies"] = "body" if len(documents) == 1 else "bodies"
        return LintReport(name, kind, bodies[0].ruler.unit, _merged(problems), shares)

    def _template(self, name: str, source: str, place: Callable[[int], tuple[int, int]]) -> LintReport:
        encode = self.reader.tokens if self.reader is not None else None
        spots = [*unsorted_loops(source), *drift(source, (), blanks=False)]
        shares: list[Sharing] = []
        kind: Literal["chat template", "prompt template"] = "prompt template"
        if is_chat_template(source):
            kind = "chat template"
            try:
                spots += ChatTemplateCheck(source).spots()
            except CorruptModelError as error:
                raise LintError(f"{name}: {error}") from error
        else:
            _, own, shared = check_template(source, encode)
            spots += own
            shares.append(shared)
        problems = [_problem(spot, *place(spot.offset), "") for spot in spots]
        unit: Literal["tokens", "characters"] = "tokens" if encode is not None and shares else "characters"
        return LintReport(name, kind, unit, sorted(problems, key=_by_place), shares)


def _body_spots(body: Body, shared: Sharing, block_size: int) -> Iterator[Spot]:
    yield from variables(body)
    yield from tool_order(body)
    yield from key_order(body)
    yield from json_in_text(body)
    for part in body.parts:
        if part.section is Section.HEAD or body.is_single:
            yield from drift(part.text, part.where)
    yield from examples_behind_variables(body, shared)
    yield from documents_before_instructions(body)
    yield from data_before_text(body)
    yield from short_prefix(body, shared, block_size)
    yield from salts_and_keys(body, shared)
    yield from uncached(body, shared)


@dataclass(frozen=True, slots=True)
class _Document:
    """A body within a file: its JSON, where in that the body is, and the line on which the JSON begins."""

    text: str
    places: JsonPlaces
    root: Path
    line: int

    @property
    def fields(self) -> Mapping[str, Any]:
        value = self.places.value
        for key in self.root:
            value = value[key]
        return value  # type: ignore[no-any-return]  # JSON

    def place(self, spot: Spot) -> tuple[int, int]:
        line, column = _line(self.text, self.places.offset((*self.root, *spot.where), spot.offset))
        return self.line + line - 1, column


def _documents(text: str) -> list[_Document] | None:
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


def _document(text: str, places: JsonPlaces, root: Path, line: int) -> _Document | None:
    """Also of a body inside a line of a batch or of a log."""
    value = places.value
    for key in root:
        value = value[key]
    if not isinstance(value, dict):
        return None
    for key in ("body", "request"):
        if isinstance(value.get(key), dict) and not value.keys() & {"messages", "prompt"}:
            return _Document(text, places, (*root, key), line)
    return _Document(text, places, root, line)


def _template_within(text: str) -> tuple[JsonPlaces, tuple[str]] | None:
    """The chat template of a tokenizer_config.json."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        places = JsonPlaces(text)
    except ValueError:
        return None
    is_one = isinstance(places.value, dict) and isinstance(places.value.get("chat_template"), str)
    return (places, ("chat_template",)) if is_one and "messages" not in places.value else None


def _looks_like_json(name: str, text: str) -> bool:
    return name.endswith((".json", ".jsonl")) or text.lstrip().startswith(('{"', "[{", "{\n"))


def _why_not(text: str) -> str:
    lines = [line for line in text.split("\n") if line.strip()]
    try:
        JsonPlaces(text if len(lines) == 1 or not lines[0].rstrip().endswith("}") else lines[0])
    except ValueError as error:
        return str(error)
    return "a body is an object with messages or a prompt"


def _line(text: str, offset: int) -> tuple[int, int]:
    """Line and column, from 1, of a character."""
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def _problem(spot: Spot, line: int, column: int, part: str) -> Problem:
    return Problem(
        spot.rule,
        spot.severity,
        line,
        column,
        part,
        spot.what,
        spot.fix,
        spot.excerpt,
        spot.num_lost,
        spot.position,
    )


def _worst_of_each_place(found: Sequence[tuple[int, Spot]]) -> list[tuple[int, Spot]]:
    """Without what a worse problem of the same rule says of the same place."""
    worst: dict[tuple[int, str, Path], Spot] = {}
    for number, spot in found:
        known = worst.get((number, spot.rule, spot.where))
        if known is None or known.severity.rank < spot.severity.rank:
            worst[number, spot.rule, spot.where] = spot
    return [(number, spot) for (number, _, _), spot in worst.items()]


def _merged(problems: Sequence[Problem]) -> list[Problem]:
    """Of bodies that have the same fault at the same part, the first, with how many there are."""
    firsts: dict[tuple[str, str, str], Problem] = {}
    for problem in problems:
        key = problem.rule, problem.severity.value, problem.part
        known = firsts.get(key)
        firsts[key] = problem if known is None else replace(known, num_bodies=known.num_bodies + 1)
    return sorted(firsts.values(), key=_by_place)


def _by_place(problem: Problem) -> tuple[int, int, str]:
    return problem.line, problem.column, problem.rule
