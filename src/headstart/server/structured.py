"""Structured outputs as clients ask for them: OpenAI's ``response_format``, and vLLM's names old and new."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from headstart.engine.structured import StructuredOutputs
from headstart.errors import RequestError
from headstart.server.fields import Flag, ListOf, NotYet, NotYetTrue, String, must_be

Schema = Annotated[dict[str, Any] | bool | str | None, must_be("a JSON schema, as an object or as text")]
Choices = Annotated[ListOf[str] | None, must_be("a list of strings")]


class JsonSchemaFormat(BaseModel):
    """OpenAI's ``json_schema``; unless ``strict``, keywords that cannot be enforced are ignored."""

    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)

    name: String = None
    description: String = None
    schema_: Annotated[
        dict[str, Any] | bool | None, Field(alias="schema"), must_be("a JSON schema, which is an object")
    ] = None
    strict: Flag = None


class ResponseFormat(BaseModel):
    """What OpenAI's clients ask for; pydantic models become this."""

    type: Annotated[
        Literal["text", "json_object", "json_schema"], must_be("one of text, json_object and json_schema")
    ]
    json_schema: Annotated[
        JsonSchemaFormat | None, must_be('an object like {"name": "…", "schema": {…}}')
    ] = None


class StructuredFields(BaseModel):
    """VLLM's ``structured_outputs``: exactly one of the first five."""

    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)

    json_: Annotated[Schema, Field(alias="json")] = None
    json_object: Flag = None
    regex: String = None
    choice: Choices = None
    grammar: String = None
    whitespace_pattern: String = None
    disable_any_whitespace: Flag = None
    disable_additional_properties: NotYetTrue = None
    disable_fallback: Flag = None  # there is nothing to fall back to
    structural_tag: NotYet = None


class AsksForStructure(Protocol):
    """The fields of a body that say what the answer must look like."""

    response_format: ResponseFormat | None
    structured_outputs: StructuredFields | None
    guided_json: dict[str, Any] | bool | str | None
    guided_regex: str | None
    guided_choice: list[str] | None
    guided_grammar: str | None
    guided_whitespace_pattern: str | None


def structure_of(body: AsksForStructure) -> StructuredOutputs | None:
    """What the answer must look like; ``None`` if it may be any text.

    Raises `RequestError` that names the field for what makes no sense, or for two fields that both say it.
    """
    guided = {
        name: value
        for name in ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
        if (value := getattr(body, name)) is not None
    }
    asking = list(guided)
    if body.structured_outputs is not None:
        asking.insert(0, "structured_outputs")
    if body.response_format is not None and body.response_format.type != "text":
        asking.insert(0, "response_format")
    if len(asking) > 1:
        raise RequestError(
            f"{' and '.join(asking)} each say what the answer must look like: leave all but one out",
            param=asking[1],
            code="invalid_value",
        )
    if body.guided_whitespace_pattern is not None and "guided_json" not in guided:
        raise RequestError(
            "guided_whitespace_pattern is allowed only with guided_json",
            param="guided_whitespace_pattern",
            code="invalid_value",
        )
    if body.structured_outputs is not None:
        return _from_fields(body.structured_outputs)
    if guided:
        [(name, value)] = guided.items()
        kind: dict[str, Any] = {name.removeprefix("guided_"): value}
        return StructuredOutputs(**kind, whitespace_pattern=body.guided_whitespace_pattern, origin=name)
    return _from_format(body.response_format)


def _from_fields(fields: StructuredFields) -> StructuredOutputs:
    given: dict[str, Any] = {
        "json": fields.json_,
        "choice": fields.choice,
        "regex": fields.regex,
        "grammar": fields.grammar,
        "whitespace_pattern": fields.whitespace_pattern,
    }
    return StructuredOutputs(
        **given,
        json_object=bool(fields.json_object),
        disable_any_whitespace=bool(fields.disable_any_whitespace),
    )


def _from_format(wanted: ResponseFormat | None) -> StructuredOutputs | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return StructuredOutputs(json_object=True, origin="response_format")
    schema: Any = None if wanted.json_schema is None else wanted.json_schema.schema_
    if wanted.json_schema is None or schema is None:
        raise RequestError(
            'response_format of type json_schema needs json_schema: {"name": "…", "schema": {…}}',
            param="response_format",
            code="invalid_value",
        )
    return StructuredOutputs(json=schema, lenient=not wanted.json_schema.strict, origin="response_format")
