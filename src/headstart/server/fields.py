"""The types of a request body's fields, each with a sentence that says what is allowed.

Types are strict (``"0.5"`` is no number); ranges are `SamplingParams`' affair.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import CoreSchema, PydanticCustomError, PydanticSerializationError, to_json

from headstart.engine.request import MAX_LOGPROBS

MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024
MAX_BIASES = 1024


def must_be(allowed: str) -> WrapValidator:
    """A validator that says in words what is allowed, in place of one complaint for each type tried."""

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            if error.error_count() == 1 and error.errors()[0]["type"] in ("not_yet", "refused"):
                raise  # a field of this object: it has a sentence of its own
            raise PydanticCustomError("must_be", "must be {allowed}", {"allowed": allowed}) from None

    return _Worded(check, schema={"description": allowed})


def not_yet(*neutral: Any) -> AfterValidator:
    """A validator for a field we do not do yet: only ``null`` and the values that ask for nothing pass."""
    words = " or ".join(json.dumps(value) for value in neutral) or "null"

    def check(value: Any) -> Any:
        alike = (same for same in neutral if isinstance(same, bool) == isinstance(value, bool))
        if value is None or value in alike:
            return value
        raise PydanticCustomError("not_yet", "is not supported yet", {"neutral": words})

    return _Narrowed(
        check, schema={"description": "Not supported yet: these ask for nothing.", "enum": [None, *neutral]}
    )


def told(**schema: Any) -> Any:
    """JSON schema for a field whose range is checked elsewhere."""
    return Field(json_schema_extra=schema)


@dataclass(frozen=True, slots=True)
class _Worded(WrapValidator):
    """A validator that the OpenAPI document tells, too."""

    schema: dict[str, Any] = field(default_factory=dict)

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return handler(core_schema) | self.schema


@dataclass(frozen=True, slots=True)
class _Narrowed(AfterValidator):
    """The same, for what is checked after the type."""

    schema: dict[str, Any] = field(default_factory=dict)

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return handler(core_schema) | self.schema


def refused(why: str, *neutral: Any) -> AfterValidator:
    """A validator for a field that we shall not do: ``why`` says so after the field's name."""

    def check(value: Any) -> Any:
        if value is None or any(same == value and type(same) is type(value) for same in neutral):
            return value
        raise PydanticCustomError("refused", "is refused", {"why": why})

    return AfterValidator(check)


def _is_text(text: str) -> str:
    """Half of a surrogate pair, which JSON can spell, is no text."""
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise PydanticCustomError("must_be", "must be {allowed}", {"allowed": "valid Unicode"})
    return text


def _can_be_told_again(value: Any) -> Any:
    try:
        to_json(value)
    except (PydanticSerializationError, ValueError, RecursionError):
        allowed = {"allowed": "valid Unicode, and not nested too deeply"}
        raise PydanticCustomError("must_be", "must be {allowed}", allowed) from None
    return value


def _few_biases(value: Any) -> Any:
    """No more than are allowed: pydantic counts the entries of an object only after it has looked at all."""
    if isinstance(value, dict) and len(value) > MAX_BIASES:
        raise ValueError
    return value


ECHOED = AfterValidator(_can_be_told_again)
"""For a field that the answer repeats; the last of its annotations."""

T = TypeVar("T")
# One complaint is all that is told; of a list with a million entries pydantic would write a million.
ListOf = Annotated[list[T], Field(fail_fast=True)]
Integer = Annotated[int, Field(strict=True)]
TokenIds = ListOf[Annotated[Integer, told(minimum=0)]]
StopTokenIds = ListOf[Annotated[int, Field(strict=True, ge=0, lt=2**31)]]
StopString = Annotated[
    str,
    Field(max_length=MAX_STOP_LENGTH),
    AfterValidator(_is_text),
    Field(json_schema_extra={"minLength": 1}),
]

Bits64 = Annotated[
    int | None,
    Field(strict=True, ge=-(2**63), lt=2**64),
    must_be(f"an integer of at most 64 bits, from {-(2**63)} to {2**64 - 1}"),
]
Count = Annotated[
    int | None,
    Field(strict=True, ge=-(2**31), lt=2**31),
    must_be("0 or -1 (off) or an integer below 2147483648"),
    told(minimum=-1),
]
Limit = Annotated[
    int | None, Field(strict=True, ge=1, lt=2**31), must_be("an integer of at least 1 and below 2147483648")
]
Natural = Annotated[
    int | None, Field(strict=True, ge=0, lt=2**31), must_be("an integer of at least 0 and below 2147483648")
]
AT_LEAST_ONE = "an integer of at least 1 and below 2147483648 (0 only with prompt_logprobs or echo)"
MaxTokens = Annotated[int | None, Field(strict=True, ge=0, lt=2**31), must_be(AT_LEAST_ONE)]
NumLogprobs = Annotated[
    int | None,
    Field(strict=True, ge=0, le=MAX_LOGPROBS),
    must_be(f"an integer between 0 and {MAX_LOGPROBS}"),
]
LogitBias = Annotated[
    Annotated[dict[int, Annotated[float, Field(strict=True)]], BeforeValidator(_few_biases)] | None,
    must_be(f"an object of at most {MAX_BIASES} token ids, each with a number"),
    told(
        maxProperties=MAX_BIASES,
        propertyNames={"pattern": "^(0|[1-9][0-9]{0,8})$"},
        additionalProperties={"type": "number", "minimum": -100, "maximum": 100},
    ),
]
Number = Annotated[float | None, Field(strict=True), must_be("a number")]
Share = Annotated[Number, told(minimum=0, maximum=1)]
Penalty = Annotated[Number, told(minimum=-2, maximum=2)]
Flag = Annotated[bool | None, Field(strict=True), must_be("true or false")]
String = Annotated[str | None, must_be("a string")]
Text = Annotated[
    Annotated[str, AfterValidator(_is_text)] | None, must_be("a string, all of it valid Unicode")
]
Stop = Annotated[
    StopString | Annotated[ListOf[StopString], Field(max_length=MAX_STOP_STRINGS)] | None,
    must_be(
        f"a string of at most {MAX_STOP_LENGTH} characters of valid Unicode, or a list of at most "
        f"{MAX_STOP_STRINGS} of them"
    ),
]
# vLLM's rule.  A salt is typed key material, so nothing here depends on the characters; clients do.
CacheSalt = Annotated[
    Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^@/\\\x00]*$")] | None,
    must_be("a string of 1 to 128 characters without @, /, \\ and NUL"),
]
Ignored = Any
"""Of a field that we know, and that has nothing to say to us."""
# It stands in logs and names the request on the way to the engine, so it has no more than plain characters.
RequestId = Annotated[
    Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,128}$")] | None,
    must_be("a string of 1 to 128 letters, digits and . _ : -"),
]
TruncatePromptTokens = Annotated[
    Literal[-1] | Annotated[int, Field(strict=True, ge=1, lt=2**31)] | None,
    must_be("-1 (as many as fit) or an integer of at least 1 and below 2147483648"),
]
NotYet = Annotated[Any, not_yet()]
NotYetTrue = Annotated[Any, not_yet(False)]
NotYetFalse = Annotated[Any, not_yet(True)]
