"""Chat templates, by trial: what a clock, a switch or one more turn does to what was rendered before."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import combinations
from typing import Any

import jinja2
from jinja2 import meta

from headstart.errors import RequestError
from headstart.lab.prompts.problem import Severity, Spot
from headstart.text import ChatTemplate
from headstart.text.sandbox import Sandbox

_SYSTEM = "You are the assistant of a library and answer in short sentences."
_FIRST, _ANSWER = "Where are the maps?", "On the second floor."
_THOUGHT = "The atlas room moved upstairs."
_ASKED = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": _FIRST}]
_ANSWERED = {"role": "assistant", "content": _ANSWER}
_NEXT = {"role": "user", "content": "And the globes?"}
_REASONED = {"role": "assistant", "content": f"<think>\n{_THOUGHT}\n</think>\n\n{_ANSWER}"}
_TOOL = {
    "type": "function",
    "function": {
        "name": "find_book",
        "description": "Finds a book.",
        "parameters": {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]},
    },
}
_DAYS = (datetime(2024, 1, 15, 9, 5, 7), datetime(2031, 11, 28, 21, 48, 33))
_NAMED = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", "unk_token": "<unk>"}
_SECONDS = 2.0  # of a thread's own time, for each of a few dozen short renderings
_SWITCH = re.compile(r"think|reason|effort")
_VALUES: tuple[Any, ...] = (False, True, "low", "high")


class ChatTemplateCheck:
    """A chat template's source, and what rendering it in different circumstances shows.

    Raises ``CorruptModelError`` if it is no template, and ``RequestError`` if it refuses any conversation.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._templates = [
            ChatTemplate(source, named=_NAMED, now=_always(day), seconds=_SECONDS) for day in _DAYS
        ]
        self._asked = _ASKED
        if self._render(_ASKED) is None:
            self._asked = _ASKED[1:]  # some models have no system role
            self._templates[0].render(self._asked)

    def spots(self) -> Iterator[Spot]:
        """All problems that the trials find."""
        yield from self._dates()
        yield from self._switches()
        yield from self._dropped_reasoning()
        yield from self._rewritten_turns()

    def _switch_names(self) -> list[str]:
        return sorted(filter(_SWITCH.search, _undeclared(self.source)))

    def _dates(self) -> Iterator[Spot]:
        rendered = (self._render(self._asked, day=day) for day in (0, 1))
        texts = [text for text in rendered if text is not None]
        if len(set(texts)) < len(_DAYS):
            return
        position = _common(texts)
        first = str(self._asked[0]["content"])
        where = "in front of" if position < texts[0].find(first) else "behind"
        yield Spot(
            "HS501",
            Severity.WARNING,
            (),
            self._place(r"strftime_now|\bnow\s*\("),
            f"the template writes the date or time {where} the first message: all behind it is new each "
            "time the date changes",
            "pass a fixed date in chat_template_kwargs if the template takes one, or take the line out with "
            "--chat-template and tell the date in the last user message",
            None,
            None,
            position,
        )

    def _switches(self) -> Iterator[Spot]:
        for name in self._switch_names():
            texts = [self._render(self._asked, **{name: value}) for value in _VALUES]
            known = [text for text in texts if text is not None]
            pairs = [_common(pair) for pair in combinations(dict.fromkeys(known), 2)]
            first_user = min((text.find(_FIRST) for text in known), default=0)
            if pairs and min(pairs) < first_user:
                yield Spot(
                    "HS502",
                    Severity.WARNING,
                    (),
                    self._place(rf"\b{re.escape(name)}\b"),
                    "a switch for thinking changes the prompt's head: requests with it on and off share "
                    "nothing behind it",
                    "keep the switch the same for all requests with one system prompt, or use a template "
                    "that switches in the generation prompt",
                    name,
                    None,
                    min(pairs),
                )

    def _dropped_reasoning(self) -> Iterator[Spot]:
        kept = self._render([*self._asked, _REASONED, _NEXT])
        if kept is not None and _THOUGHT not in kept:
            answered = self._render([*self._asked, _REASONED]) or ""
            yield self._dropped("reasoning of earlier turns is dropped", _common([kept, answered]))
            return
        switches = [{name: value} for name in self._switch_names() for value in (False, True)]
        for switch in ({}, *switches):
            opened = self._render(self._asked, **switch)
            after = self._render([*self._asked, _ANSWERED, _NEXT], **switch)
            if opened is None or after is None or after.startswith(opened.rstrip()):
                continue
            what = "what the generation prompt opens (an empty thought, blanks) is another in earlier turns"
            yield self._dropped(what, _common([opened, after]))
            return

    def _dropped(self, what: str, position: int) -> Spot:
        return Spot(
            "HS503",
            Severity.INFO,
            (),
            self._place(r"</think>|reasoning_content|add_generation_prompt"),
            f"{what}: the answer that the cache holds is not what the next turn's prompt has, so each turn "
            "computes the last answer again",
            "nothing, if the model was trained so; some templates have a switch to keep it "
            "(preserve_thinking, clear_thinking=false)",
            None,
            None,
            position,
        )

    def _rewritten_turns(self) -> Iterator[Spot]:
        for tools in (None, [_TOOL]):
            before = self._render(self._asked, tools=tools, add_generation_prompt=False)
            after = self._render([*self._asked, _ANSWERED, _NEXT], tools=tools)
            if before is None or after is None or after.startswith(before.rstrip()):
                continue
            position = _common([before, after])
            yield Spot(
                "HS504",
                Severity.WARNING,
                (),
                self._place(r"loop\.last|messages\s*\[\s*-1\s*\]|messages\s*\|\s*length|last_user|tools"),
                f"an earlier turn is rendered otherwise once the conversation goes on"
                f"{' (with tools)' if tools else ''}: each turn computes again from there",
                "render each message by itself, and tools with the system prompt",
                None,
                None,
                position,
            )
            return

    def _render(self, messages: Sequence[Mapping[str, Any]], *, day: int = 0, **variables: Any) -> str | None:
        """None where the template refuses."""
        try:
            return self._templates[day].render(messages, **variables)
        except RequestError:
            return None

    def _place(self, pattern: str) -> int:
        match = re.search(pattern, self.source)
        return match.start() if match is not None else 0


def _always(day: datetime) -> Callable[[], datetime]:
    return lambda: day


def is_chat_template(text: str) -> bool:
    """Whether it is Jinja that is given ``messages``."""
    return ("{%" in text or "{{" in text) and "messages" in _undeclared(text)


def _undeclared(text: str) -> set[str]:
    try:
        return meta.find_undeclared_variables(Sandbox(datetime.now).parse(text))
    except (jinja2.TemplateError, RecursionError):
        return set()


def _common(texts: Sequence[str]) -> int:
    first, second = (
        min(texts, key=str),
        max(texts, key=str),
    )  # all others lie between, also in what they share
    pairs = enumerate(zip(first, second, strict=False))
    return next((index for index, (ours, theirs) in pairs if ours != theirs), min(len(first), len(second)))
