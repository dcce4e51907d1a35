"""Tools and JSON whose order nobody fixed: the same set in another order is another prompt."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from headstart.lab.prompts.body import Body, Section, dumped
from headstart.lab.prompts.problem import Path, Severity, Spot

_MAX_TRIES = 200  # braces of one text that are tried as the beginning of JSON
_SORT_TOOLS = "sort the tools by name before they are sent"
_SORT_KEYS = "serialise with sorted keys (json.dumps(…, sort_keys=True)), or always in one fixed order"


def tool_order(body: Body) -> Iterator[Spot]:
    """Tools that are not in the order of their names."""
    names = tool_names(body.fields)
    for number, (name, following) in enumerate(pairwise(names), 1):
        if following < name:
            yield Spot(
                "HS101",
                Severity.INFO,
                ("tools", number),
                0,
                "the tools are not in the order of their names",
                f"{_SORT_TOOLS}, if nothing else fixes their order",
                following,
            )
            return


def tool_names(fields: Mapping[str, Any]) -> list[str]:
    """The tools' names, as they come; those without one are left out."""
    functions = [tool.get("function", tool) for tool in fields.get("tools") or ()]
    names = [function.get("name") for function in functions if isinstance(function, dict)]
    return [name for name in names if isinstance(name, str)]


def key_order(body: Body) -> Iterator[Spot]:
    """Objects among the tools that have the same keys in different orders."""
    orders: dict[frozenset[str], tuple[str, ...]] = {}
    for path, keys in _objects(body.fields.get("tools") or [], ("tools",)):
        if orders.setdefault(frozenset(keys), keys) != keys:
            yield Spot(
                "HS102",
                Severity.INFO,
                path,
                0,
                "this object has its keys in another order than one before it",
                _SORT_KEYS,
                ", ".join(keys),
            )
            return


def _objects(value: Any, path: Path) -> Iterator[tuple[Path, tuple[str, ...]]]:
    if isinstance(value, dict):
        if path[-1] != "properties":  # how a tool orders its own arguments is its own affair
            yield path, tuple(value)
        for key, item in value.items():
            yield from _objects(item, (*path, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _objects(item, (*path, number))


def json_in_text(body: Body) -> Iterator[Spot]:
    """JSON within what could be shared, in a form that another serialiser would not write."""
    for part in body.parts:
        if part.role == "tools" or (part.section is not Section.HEAD and not body.is_single):
            continue
        for start, raw, value in _json_objects(part.text):
            fault = _fault(raw, value)
            if fault is not None:
                yield Spot("HS103", Severity.INFO, part.where, start, fault, _SORT_KEYS, raw[:60])
                break


def _fault(raw: str, value: dict[str, Any]) -> str | None:
    forms = [json.dumps(value, ensure_ascii=False, separators=pair) for pair in ((", ", ": "), (",", ":"))]
    forms += [json.dumps(value, ensure_ascii=False, indent=indent) for indent in (2, 4, "\t")]
    if raw not in forms and raw not in [json.dumps(value), json.dumps(value, separators=(",", ":"))]:
        return "JSON in the text has irregular separators, which the next serialiser will not repeat"
    if dumped(value) != json.dumps(value):
        return "JSON in the text has keys that are not sorted, so their order hangs on who wrote it"
    return None


def _json_objects(text: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Objects of at least two keys, outermost ones only."""
    decoder, at = json.JSONDecoder(), -1
    for _ in range(_MAX_TRIES):
        at = text.find("{", at + 1)
        if at < 0:
            return
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            continue
        if len(value) > 1:
            yield at, text[at:end], value
        at = end - 1


def orders_across(bodies: list[Body]) -> Iterator[tuple[int, Spot]]:
    """Bodies with the same tools as one before, in another order or with other orders of keys."""
    names_of: dict[frozenset[str], list[str]] = {}
    text_of: dict[str, str] = {}
    told: set[str] = set()
    for number, body in enumerate(bodies):
        names, tools = tool_names(body.fields), body.fields.get("tools") or []
        if names_of.setdefault(frozenset(names), names) != names and "HS101" not in told:
            told.add("HS101")
            what = "the same tools as in an earlier body, in another order"
            yield number, Spot("HS101", Severity.WARNING, ("tools",), 0, what, _SORT_TOOLS)
        for index, tool in enumerate(tools):
            raw = json.dumps(tool)
            if text_of.setdefault(dumped(tool), raw) != raw and "HS102" not in told:
                told.add("HS102")
                what = "the same tool as in an earlier body, with its keys in another order"
                yield number, Spot("HS102", Severity.WARNING, ("tools", index), 0, what, _SORT_KEYS)
