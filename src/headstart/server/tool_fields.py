"""The fields of a chat that concern tools: what is offered, what may be called, and what was called."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field

from headstart.server.fields import Flag, ListOf, must_be

MAX_TOOLS = 1024
MAX_CALLS = 1024

# The name stands between a form's own markers, in JSON and in tags, so it has no more than plain characters.
ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")]


class Function(BaseModel):
    """A function by name, with the JSON schema of its arguments."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Flag = None


class FunctionTool(BaseModel):
    """The one kind of tool there is."""

    type: Literal["function"] = "function"
    function: Function


def _a(model: type[BaseModel]) -> AfterValidator:
    """A validator that leaves an object as it came, its order of keys included, if it is one of ``model``."""

    def check(value: Any) -> Any:
        model.model_validate(value)
        return value

    return AfterValidator(check)


_A_NAME = "with a name of 1 to 128 letters, digits and _ . : / -"
# As it came: the template writes it into the prompt, and what changes there is not found in the cache.
Tools = Annotated[
    Annotated[ListOf[Annotated[dict[str, Any], _a(FunctionTool)]], Field(max_length=MAX_TOOLS)] | None,
    must_be(
        f"a list of at most {MAX_TOOLS} objects like "
        f'{{"type": "function", "function": {{"name": "…", "parameters": {{…}}}}}}, {_A_NAME}'
    ),
]
Functions = Annotated[
    Annotated[ListOf[Annotated[dict[str, Any], _a(Function)]], Field(max_length=MAX_TOOLS)] | None,
    must_be(f'a list of at most {MAX_TOOLS} objects like {{"name": "…", "parameters": {{…}}}}, {_A_NAME}'),
]


class FunctionName(BaseModel):
    """A function's name, and nothing else of it."""

    name: str


class NamedTool(BaseModel):
    """A tool that is to be called."""

    type: Literal["function"]
    function: FunctionName


class AllowedTools(BaseModel):
    """Tools that may be called, out of all that the model is told of."""

    mode: Literal["auto", "required"]
    tools: Annotated[ListOf[NamedTool], Field(min_length=1, max_length=MAX_TOOLS)]


class AllowedToolsChoice(BaseModel):
    """OpenAI's way to leave tools out without changing the prompt."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


Choice = Annotated[
    Literal["none", "auto", "required"] | NamedTool | AllowedToolsChoice | None,
    must_be(
        '"none", "auto", "required", {"type": "function", "function": {"name": "…"}} or '
        '{"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": […]}}'
    ),
]
FunctionChoice = Annotated[
    Literal["none", "auto"] | FunctionName | None, must_be('"none", "auto" or {"name": "…"}')
]


class CalledFunction(BaseModel):
    """What was called, with JSON text."""

    name: str
    arguments: str


class Call(BaseModel):
    """A call that an assistant's message has."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


_A_CALL = '{"id": "…", "type": "function", "function": {"name": "…", "arguments": "{…}"}}'
Calls = Annotated[
    Annotated[ListOf[Call], Field(max_length=MAX_CALLS)] | None,
    must_be(f"a list of at most {MAX_CALLS} objects like {_A_CALL}; arguments are JSON as a string"),
]
OneCalled = Annotated[
    CalledFunction | None, must_be('an object like {"name": "…", "arguments": "{…}"}; arguments are a string')
]
