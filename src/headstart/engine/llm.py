"""`LLM`: the engine in your own process, for scripts and batches."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite
from statistics import fmean
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from headstart.cache import MissReport
from headstart.config import EngineConfig
from headstart.engine.build import build_engine
from headstart.engine.choices import as_ranked, best, choice_ids
from headstart.engine.request import (
    CacheTerms,
    FinishReason,
    PromptLogprob,
    RequestOutput,
    Retention,
    SamplingParams,
    TokenLogprob,
)
from headstart.errors import EngineError, RequestError, shown
from headstart.model.source import resolve
from headstart.text import ChatTemplate, TextStream, Tokenizer

T = TypeVar("T")
Prompt = str | Sequence[int] | Mapping[str, Any]
"""A text, token ids, or vLLM's ``{"prompt": text}`` and ``{"prompt_token_ids": ids}``."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What one prompt brought, or one of its choices.

    ``token_ids`` end with the token that ended the text: a stop token, or the one that completed a stop
    string; neither is in ``text`` unless ``include_stop_str_in_output``.  ``num_cached_tokens`` of the
    prompt's tokens came from the cache; the others were computed, and ``misses`` says why: one report for all
    choices of a prompt, None without ``explain_misses``.  ``logprobs``, if asked for, has an entry
    for each of ``token_ids``; ``prompt_logprobs`` one for each of ``prompt_token_ids``, None for the first.
    """

    prompt_token_ids: list[int]
    text: str
    token_ids: list[int]
    num_cached_tokens: int
    finish_reason: FinishReason
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[PromptLogprob | None] | None = None
    misses: MissReport | None = None


class LLM:
    """A model with its cache, to be called from Python.

    ``model`` is a built-in name, a Hugging Face directory or hub id, or a GGUF file; options are those of
    `EngineConfig.from_options` (``block_size=16``, ``num_blocks=…``, ``dtype="float32"`` …).  What one
    call computed, the next one finds.

    Raises ``ConfigError`` for an unknown option and ``ModelError`` for a model that cannot be served.
    """

    def __init__(self, model: str = "smollm2-135m", **options: Any) -> None:
        self._core, self.info = build_engine(EngineConfig.from_options(model=model, **options))
        directory = resolve(model).tokenizer_dir
        self.tokenizer = Tokenizer.from_directory(directory)
        self._template = ChatTemplate.from_directory(directory)
        self._ids = itertools.count()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        cache_salt: str | None = None,
        skip_reading_prefix_cache: bool = False,
        skip_writing_prefix_cache: bool = False,
        retain_seconds: float | None = None,
        priority: int | Sequence[int] = 0,
        progress: bool = True,
    ) -> list[Generation]:
        """``n`` generations for each prompt (a `Prompt`), in the order of the prompts.

        ``sampling_params`` and ``priority`` are for all prompts, or a list with one for each; a priority
        (smaller is sooner) needs an engine with ``scheduling_policy="priority"``.

        Prompts that skip reading hit nothing that others computed; of those that skip writing nothing is
        found later.  With ``retain_seconds`` prompts are kept for so long, as far as there is room; with
        ``max_tokens`` 0 they are computed and cached, and nothing is generated.

        All prompts are checked before any is computed.  ``progress`` shows a bar for a batch, on a
        terminal only.  Raises ``RequestError`` that names the prompt, ``EngineError`` if a step failed;
        then, and after Ctrl-C, nothing of the call is left in the engine but what it cached.
        """
        prompts = _as_list(prompts)
        params = _one_for_each(
            "sampling_params", sampling_params or SamplingParams(), prompts, SamplingParams
        )
        priorities = _one_for_each("priority", priority, prompts, int)
        terms = CacheTerms(
            salt=cache_salt,
            skip_reading=skip_reading_prefix_cache,
            skip_writing=skip_writing_prefix_cache,
            retention=_retention(retain_seconds),
        )
        asked = []
        for index, prompt in enumerate(prompts):
            with _about_prompt(index):
                request_id = f"llm-{next(self._ids)}"
                asked.append(_Asked(request_id, self._encode(prompt), self.tokenizer, params[index]))
        jobs = {name: job for one in asked for name, job in one.jobs.items()}
        reports = {name: one.reports for one in asked for name in one.jobs}
        try:
            for index, one in enumerate(asked):
                with _about_prompt(index), _undisturbed():
                    self._core.add_request(
                        one.request_id,
                        one.prompt_token_ids,
                        one.in_engine,
                        terms=terms,
                        priority=priorities[index],
                    )
            self._run(jobs, reports, progress=progress)
        finally:
            with _undisturbed():
                for request_id in jobs:  # after Ctrl-C or an error; otherwise all have ended
                    self._core.abort(request_id)
        return [job.result() for one in asked for job in one.told()]

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: SamplingParams | None = None,
        *,
        cache_salt: str | None = None,
    ) -> Generation:
        """The model's answer to a conversation (``[{"role": "user", "content": …}, …]``).

        Raises ``RequestError`` for ``n`` above 1: it is one answer.
        """
        if sampling_params is not None and sampling_params.n > 1:
            raise RequestError(f"chat gives one answer, n is {sampling_params.n}; use generate", param="n")
        if self._template is None:
            raise RequestError("this model has no chat template; use generate", param="messages")
        text = self._template.render(messages)
        token_ids = self.tokenizer.encode(text, add_special_tokens=False)
        return self.generate([token_ids], sampling_params, cache_salt=cache_salt, progress=False)[0]

    def reset_prefix_cache(self) -> bool:
        """Forget everything cached; False (and nothing changed) while blocks are in use."""
        return self._core.reset_prefix_cache()

    def _encode(self, prompt: Prompt) -> list[int]:
        given: Any = prompt
        match prompt:
            case {"prompt": str(text), **others} if not others:
                given = text
            case {"prompt_token_ids": ids, **others} if not others and not isinstance(ids, str):
                given = ids
        if isinstance(given, str):
            return self.tokenizer.encode(given)
        if isinstance(given, Iterable) and not isinstance(given, Mapping | bytes):
            return list(given)
        raise RequestError(
            'a prompt must be a text, a list of token ids, {"prompt": text} or {"prompt_token_ids": ids}, '
            f"got {shown(prompt)}",
            param="prompt",
            code="invalid_value",
        )

    def _run(self, jobs: dict[str, _Job], reports: dict[str, list[MissReport]], *, progress: bool) -> None:
        columns = (
            TextColumn("answers"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
        )
        console = Console(stderr=True)
        hidden = not progress or len(jobs) < 2 or not console.is_terminal
        with Progress(*columns, console=console, disable=hidden, transient=True) as bar:
            task = bar.add_task("", total=len(jobs), speed="")
            tokens = 0
            while self._core.has_work:
                with _undisturbed():
                    for output in self._core.step():
                        if output.error is not None:
                            raise EngineError(output.error)
                        job = jobs[output.request_id]
                        job.take(output)
                        if job.text.stopped and output.finish_reason is None:  # by a stop string
                            self._core.abort(output.request_id)
                        tokens += len(output.token_ids)
                        if job.finish_reason is not None:
                            elapsed = bar.tasks[task].elapsed or 0.0
                            speed = f"{tokens / elapsed:,.0f} tokens/s" if elapsed else ""
                            bar.update(task, advance=1, speed=speed)
                    for report in self._core.explain():
                        reports[report.request_id].append(report)


class _Asked:
    """One prompt on its way through `LLM.generate`, with the jobs of its choices by their ids."""

    def __init__(
        self, request_id: str, prompt_token_ids: list[int], tokenizer: Tokenizer, params: SamplingParams
    ) -> None:
        self.request_id = request_id
        self.prompt_token_ids = prompt_token_ids
        # The engine has no text.
        self.in_engine = as_ranked(replace(params.ending_at(tokenizer.eos_token_ids), stop=()))
        self._num_told = params.n
        told: list[PromptLogprob | None] | None = None
        if params.prompt_logprobs is not None:
            told = [None]  # grows by what the first choice is told, for all of them
        self.reports: list[MissReport] = []
        self.jobs = {
            name: _Job(prompt_token_ids, tokenizer, params, told, self.reports)
            for name in choice_ids(request_id, params.num_choices)
        }

    def told(self) -> list[_Job]:
        """The choices that are told: all of them, or the best, best first."""
        jobs = list(self.jobs.values())
        if len(jobs) == self._num_told:
            return jobs
        return [jobs[number] for number in best([job.mean_logprob for job in jobs], self._num_told)]


class _Job:
    """One choice of one prompt; ``prompt_logprobs`` and ``reports``, which `LLM` fills, are shared by all."""

    def __init__(
        self,
        prompt_token_ids: list[int],
        tokenizer: Tokenizer,
        params: SamplingParams,
        prompt_logprobs: list[PromptLogprob | None] | None = None,
        reports: Sequence[MissReport] = (),
    ) -> None:
        self._reports = reports
        self.text = TextStream(
            tokenizer,
            params.stop,
            min_tokens=params.min_tokens,
            include_stop=params.include_stop_str_in_output,
        )
        self._tells_logprobs = params.logprobs is not None
        self._logprobs: list[TokenLogprob] = []
        self._prompt_logprobs = prompt_logprobs
        self.finish_reason: FinishReason | None = None
        self._prompt_token_ids = prompt_token_ids
        self._pieces: list[str] = []
        self._token_ids: list[int] = []
        self._num_cached_tokens = 0

    def take(self, output: RequestOutput) -> None:
        """Add what a step brought."""
        token_ids, reason = output.token_ids, output.finish_reason
        self._token_ids.extend(token_ids)
        self._num_cached_tokens = output.num_cached_tokens
        self._logprobs.extend(output.logprobs)
        if self._prompt_logprobs is not None:
            self._prompt_logprobs.extend(output.prompt_logprobs)
        self._pieces.append(self.text.push_output(token_ids, ended=reason == "stop"))
        if reason is not None:
            self._pieces.append(self.text.finish())
        if self.text.stopped:
            reason = "stop"
            del self._token_ids[self.text.num_tokens :]
            del self._logprobs[self.text.num_tokens :]
        self.finish_reason = reason

    @property
    def mean_logprob(self) -> float:
        """Of the tokens so far, which the engine must have been asked for; 0 where none was wanted."""
        return fmean(token.logprob for token in self._logprobs) if self._logprobs else 0.0

    def result(self) -> Generation:
        """The whole generation; its reason is known once the engine has no work left."""
        assert self.finish_reason is not None
        return Generation(
            self._prompt_token_ids,
            "".join(self._pieces),
            self._token_ids,
            self._num_cached_tokens,
            self.finish_reason,
            self._logprobs if self._tells_logprobs else None,
            None if self._prompt_logprobs is None else list(self._prompt_logprobs),
            self._reports[0] if self._reports else None,
        )


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C waits until the block has ended: a step is a transaction.  A handler of the user's own stays."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    pressed: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _frame: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if pressed:
        raise KeyboardInterrupt


@contextmanager
def _about_prompt(index: int) -> Iterator[None]:
    """Let a ``RequestError`` name the prompt."""
    try:
        yield
    except RequestError as error:
        raise RequestError(f"prompt {index}: {error}", param=error.param, code=error.code) from error


def _retention(seconds: Any) -> Retention | None:
    if seconds is None:
        return None
    if not (isinstance(seconds, int | float) and isfinite(seconds) and seconds > 0):
        raise RequestError(
            f"retain_seconds must be a number above 0 or None, got {shown(seconds)}",
            param="retain_seconds",
            code="invalid_value",
        )
    return Retention(float(seconds))


def _as_list(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Iterable):
        return [prompts]  # `LLM._encode` says what is wrong with it
    items: list[Any] = list(prompts)
    one_prompt = bool(items) and all(isinstance(item, int) for item in items)
    return [items] if one_prompt else items


def _one_for_each(name: str, given: T | Sequence[T], prompts: Sequence[Prompt], kind: type[T]) -> list[T]:
    """``given`` as a list with one for each prompt."""
    each = [given] * len(prompts) if isinstance(given, kind) else given
    if not isinstance(each, list | tuple) or not all(isinstance(one, kind) for one in each):
        raise RequestError(
            f"{name} must be of type {kind.__name__}, or a list with one for each prompt, got {shown(given)}",
            param=name,
            code="invalid_value",
        )
    if len(each) != len(prompts):
        raise RequestError(
            f"{name} must have one entry for each of the {len(prompts)} prompts, got {len(each)}",
            param=name,
            code="invalid_value",
        )
    return list(each)
