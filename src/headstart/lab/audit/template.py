"""Does the server make the same tokens of the same messages, today and tomorrow?"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from itertools import takewhile

from headstart.lab.audit.line import Line, Word
from headstart.lab.audit.target import Target

_SYSTEM = {"role": "system", "content": "You are a careful assistant of a library."}
_USER = {"role": "user", "content": "Which shelf has the atlases?"}
_ANSWER = {"role": "assistant", "content": "The third one, on the left."}
_AGAIN = {"role": "user", "content": "And the dictionaries?"}


def _tool(name: str, what: str) -> dict[str, object]:
    properties = {"title": {"type": "string", "description": what}}
    schema = {"type": "object", "properties": properties, "required": ["title"]}
    return {"type": "function", "function": {"name": name, "description": what, "parameters": schema}}


_TOOLS = [_tool("find_book", "Find a book by its title."), _tool("lend_book", "Lend a book to a reader.")]


def check_template(target: Target, today: date) -> Iterator[Line]:
    """What can be learned of the chat template from `/tokenize`."""
    first = target.tokens([_SYSTEM, _USER], generation_prompt=True)
    if first is None:
        yield Line(
            "same messages, same tokens",
            Word.UNKNOWN,
            "the server has no /tokenize that takes messages",
            "read the chat template with: headstart lint",
        )
        return
    yield _repeats(target, first)
    yield _dates(target, first, today)
    yield _next_turn(target, first)
    yield _tools(target, first)


def _repeats(target: Target, first: Sequence[int]) -> Line:
    name = "same messages, same tokens"
    for _ in range(2):
        again = target.tokens([_SYSTEM, _USER], generation_prompt=True) or []
        if list(first) != again:
            place = num_common(first, again)
            return Line(
                name,
                Word.FAIL,
                f"two renderings of the same messages differ from token {place} of {len(first)} on",
                "take what changes (a time, a random id) out of the chat template, or to its end",
            )
    return Line(name, Word.OK, f"{len(first)} tokens, three times the same")


def _dates(target: Target, first: Sequence[int], today: date) -> Line:
    name = "no date in the template"
    text = target.text(first)
    if text is None:
        return Line(name, Word.UNKNOWN, "the server has no /detokenize")
    if (time := re.search(r"\b[0-2]?\d:[0-5]\d(:[0-5]\d)?\b", text)) is not None:
        return Line(
            name,
            Word.FAIL,
            f"the template writes the time ({time[0]!r}): no prompt hits behind it",
            "take it out of the template, or give the time in the last message",
        )
    for form in (
        "%Y-%m-%d",
        "%d %b %Y",
        "%d %B %Y",
        "%B %d, %Y",
        "%b %d, %Y",
        "%d/%m/%Y",
        "%m/%d/%Y",
        "%d.%m.%Y",
    ):
        written = today.strftime(form)
        if written in text:
            return Line(
                name,
                Word.WARN,
                f"the template writes today's date ({written!r}), {text.index(written)} characters into the "
                "prompt: at midnight everything behind it is cold",
                "fix it by chat_template_kwargs (date_string, for Llama's), or with a template of your own",
            )
    return Line(name, Word.OK, "neither today's date nor a time is in the rendered prompt")


def _next_turn(target: Target, first: Sequence[int]) -> Line:
    name = "the next turn begins with the last"
    longer = target.tokens([_SYSTEM, _USER, _ANSWER, _AGAIN], generation_prompt=True)
    if longer is None:
        return Line(name, Word.UNKNOWN, "the server renders no conversation of several turns")
    common = num_common(first, longer)
    history = target.tokens([_SYSTEM, _USER], generation_prompt=False) or []
    if common == len(first):
        return Line(name, Word.OK, f"all {common} tokens of the first turn are the second one's beginning")
    if common >= len(history) > 0:
        return Line(
            name,
            Word.WARN,
            f"only {common} of {len(first)} tokens: the opening of the answer is written otherwise in "
            "history, so "
            "each answer is computed again in the next turn",
            "expected of templates that drop reasoning from history; otherwise mend the template",
        )
    return Line(
        name,
        Word.FAIL,
        f"the second turn differs from token {common} of the first one's {len(first)} on: history is "
        "rewritten",
        "the template must not change earlier messages when later ones come",
    )


def _tools(target: Target, first: Sequence[int]) -> Line:
    name = "the order of tools"
    forth = target.tokens([_SYSTEM, _USER], generation_prompt=True, tools=_TOOLS)
    back = target.tokens([_SYSTEM, _USER], generation_prompt=True, tools=_TOOLS[::-1])
    if forth is None or back is None or forth == list(first):
        return Line(name, Word.UNKNOWN, "the server (or its template) renders no tools in /tokenize")
    if forth == back:
        return Line(name, Word.OK, "tools in another order give the same tokens")
    turned = json.loads(json.dumps(_TOOLS, sort_keys=True))
    keys = target.tokens([_SYSTEM, _USER], generation_prompt=True, tools=turned)
    also = (
        "" if keys == forth else "; with the keys of their schemas in another order, the prompt differs, too"
    )
    return Line(
        name,
        Word.WARN,
        f"with the tools in another order, {num_common(forth, back)} of {len(forth)} tokens stay a hit{also}",
        "send the same tools in the same order, and schemas made by one serialiser, in every request",
    )


def num_common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading tokens are equal."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def local_today() -> date:
    """By this machine's clock."""
    return datetime.now().astimezone().date()
