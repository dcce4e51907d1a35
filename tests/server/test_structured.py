"""Structured outputs over HTTP: what reaches the engine, and what is refused before it does."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from headstart.engine.structured import StructuredOutputs

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
BASES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    COMPLETION: {"prompt": "hi"},
}
PATHS = pytest.mark.parametrize("path", BASES)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TEXT = '{"type": "object", "properties": {"a": {"type": "integer"}}}'

ASKED: list[tuple[dict[str, Any], StructuredOutputs]] = [
    ({"response_format": {"type": "json_object"}}, StructuredOutputs(json_object=True)),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
        StructuredOutputs(json=TEXT, lenient=True),
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": SCHEMA, "strict": True},
            }
        },
        StructuredOutputs(json=TEXT),
    ),
    ({"structured_outputs": {"json": SCHEMA}}, StructuredOutputs(json=TEXT)),
    ({"structured_outputs": {"json": TEXT}}, StructuredOutputs(json=TEXT)),
    ({"structured_outputs": {"json_object": True}}, StructuredOutputs(json_object=True)),
    ({"structured_outputs": {"regex": "a+"}}, StructuredOutputs(regex="a+")),
    ({"structured_outputs": {"choice": ["a", "b"]}}, StructuredOutputs(choice=("a", "b"))),
    ({"structured_outputs": {"grammar": 'root ::= "a"'}}, StructuredOutputs(grammar='root ::= "a"')),
    (
        {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " ?"}},
        StructuredOutputs(json=TEXT, whitespace_pattern=" ?"),
    ),
    (
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
        StructuredOutputs(json=TEXT, disable_any_whitespace=True),
    ),
    ({"guided_json": SCHEMA}, StructuredOutputs(json=TEXT)),
    (
        {"guided_json": SCHEMA, "guided_whitespace_pattern": " "},
        StructuredOutputs(json=TEXT, whitespace_pattern=" "),
    ),
    ({"guided_regex": "a+"}, StructuredOutputs(regex="a+")),
    ({"guided_choice": ["a", "b"]}, StructuredOutputs(choice=("a", "b"))),
    ({"guided_grammar": 'start: "a"'}, StructuredOutputs(grammar='start: "a"')),
]


@PATHS
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "wanted"), ASKED, ids=lambda value: str(value)[:40])
def test_what_is_asked_for_reaches_the_engine(
    client: TestClient,
    engine: Any,
    path: str,
    fields: dict[str, Any],
    wanted: StructuredOutputs,
    stream: bool,
) -> None:
    response = client.post(path, json=BASES[path] | fields | {"stream": stream})
    assert response.status_code == 200, response.text
    [(_, params, _)] = engine.submitted
    assert params.structured_outputs == wanted
    assert params.structured_outputs.origin in fields


@PATHS
@pytest.mark.parametrize(
    "fields", [{"response_format": {"type": "text"}}, {"response_format": None, "structured_outputs": None}]
)
def test_nothing_asked_for_is_nothing(
    client: TestClient, engine: Any, path: str, fields: dict[str, Any]
) -> None:
    assert client.post(path, json=BASES[path] | fields).status_code == 200
    assert engine.submitted[0][1].structured_outputs is None


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": "json"}, "response_format", "an object like"),
    ({"response_format": {"type": "xml"}}, "response_format", "must be"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "needs json_schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
        "response_format",
        "needs json_schema",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "king"}}}},
        "response_format",
        "Invalid type: king",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"strict": True, "schema": {"not": {}}}}},
        "response_format",
        '"not"',
    ),
    ({"structured_outputs": {}}, "structured_outputs", "exactly one of"),
    ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs", "got json and regex"),
    ({"structured_outputs": {"regex": "(a"}}, "structured_outputs", "unclosed group"),
    ({"structured_outputs": {"regex": r"[^\s\S]"}}, "structured_outputs", "any text"),
    ({"structured_outputs": {"regex": "a" * 200_000}}, "structured_outputs", "at most"),
    ({"guided_regex": "(a"}, "guided_regex", "unclosed group"),
    ({"guided_choice": []}, "guided_choice", "at least one"),
    ({"guided_grammar": "start: b"}, "guided_grammar", "unknown name"),
    ({"guided_json": "{"}, "guided_json", "not JSON"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "leave all but one out"),
    (
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
        "structured_outputs",
        "response_format and structured_outputs each say",
    ),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "only with guided_json"),
]


@PATHS
@pytest.mark.parametrize(("fields", "param", "says"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_makes_no_sense_is_refused_before_anything_is_queued(
    client: TestClient, engine: Any, path: str, fields: dict[str, Any], param: str, says: str
) -> None:
    response = client.post(path, json=BASES[path] | fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, "invalid_value")
    assert says in error["message"]
    assert engine.submitted == []


@PATHS
@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"json": SCHEMA, "disable_additional_properties": True}},
        {"structured_outputs": {"structural_tag": "{}"}},
    ],
)
def test_what_is_not_done_yet_is_never_ignored(client: TestClient, path: str, fields: dict[str, Any]) -> None:
    error = client.post(path, json=BASES[path] | fields).json()["error"]
    assert error["code"] == "unsupported_parameter"
    assert error["param"].startswith("structured_outputs.")


def test_a_long_compilation_keeps_nobody_waiting(
    client: TestClient, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not done on the event loop's thread."""
    import threading

    from headstart.engine.grammars import Grammars

    where: list[str] = []
    compile_it = Grammars.matcher

    def watched(self: Grammars, *arguments: Any) -> Any:
        where.append(threading.current_thread().name)
        return compile_it(self, *arguments)

    monkeypatch.setattr(Grammars, "matcher", watched)
    assert client.post(COMPLETION, json={"prompt": "hi", "guided_regex": "a"}).status_code == 200
    assert len(where) == 1
    assert where[0].startswith("asyncio_")  # the default executor's
