"""Calls of tools in a model's text: the forms that templates ask for, and how each is read and asked for."""

from headstart.text.tool_calls.formats import FORMAT_NAMES, ToolFormat, detect, format_named
from headstart.text.tool_calls.parts import CallPart, Parsed
from headstart.text.tool_calls.reader import CallParser
from headstart.text.tool_calls.telling import tell_of_tools
from headstart.text.tool_calls.tools import Tool

__all__ = [
    "FORMAT_NAMES",
    "CallParser",
    "CallPart",
    "Parsed",
    "Tool",
    "ToolFormat",
    "detect",
    "format_named",
    "tell_of_tools",
]
