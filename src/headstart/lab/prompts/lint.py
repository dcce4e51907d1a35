"""The static part of an explanation: one body, a file of them, or a template, and what in it costs hits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from headstart.errors import CorruptModelError, LintError, RequestError
from headstart.lab.prompts.body import Body, Section, read_body
from headstart.lab.prompts.chat_template_rules import ChatTemplateCheck, is_chat_template
from headstart.lab.prompts.documents import (
    Document,
    bodies_in,
    line_of,
    looks_like_json,
    template_in,
    why_no_body,
)
from headstart.lab.prompts.drift_rules import drift
from headstart.lab.prompts.field_rules import salts_across, salts_and_keys, uncached
from headstart.lab.prompts.layout_rules import (
    data_before_text,
    documents_before_instructions,
    examples_behind_variables,
    short_prefix,
)
from headstart.lab.prompts.order_rules import json_in_text, key_order, orders_across, tool_order
from headstart.lab.prompts.placeholders import check_template, unsorted_loops
from headstart.lab.prompts.problem import LintReport, Problem, Sharing, Spot, spelled
from headstart.lab.prompts.variable_rules import sharing, variables
from headstart.lab.prompts.variables import find_variables
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

    def lint(
        self,
        name: str,
        text: str,
        kind: Kind | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> LintReport:
        """All problems of a file called ``name``, by place.

        A kind that is not given is found out: JSON, or a JSON object on each line, are bodies; all else is a
        template.  ``progress`` is told how many bodies are done, and of how many.

        Raises ``LintError`` for what is neither, or not of that kind.
        """
        if not text.strip():
            raise LintError(f"{name} is empty")
        documents = None if kind == "template" else bodies_in(text.removeprefix("\ufeff"))
        if documents is None and (kind == "body" or looks_like_json(name, text)):
            raise LintError(f"{name} is not JSON, nor has it a JSON object on each line: {why_no_body(text)}")
        template = template_in(text)
        if template is not None and kind != "body":
            places, path, source = template
            return self._template(name, source, lambda at: line_of(text, places.offset(path, at)))
        if documents is None:
            return self._template(name, text, lambda at: line_of(text, at))
        return self._bodies(name, documents, progress)

    def _bodies(
        self, name: str, documents: list[Document], progress: Callable[[int, int], None] | None
    ) -> LintReport:
        bodies, shares, found = [], [], []
        find = cache(find_variables)  # most bodies of a log have their system prompt and tools in common
        for number, document in enumerate(documents):
            try:
                body = read_body(document.fields, self.reader, with_template=self.with_template, find=find)
            except RequestError as error:
                raise LintError(f"{name}:{document.line}: {error}") from error
            shared = sharing(body)
            bodies.append(body)
            shares.append(shared)
            if progress is not None:
                progress(number + 1, len(documents))
            found += [(number, spot) for spot in _body_spots(body, shared, self.block_size)]
        across = [*orders_across(bodies), *salts_across(bodies)]
        proved = {spot.rule for _, spot in across}  # so one body's suspicion need not be told
        found = [(number, spot) for number, spot in found if spot.rule not in proved] + across
        problems = [
            _problem(spot, *documents[number].place(spot), spelled(spot.where)) for number, spot in found
        ]
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
            except (CorruptModelError, RequestError) as error:
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
