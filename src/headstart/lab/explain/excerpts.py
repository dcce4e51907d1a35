"""Words of prompts: what findings are told by, and shown with unless that is forbidden."""

from __future__ import annotations

from itertools import pairwise

from headstart.cache.tokens import TOKEN_BYTES, ints_of
from headstart.errors import RequestError
from headstart.lab.explain.finding import Evidence
from headstart.lab.traces.texts import PromptReader
from headstart.lab.traces.trace import TraceRequest

_CONTEXT = 12
_LONGEST = 160
_JUDGED = 64


class Excerpts:
    """Reads pieces of prompts.  Without a reader there is no text, with ``privacy`` none is shown."""

    def __init__(self, reader: PromptReader | None, *, privacy: bool) -> None:
        self._reader = reader
        self._privacy = privacy

    def text(self, run: bytes, start: int = 0, stop: int | None = None) -> str:
        """The text of some tokens of a run, to be judged and not to be shown."""
        if self._reader is None:
            return ""
        stop = len(run) // TOKEN_BYTES if stop is None else stop
        try:
            return self._reader.text(ints_of(run[max(0, start) * TOKEN_BYTES : stop * TOKEN_BYTES]))
        except RequestError:  # ids of another tokenizer
            return ""

    def has_markup(self, run: bytes, start: int, stop: int) -> bool:
        """Whether there is a special token, of a chat's roles say, among some tokens of a run."""
        if self._reader is None:
            return False
        tokens = ints_of(run[start * TOKEN_BYTES : stop * TOKEN_BYTES])
        return any(map(self._reader.tokenizer.is_special, tokens))

    def around(self, run: bytes, start: int, stop: int) -> tuple[str, str, str]:
        """The text of a span, and what stands before and behind it."""
        before = self.text(run, max(0, start - 2 * _CONTEXT), start)
        return (
            before,
            self.text(run, start, min(stop, start + _JUDGED)),
            self.text(run, stop, stop + _CONTEXT),
        )

    def evidence(self, request: TraceRequest, start: int, stop: int) -> Evidence:
        """A span as evidence, with a few words around it."""
        text = None
        if self._reader is not None and not self._privacy:
            before = self.text(request.symbols, max(0, start - _CONTEXT), start)
            after = self.text(request.symbols, stop, stop + _CONTEXT // 2)
            text = f"…{before}[{_shortened(self.text(request.symbols, start, stop))}]{after}…"
        return Evidence(request.file, request.line, start, text)

    def place(self, request: TraceRequest, position: int) -> str:
        """Where a token stands, in words: "of the prompt", or "of the prompt (in the system message)"."""
        role = self._role(request, position)
        return f"of the prompt (in the {role} message)" if role else "of the prompt"

    def _role(self, request: TraceRequest, position: int) -> str | None:
        """The role of the message that a token is in."""
        if self._reader is None or request.body is None or "messages" not in request.body:
            return None
        try:
            whole = self._reader.body_text(request.body)
        except RequestError:
            return None
        at = len(self._reader.text(ints_of(request.symbols[: position * TOKEN_BYTES])))
        cursor, starts = 0, []
        for message in request.body["messages"]:
            content = message.get("content")
            found = whole.find(content, cursor) if isinstance(content, str) and content else -1
            if found >= 0:
                starts.append((found, str(message.get("role"))))
                cursor = found + len(content)
        for (start, role), (end, _) in pairwise([*starts, (len(whole), "")]):
            if start <= at < end and role in _ROLES:
                return role
        return None


_ROLES = {"system", "developer", "user", "assistant", "tool"}


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"
