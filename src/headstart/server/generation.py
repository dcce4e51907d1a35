"""One prompt's way through the engine: tokens come in, texts go out, and the bill is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from headstart.engine.choices import best, choice_ids
from headstart.engine.request import FinishReason, RequestOutput, SamplingParams
from headstart.errors import EngineError
from headstart.server.logprobs import SpelledToken, Speller
from headstart.server.metrics import Metrics, RequestTimer
from headstart.server.protocol import PromptTokensDetails, Usage
from headstart.text import TextStream, Tokenizer


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that one step settled for one choice, whose last piece has a ``finish_reason``.

    ``tokens`` are those of the step, if log-probabilities were asked for; an end token that is no text is
    not among them.
    """

    index: int
    text: str
    finish_reason: FinishReason | None
    tokens: tuple[SpelledToken, ...] = ()


class Choice:
    """One text that continues a prompt, as it grows."""

    def __init__(self, index: int, tokenizer: Tokenizer, params: SamplingParams, timer: RequestTimer) -> None:
        self.index = index
        self.ended = False
        self._text = TextStream(tokenizer, params.stop)
        self._tokenizer = tokenizer
        self._speller = Speller(tokenizer) if params.logprobs is not None else None
        self._timer = timer
        self._logprob = 0.0  # the sum over its tokens, where the engine tells them

    @property
    def num_tokens(self) -> int:
        """Tokens generated so far, the one that ended the text included and none after it."""
        return self._text.num_tokens

    @property
    def mean_logprob(self) -> float:
        """Of its tokens, where the engine tells them."""
        return self._logprob / max(1, self.num_tokens)

    def take(self, output: RequestOutput) -> Piece:
        """What a step brought.  Raises `EngineError` when the engine failed on it."""
        if output.finish_reason == "error":
            raise EngineError(output.error or "the engine failed on this request")
        self._timer.tokens(len(output.token_ids))
        piece = self._settle(output)
        if piece.finish_reason:
            self.end(piece.finish_reason)
        return piece

    def end(self, reason: FinishReason) -> None:
        """Nothing more will come; harmless when repeated."""
        if not self.ended:
            self.ended = True
            self._timer.end(reason)

    def _settle(self, output: RequestOutput) -> Piece:
        before = self._text.num_tokens
        text = self._text.push(output.token_ids)
        used = self._text.num_tokens - before
        self._logprob += sum(told.logprob for told in output.logprobs[:used])
        shown = output.token_ids[:used]
        if shown and output.finish_reason == "stop" and self._tokenizer.is_special(shown[-1]):
            shown = shown[:-1]
        if output.finish_reason:
            text += self._text.finish()
        reason = "stop" if self._text.stopped else output.finish_reason
        tokens = () if self._speller is None else self._speller.spell(shown, output.logprobs)
        return Piece(self.index, text, reason, tokens)


class Generation:
    """The choices of one prompt; ``pieces`` may be run through once.

    ``index`` is the first choice's; the others follow.  Owns ``outputs``, the engine's side: it is closed,
    and so aborted there, when all texts have ended and when ``pieces`` is closed or cancelled before its
    end.  ``abort`` ends one choice there: one whose text a stop string has ended.
    """

    def __init__(
        self,
        outputs: AsyncGenerator[RequestOutput, None],
        abort: Callable[[str], None],
        tokenizer: Tokenizer,
        params: SamplingParams,
        metrics: Metrics,
        *,
        request_id: str,
        arrived: float,
        num_prompt_tokens: int,
        index: int,
    ) -> None:
        self.tells_logprobs = params.logprobs is not None
        self.num_prompt_tokens = num_prompt_tokens
        self.num_cached_tokens = 0
        self._outputs = outputs
        self._abort = abort
        self._count = params.n
        self._choices = {
            name: Choice(index + number, tokenizer, params, RequestTimer(metrics, arrived))
            for number, name in enumerate(choice_ids(request_id, params.num_choices))
        }

    @property
    def num_completion_tokens(self) -> int:
        """Tokens generated so far for all choices."""
        return sum(choice.num_tokens for choice in self._choices.values())

    @property
    def told(self) -> list[int]:
        """The indices of the choices that are told, in order: all of them, or the best, best first."""
        choices = list(self._choices.values())
        if len(choices) == self._count:
            return [choice.index for choice in choices]
        ranks = best([choice.mean_logprob for choice in choices], self._count)
        return [choices[number].index for number in ranks]

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """The texts as they are settled.  Raises `EngineError` when the engine fails."""
        ended: FinishReason = "abort"  # of choices that have not ended by themselves
        try:
            async with aclosing(self._outputs):
                async for output in self._outputs:
                    choice = self._choices[output.request_id]
                    if choice.ended:
                        continue
                    piece = choice.take(output)
                    self.num_cached_tokens = output.num_cached_tokens
                    if piece.finish_reason and output.finish_reason is None:
                        self._abort(output.request_id)
                    yield piece
                    if all(choice.ended for choice in self._choices.values()):
                        return
            raise EngineError("the engine ended this request without saying why")
        except Exception:
            ended = "error"
            raise
        finally:
            for choice in self._choices.values():
                choice.end(ended)


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
