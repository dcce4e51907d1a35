"""One text that continues a prompt, as it grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headstart.engine.request import FinishReason, PromptLogprob, RequestOutput, SamplingParams
from headstart.errors import EngineError
from headstart.server.logprobs import SpelledToken, Speller
from headstart.server.metrics import RequestTimer
from headstart.server.replies import EndReason
from headstart.text import TextStream, Tokenizer


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A part of a tool call: the first of each ``number`` has its ``id`` and ``name``.

    The ``arguments`` of all its parts together are the JSON text of one object, as the model wrote it: where
    it was cut short by ``max_tokens``, or wrote no JSON, they are not.
    """

    number: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that one step settled for one choice, whose last piece has a ``finish_reason``.

    ``tokens`` are those of the step, if log-probabilities were asked for; an end token that is no text is
    not among them, except after an echo.  ``calls`` are parts of tool calls, which are not in the text.
    ``token_ids`` are all tokens of the step, the one that ended the text included.
    """

    index: int
    text: str
    finish_reason: EndReason | None
    tokens: tuple[SpelledToken, ...] = ()
    calls: tuple[CallDelta, ...] = ()
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt's text, which comes before the answer; ``alone``: and whatever is generated is not shown."""

    text: str
    alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """How an answer is told: with its markers as text or without, and tokens by their text or their ids.

    ``visible`` ids are text in any case, because whoever reads it for tool calls must see them.
    """

    skip_special_tokens: bool = True
    tokens_as_ids: bool = False
    visible: frozenset[int] = frozenset()


PLAINLY = Telling()


class Choice:
    """Turns one request's outputs into pieces of text; ``index`` is the place in the reply."""

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer,
        params: SamplingParams,
        timer: RequestTimer,
        echo: Echo | None,
        telling: Telling = PLAINLY,
    ) -> None:
        self.index = index
        self.end_reason: FinishReason | None = None
        self._echo = echo
        self._echo_is_due = echo is not None
        self._text = TextStream(
            tokenizer,
            params.stop,
            skip_special_tokens=telling.skip_special_tokens,
            min_tokens=params.min_tokens,
            include_stop=params.include_stop_str_in_output,
            continued=echo is not None,
            visible=telling.visible,
        )
        self._tokenizer = tokenizer
        self._num_logprobs = params.logprobs
        self._speller = Speller(
            tokenizer, skip_special_tokens=telling.skip_special_tokens, as_ids=telling.tokens_as_ids
        )
        self._timer = timer
        self._logprob = 0.0  # the sum over its tokens, where the engine tells them

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.end_reason is not None

    @property
    def num_tokens(self) -> int:
        """Tokens generated so far, the one that ended the text included and none after it."""
        return self._text.num_tokens

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._text.stop_string

    @property
    def mean_logprob(self) -> float:
        """Of its tokens, where the engine tells them."""
        return self._logprob / max(1, self.num_tokens)

    def take(
        self, output: RequestOutput, prompt: Sequence[int], prompt_logprobs: Sequence[PromptLogprob]
    ) -> list[Piece]:
        """What a step brought; before the first text comes the echo of the prompt, if it is wanted.

        Raises `EngineError` when the engine failed on it.
        """
        if output.finish_reason == "error":
            raise EngineError(output.error or "the engine failed on this request")
        if self._echo is not None and self._echo.alone:
            output = replace(output, token_ids=(), finish_reason="length")
        self._timer.tokens(len(output.token_ids))
        pieces = []
        if self._echo is not None and self._echo_is_due and (output.token_ids or output.finish_reason):
            # Whatever there is to tell of the prompt has come by now.
            pieces.append(self._echoed(self._echo.text, prompt, prompt_logprobs))
            self._echo_is_due = False
        pieces.append(self._settle(output))
        if (reason := self._reason(output)) is not None:
            self.end(reason)
        return pieces

    def end(self, reason: FinishReason) -> None:
        """Nothing more will come; harmless when repeated."""
        if not self.ended:
            self.end_reason = reason
            self._timer.end(reason)

    def _echoed(self, text: str, prompt: Sequence[int], prompt_logprobs: Sequence[PromptLogprob]) -> Piece:
        tokens: tuple[SpelledToken, ...] = ()
        if self._num_logprobs is not None:
            tokens = self._speller.spell_prompt(prompt, prompt_logprobs, text, top=self._num_logprobs)
        return Piece(self.index, text, None, tokens)

    def _settle(self, output: RequestOutput) -> Piece:
        before = self._text.num_tokens
        text = self._text.push_output(output.token_ids, ended=output.finish_reason == "stop")
        used = self._text.num_tokens - before
        self._logprob += sum(told.logprob for told in output.logprobs[:used])
        shown = output.token_ids[:used]
        # Whoever has a prompt echoed evaluates, and counts on an entry for each token.
        all_shown = self._echo is not None or output.finish_reason != "stop"
        if shown and not all_shown and self._tokenizer.is_special(shown[-1]):
            shown = shown[:-1]
        if output.finish_reason:
            text += self._text.finish()
        tokens = () if self._num_logprobs is None else self._speller.spell(shown, output.logprobs)
        return Piece(self.index, text, self._reason(output), tokens, token_ids=tuple(output.token_ids[:used]))

    def _reason(self, output: RequestOutput) -> FinishReason | None:
        """Why it ends with this output, which has been settled."""
        return "stop" if self._text.stopped else output.finish_reason
