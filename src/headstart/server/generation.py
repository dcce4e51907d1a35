"""One prompt's way through the engine: tokens come in, text goes out, and the bill is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from headstart.engine.request import FinishReason, PromptLogprob, RequestOutput, SamplingParams
from headstart.errors import EngineError
from headstart.server.logprobs import SpelledToken, Speller, for_prompt
from headstart.server.metrics import RequestTimer
from headstart.server.replies import PromptTokens, PromptTokensDetails, Usage
from headstart.text import TextStream, Tokenizer


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that one step settled; the last piece of a generation has a ``finish_reason``.

    ``tokens`` are those of the step, if log-probabilities were asked for; an end token that is no text is
    not among them, except after an echo.
    """

    index: int
    text: str
    finish_reason: FinishReason | None
    tokens: tuple[SpelledToken, ...] = ()


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt's text, which comes before the answer; ``alone``: and whatever is generated is not shown."""

    text: str
    alone: bool = False


class Generation:
    """The answer to one prompt; ``pieces`` may be run through once.

    Owns ``outputs``, the engine's side: it is closed, and so aborted there, when the text ends at a stop
    string and when ``pieces`` is closed or cancelled before its end.
    """

    def __init__(
        self,
        outputs: AsyncGenerator[RequestOutput, None],
        tokenizer: Tokenizer,
        params: SamplingParams,
        timer: RequestTimer,
        *,
        prompt: Sequence[int],
        index: int,
        echo: Echo | None = None,
    ) -> None:
        self.index = index
        self.tells_logprobs = params.logprobs is not None
        self.num_prompt_tokens = len(prompt)
        self.num_cached_tokens = 0
        self._outputs = outputs
        self._prompt = prompt
        self._prompt_logprobs: list[PromptLogprob] = []
        self._num_logprobs = params.logprobs
        self._echo = echo
        self._text = TextStream(
            tokenizer, params.stop, min_tokens=params.min_tokens, continued=echo is not None
        )
        self._tokenizer = tokenizer
        self._speller = Speller(tokenizer)
        self._timer = timer

    @property
    def num_completion_tokens(self) -> int:
        """Tokens generated so far, the one that ended the text included and none after it."""
        return self._text.num_tokens

    def prompt_logprobs(self, top: int) -> PromptTokens:
        """What the model thought of the prompt, once all `pieces` are through."""
        return for_prompt(self._tokenizer, self._prompt, self._prompt_logprobs, top=top)

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """The text as it is settled.  Raises `EngineError` when the engine fails."""
        ended: FinishReason = "abort"  # unless one of the ends below is reached first
        echo = self._echo
        try:
            async with aclosing(self._outputs):
                async for output in self._outputs:
                    if output.finish_reason == "error":
                        raise EngineError(output.error or "the engine failed on this request")
                    if self._echo is not None and self._echo.alone:
                        output = replace(output, token_ids=(), finish_reason="length")
                    self._timer.tokens(len(output.token_ids))
                    self.num_cached_tokens = output.num_cached_tokens
                    self._prompt_logprobs.extend(output.prompt_logprobs)
                    if echo is not None and (output.token_ids or output.finish_reason):
                        # Whatever there is to tell of the prompt has come by now.
                        yield self._echoed(echo)
                        echo = None
                    piece = self._settle(output)
                    ended = piece.finish_reason or ended
                    yield piece
                    if piece.finish_reason:
                        return
            raise EngineError("the engine ended this request without saying why")
        except Exception:
            ended = "error"
            raise
        finally:
            self._timer.end(ended)

    def _echoed(self, echo: Echo) -> Piece:
        tokens: tuple[SpelledToken, ...] = ()
        if self._num_logprobs is not None:
            tokens = self._speller.spell_prompt(
                self._prompt, self._prompt_logprobs, echo.text, top=self._num_logprobs
            )
        return Piece(self.index, echo.text, None, tokens)

    def _settle(self, output: RequestOutput) -> Piece:
        before = self._text.num_tokens
        text = self._text.push(output.token_ids)
        shown = output.token_ids[: self._text.num_tokens - before]
        # Whoever has a prompt echoed evaluates, and counts on an entry for each token.
        all_shown = self._echo is not None or output.finish_reason != "stop"
        if shown and not all_shown and self._tokenizer.is_special(shown[-1]):
            shown = shown[:-1]
        if output.finish_reason:
            text += self._text.finish()
        reason = "stop" if self._text.stopped else output.finish_reason
        return Piece(self.index, text, reason, self._speller.spell(shown, output.logprobs))


async def merged(generations: Sequence[Generation]) -> AsyncGenerator[Piece, None]:
    """The pieces of all generations as they come; the first failure ends them all.

    Each generation runs in a task of its own; all have ended, and are unwound, when this one has.
    """
    arrived: asyncio.Queue[Piece | Exception | None] = asyncio.Queue(maxsize=len(generations))

    async def forward(generation: Generation) -> None:
        try:
            async with aclosing(generation.pieces()) as pieces:
                async for piece in pieces:
                    await arrived.put(piece)
        except Exception as error:  # noqa: BLE001 - raised again below, in the consumer's task
            await arrived.put(error)
        else:
            await arrived.put(None)

    tasks = [asyncio.create_task(forward(generation)) for generation in generations]
    running = len(tasks)
    try:
        while running:
            match await arrived.get():
                case Piece() as piece:
                    yield piece
                case None:
                    running -= 1
                case Exception() as error:
                    raise error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def usage_of(generations: Iterable[Generation]) -> Usage:
    """What the generations cost together, as of now."""
    generations = list(generations)
    prompt = sum(generation.num_prompt_tokens for generation in generations)
    completion = sum(generation.num_completion_tokens for generation in generations)
    cached = sum(generation.num_cached_tokens for generation in generations)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
    )
