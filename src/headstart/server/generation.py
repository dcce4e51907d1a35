"""One prompt's way through the engine: tokens come in, texts go out, and the bill is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing

from headstart.engine.choices import best, choice_ids
from headstart.engine.request import FinishReason, PromptLogprob, RequestOutput, SamplingParams
from headstart.errors import EngineError
from headstart.server.choice import PLAINLY, Choice, Echo, Piece, Telling
from headstart.server.logprobs import for_prompt
from headstart.server.metrics import Metrics, RequestTimer
from headstart.server.replies import PromptTokens, PromptTokensDetails, Usage
from headstart.text import Tokenizer


class Generation:
    """The choices of one prompt; ``pieces`` may be run through once.

    ``prompt`` is as the engine got it.  ``index`` is the first choice's; the others follow.  Owns
    ``outputs``, the engine's side: it is closed, and so aborted there, when all texts have ended and when
    ``pieces`` is closed or cancelled before its end.  ``abort`` ends one choice there: one whose text a stop
    string has ended.
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
        prompt: Sequence[int],
        index: int,
        echo: Echo | None = None,
        telling: Telling = PLAINLY,
    ) -> None:
        self.tells_logprobs = params.logprobs is not None
        self.prompt = prompt
        self.request_id = request_id
        self.num_prompt_tokens = len(prompt)
        self.num_cached_tokens = 0
        self.first_token_at: float | None = None
        """When it came, in the seconds of ``metrics.clock``."""
        self.num_retained_tokens = 0
        self._outputs = outputs
        self._abort = abort
        self._tokenizer = tokenizer
        self._prompt_logprobs: list[PromptLogprob] = []  # with the first choice's outputs, before all texts
        self._clock = metrics.clock
        self._count = params.n

        def timer() -> RequestTimer:
            return RequestTimer(metrics, arrived, num_prompt_tokens=len(prompt))

        self._choices = {
            name: Choice(index + number, tokenizer, params, timer(), echo, telling)
            for number, name in enumerate(choice_ids(request_id, params.num_choices))
        }

    @property
    def num_completion_tokens(self) -> int:
        """Tokens generated so far for all choices."""
        return sum(choice.num_tokens for choice in self._choices.values())

    @property
    def finish_reasons(self) -> list[FinishReason]:
        """Why its choices ended, those that have."""
        return [choice.end_reason for choice in self._choices.values() if choice.end_reason is not None]

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the first choice, if one did."""
        return next(iter(self._choices.values())).stop_string

    @property
    def told(self) -> list[int]:
        """The indices of the choices that are told, in order: all of them, or the best, best first."""
        choices = list(self._choices.values())
        if len(choices) == self._count:
            return [choice.index for choice in choices]
        ranks = best([choice.mean_logprob for choice in choices], self._count)
        return [choices[number].index for number in ranks]

    def prompt_logprobs(self, top: int) -> PromptTokens:
        """What the model thought of the prompt, once all `pieces` are through."""
        return for_prompt(self._tokenizer, self.prompt, self._prompt_logprobs, top=top)

    def end(self, index: int) -> None:
        """Nothing more of this choice is wanted: it has stopped, and the engine need not go on."""
        for name, choice in self._choices.items():
            if choice.index == index and not choice.ended:
                choice.end("stop")
                self._abort(name)

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """The texts as they are settled.  Raises `EngineError` when the engine fails."""
        ended: FinishReason = "abort"  # of choices that have not ended by themselves
        try:
            async with aclosing(self._outputs):
                async for output in self._outputs:
                    choice = self._choices[output.request_id]
                    if choice.ended:
                        continue
                    self._prompt_logprobs.extend(output.prompt_logprobs)
                    pieces = choice.take(output, self.prompt, self._prompt_logprobs)
                    self.num_cached_tokens = output.num_cached_tokens
                    if self.first_token_at is None and (output.token_ids or output.finish_reason == "length"):
                        self.first_token_at = self._clock()
                    self.num_retained_tokens = output.num_retained_tokens
                    if choice.ended and output.finish_reason is None:
                        self._abort(output.request_id)
                    for piece in pieces:
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
