"""The forms that models write tool calls in: every one headstart can read, and which a template asks for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from headstart.text.tool_calls.grammar import Spell
from headstart.text.tool_calls.hermes import Hermes
from headstart.text.tool_calls.llama import LlamaJson
from headstart.text.tool_calls.mistral import Mistral
from headstart.text.tool_calls.qwen_coder import QwenCoder
from headstart.text.tool_calls.reader import CallParser
from headstart.text.tool_calls.tools import Tool


class ToolFormat(Protocol):
    """One form of tool calls."""

    @property
    def name(self) -> str:
        """Its name, which is vLLM's."""
        ...

    @property
    def markers(self) -> frozenset[str]:
        """Words with a meaning in this form.  Where they are special tokens, a reader must see them."""
        ...

    @property
    def short_ids(self) -> bool:
        """Whether its templates take only ids of nine letters and digits."""
        ...

    def parser(
        self, tools: Sequence[Tool], hidden: Collection[str] = (), *, several: bool = True
    ) -> CallParser:
        """A reader of one answer; ``hidden`` markers are not shown where they turn out to be no call's.

        Unless ``several``, nothing is told that follows the first call.
        """
        ...

    def grammar(self, tools: Sequence[Tool], spell: Spell, *, several: bool) -> str:
        """What an answer must match that calls one of ``tools``, once or (``several``) more than once."""
        ...


# In the order in which a template's source is asked: several forms share their tags.
_FORMATS: Mapping[str, tuple[Callable[[str], bool], Callable[[str], ToolFormat]]] = {
    "qwen3_coder": (lambda source: "<function=" in source, lambda _: QwenCoder()),
    "hermes": (lambda source: "<tool_call>" in source, lambda _: Hermes()),
    "mistral": (lambda source: "[TOOL_CALLS]" in source, lambda source: Mistral(named="[ARGS]" in source)),
    "llama3_json": (
        lambda source: "<|python_tag|>" in source or '"parameters": ' in source,
        lambda _: LlamaJson(),
    ),
}

FORMAT_NAMES = tuple(sorted(_FORMATS))


def format_named(name: str, source: str = "") -> ToolFormat:
    """The form of that name, as the template ``source`` has it.  Raises ``KeyError`` for another name."""
    return _FORMATS[name][1](source)


def detect(source: str) -> ToolFormat | None:
    """The form that a template writes calls in; None where it is none of ours."""
    for asks_for, make in _FORMATS.values():
        if asks_for(source):
            return make(source)
    return None
