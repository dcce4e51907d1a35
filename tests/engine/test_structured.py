"""What is asked for: its types, its errors, and the way over the wire."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headstart import SamplingParams, StructuredOutputs
from headstart.engine.structured import MAX_ALTERNATIVES, MAX_SOURCE
from headstart.errors import RequestError


def test_a_dict_is_a_schema_and_a_list_are_choices() -> None:
    assert StructuredOutputs(json={"type": "string"}) == StructuredOutputs(json='{"type": "string"}')
    assert StructuredOutputs(choice=["a", "b"]).choice == ("a", "b")


@pytest.mark.parametrize(
    "wanted",
    [
        {"json": {"type": "object", "title": "größer"}, "lenient": True},
        {"json_object": True, "disable_any_whitespace": True},
        {"regex": "a+"},
        {"choice": ("yes", "no")},
        {"grammar": 'root ::= "a"', "origin": "guided_grammar"},
    ],
)
def test_they_cross_the_wire(wanted: dict[str, Any]) -> None:
    params = SamplingParams(structured_outputs=StructuredOutputs(**wanted))
    there = msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams)
    assert there == params
    assert hash(there) == hash(params)
    assert there.structured_outputs.origin == wanted.get("origin", "structured_outputs")


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({}, "exactly one of json, json_object, regex, choice, grammar, got none"),
        ({"json_object": False}, "got none"),
        ({"json": "{}", "regex": "a"}, "got json and regex"),
        ({"choice": []}, "a list of at least one string"),
        ({"choice": "yes"}, "a list of at least one string"),
        ({"choice": ["a", 1]}, "a list of at least one string"),
        ({"choice": ["a"] * (MAX_ALTERNATIVES + 1)}, "1,025 choices"),
        ({"regex": 3}, "a string, got 3"),
        ({"regex": "a", "lenient": True}, "lenient, which is for json"),
        ({"regex": "a", "whitespace_pattern": " "}, "whitespace_pattern, which is for json"),
        ({"json": "{}", "whitespace_pattern": " ", "disable_any_whitespace": True}, "leave one of them out"),
        ({"json": {"a": {1, 2}}}, "not a JSON schema"),
        ({"regex": "a" * (MAX_SOURCE + 1)}, "characters; at most"),
        ({"regex": "\ud800"}, "valid Unicode"),
    ],
)
def test_what_makes_no_sense_is_refused_under_the_name_it_was_sent_by(
    wanted: dict[str, Any], says: str
) -> None:
    with pytest.raises(RequestError, match=says) as caught:
        StructuredOutputs(**wanted, origin="response_format")
    assert (caught.value.param, caught.value.code) == ("response_format", "invalid_value")
    assert str(caught.value).startswith("response_format ")
    assert len(str(caught.value)) < 300


def test_anything_else_in_its_place_is_refused() -> None:
    with pytest.raises(RequestError, match="structured_outputs must be StructuredOutputs or None"):
        SamplingParams(structured_outputs={"json": {}})  # type: ignore[arg-type]
