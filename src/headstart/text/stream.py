"""Generated text as it may be shown: whole characters, and nothing of a stop string."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from headstart.errors import RequestError
from headstart.text.tokenizer import IncrementalDecoder, Tokenizer


class TextStream:
    """Text from token ids until a stop string is complete.

    Text ends before that string or, with ``include_stop``, behind it.

    What might be the beginning of a stop string is held back until it is decided.  The stop string that
    is completed first wins; of several completed by the same character, the longest.  So the result
    depends on the ids alone, not on how they were grouped.  Work is proportional to the text times the
    number of stop strings, however long they are.  A stop string that is complete with the first
    ``min_tokens`` ids is text like any other.

    ``continued`` is for text that follows other text: a tokenizer's rules for the beginning do not apply.
    Special tokens with a ``visible`` id are text.

    Raises ``RequestError`` for an empty stop string.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str],
        *,
        skip_special_tokens: bool = True,
        min_tokens: int = 0,
        include_stop: bool = False,
        continued: bool = False,
        visible: Collection[int] = (),
    ) -> None:
        if not all(stop):
            raise RequestError("stop strings must not be empty", param="stop", code="invalid_value")
        self._decoder = IncrementalDecoder(
            tokenizer, skip_special_tokens, continued=continued, visible=visible
        )
        self._min_tokens = min_tokens
        self._include_stop = include_stop
        self._stops = [_StopString(text) for text in sorted(stop, key=len, reverse=True)]
        self._held = ""
        self.stop_string: str | None = None
        """The stop string that was completed, if one was."""
        self.num_tokens = 0
        """Ids used so far; the one that completed a stop string is the last to count."""

    @property
    def stopped(self) -> bool:
        """Whether a stop string was completed; ids pushed from then on are dropped."""
        return self.stop_string is not None

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that these ids settle."""
        pieces = []
        for token_id in token_ids:
            if self.stopped:
                break
            self.num_tokens += 1
            pieces.append(self._settle(self._decoder.push((token_id,))))
        return "".join(pieces)

    def push_output(self, token_ids: Sequence[int], *, ended: bool) -> str:
        """As `push`, of an output that may have ``ended`` with a stop token: that is counted, but no text."""
        if not ended or self._include_stop:
            return self.push(token_ids)
        text = self.push(token_ids[:-1])
        self.num_tokens += not self.stopped
        return text

    def finish(self) -> str:
        """What was held back, now that no more ids come; nothing if a stop string was completed."""
        if self.stopped:
            return ""
        settled = self._settle(self._decoder.finish())
        if self.stopped:  # by the U+FFFD of a character that was never completed
            return settled
        held, self._held = self._held, ""
        return settled + held

    def _settle(self, new: str) -> str:
        for end, character in enumerate(new, start=1):
            for stop in self._stops:
                if stop.advance(character) and self.num_tokens > self._min_tokens:
                    self.stop_string = stop.text
                    text = self._held + new[:end]
                    return text if self._include_stop else text[: -len(stop.text)]
        text = self._held + new
        undecided = max((stop.num_matched for stop in self._stops), default=0)
        settled = text[: len(text) - undecided]
        self._held = text[len(settled) :]
        return settled


class _StopString:
    """How much of one stop string the text ends with (Knuth, Morris and Pratt's automaton)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.num_matched = 0
        # _borders[i]: length of the longest proper prefix of text[:i + 1] that is also its suffix.  They are
        # found as they are needed, since most stop strings are never more than begun.
        self._borders = [0]

    def advance(self, character: str) -> bool:
        """Whether ``character`` completes the string."""
        self._find_borders()
        self.num_matched = self._next(self.num_matched, character)
        if self.num_matched < len(self.text):
            return False
        self._find_borders()
        self.num_matched = self._borders[-1]  # what it may be the beginning of, if it does not count
        return True

    def _find_borders(self) -> None:
        while len(self._borders) < self.num_matched:
            self._borders.append(self._next(self._borders[-1], self.text[len(self._borders)]))

    def _next(self, matched: int, character: str) -> int:
        while matched and self.text[matched] != character:
            matched = self._borders[matched - 1]
        return matched + (self.text[matched] == character)
