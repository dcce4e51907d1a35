"""What a request's output must look like, and what the engine asks of whoever sees to it.

No grammar is read here: `engine.grammars` does that, with llguidance.
"""

from __future__ import annotations

import json as json_text
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from headstart.errors import RequestError, shown

MAX_SOURCE = 1 << 16
"""The most characters of a schema, a regular expression or a grammar, and of all choices together."""
MAX_ALTERNATIVES = 1024
"""The most entries of ``choice``."""

_KINDS = ("json", "json_object", "regex", "choice", "grammar")
_COLLECTIONS = (list, tuple)


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputs:
    r"""What the whole output must match: one of five kinds, under vLLM's names.

    ``json`` is a JSON schema, as JSON text or as a dict; ``json_object`` is any JSON object.  ``regex`` is a
    regular expression in Rust's syntax, without look-around, for the text from its first character to its
    last.  ``choice`` are texts, of which it must be one.  ``grammar`` is one in llguidance's form of Lark, or
    in GBNF (``root ::= …``).  In a Lark grammar a rule may be a schema (``%json {…}``), a special token has
    the name by which the tokenizer knows it (``<|im_end|>``) and any token its id (``<[2]>``); a token that
    is not special, though it may look so, is text like ``"<tool_call>"``.

    ``whitespace_pattern`` is a regular expression for the white space between the parts of JSON, which else
    may have at most 32 characters in one place, since small models like to fill their output with it;
    ``disable_any_whitespace`` allows none.  With ``lenient``, a schema's keywords that cannot be enforced
    are ignored, and else an error.

    ``origin`` is what the client calls all this, for errors.

    Raises ``RequestError`` for anything but one kind of the right type.  Whether that can be compiled, only
    `Grammars` knows.
    """

    json: str | None = None
    json_object: bool = False
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool = False
    lenient: bool = False
    origin: str = field(default="structured_outputs", compare=False)

    def __post_init__(self) -> None:
        self._settle_types()
        kinds = self._kinds()
        if len(kinds) != 1:
            got = " and ".join(kinds) or "none"
            raise self.error(f"must have exactly one of {', '.join(_KINDS)}, got {got}")
        is_json = self.json is not None or self.json_object
        for name in ("whitespace_pattern", "disable_any_whitespace", "lenient"):
            if getattr(self, name) and not is_json:
                raise self.error(f"has {name}, which is for json and json_object only")
        if self.whitespace_pattern is not None and self.disable_any_whitespace:
            raise self.error("has whitespace_pattern and disable_any_whitespace: leave one of them out")
        self._check_sizes()

    def _settle_types(self) -> None:
        """Every field as its type says, or refused; a schema may come as a dict, choices as a list."""
        schema: Any = self.json
        if isinstance(schema, Mapping | bool):
            try:
                schema = json_text.dumps(schema, ensure_ascii=False)
            except (TypeError, ValueError, RecursionError) as error:
                raise self.error(f"has a json that is not a JSON schema: {error}") from error
            object.__setattr__(self, "json", schema)
        for name in ("json", "regex", "grammar", "whitespace_pattern"):
            self._demand(name, isinstance(getattr(self, name), str | None), "a string")
        for name in ("json_object", "disable_any_whitespace", "lenient"):
            self._demand(name, isinstance(getattr(self, name), bool), "true or false")
        choice: Any = self.choice
        if choice is not None:
            texts = isinstance(choice, _COLLECTIONS) and all(isinstance(one, str) for one in choice)
            self._demand("choice", texts and len(choice) > 0, "a list of at least one string")
            object.__setattr__(self, "choice", tuple(choice))

    def _check_sizes(self) -> None:
        if self.choice is not None and len(self.choice) > MAX_ALTERNATIVES:
            raise self.error(f"has {len(self.choice):,} choices; at most {MAX_ALTERNATIVES:,} are allowed")
        sources = (self.json, self.regex, self.grammar, self.whitespace_pattern, *(self.choice or ()))
        size = sum(len(source) for source in sources if source is not None)
        if size > MAX_SOURCE:
            raise self.error(f"has {size:,} characters; at most {MAX_SOURCE:,} are allowed")
        for source in sources:
            if source is not None and any("\ud800" <= letter <= "\udfff" for letter in source):
                raise self.error("must be valid Unicode")

    def _kinds(self) -> list[str]:
        return [name for name in _KINDS if getattr(self, name) not in (None, False)]

    def _demand(self, name: str, condition: bool, allowed: str) -> None:
        if not condition:
            raise self.error(f"has a {name} that must be {allowed}, got {shown(getattr(self, name))}")

    def error(self, complaint: str) -> RequestError:
        """An error that says of these structured outputs, by the client's name for them, what is wrong."""
        return RequestError(f"{self.origin} {complaint}", param=self.origin, code="invalid_value")


class TokenMatcher(Protocol):
    """How far one request's output has come through its grammar.

    Belongs to that request alone: it is advanced by the tokens generated, and a step only reads it.
    """

    @property
    def error(self) -> str | None:
        """Why it serves no more; a sentence for the user, or None while all is well."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether the token that came last ended the output."""
        ...

    def copy(self) -> TokenMatcher:
        """One that has come as far, for another request."""
        ...

    def accept(self, token: int) -> None:
        """Take in a generated token.  Where that was not allowed, or fails, ``error`` says so."""
        ...

    def allowed(self, *, may_end: bool) -> bytes:
        """Which tokens may come next: bit i % 8 of byte i // 8 is token i's, up to a multiple of 32.

        Some token always may.  Where the output may not end, it ends all the same once nothing else is
        possible.  Raises ``EngineError`` where the grammar gives up, or can never be completed.
        """
        ...


class MatcherFactory(Protocol):
    """Who makes matchers."""

    def matcher(self, wanted: StructuredOutputs, stop_token_ids: Collection[int]) -> TokenMatcher:
        """A matcher at the beginning of an output that one of these ids may end.

        Raises ``RequestError`` for what cannot be compiled.
        """
        ...
