"""Text to tokens, many requests at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from headstart.cache.tokens import TOKEN_BYTES, run_of
from headstart.errors import RequestError
from headstart.lab.traces.draft import Draft
from headstart.lab.traces.source import Source
from headstart.lab.traces.texts import PromptReader

_BATCH = 1 << 20  # characters: enough that all cores have something to do, and soon forgotten


@dataclass(slots=True)
class Pending:
    """A request whose ``draft`` has a body and no symbols yet.

    ``answer`` is the text of what was generated, ``prompt`` that of the body, once it is known; None where
    the body has tokens instead.
    """

    draft: Draft
    answer: str | None = None
    prompt: str | None = None


def tokenised(pending: Iterable[Pending], source: Source) -> Iterator[Draft]:
    """The drafts with their symbols, in the same order.

    A body that makes no prompt is a fault of its line, which is told once for all requests of the line.
    """
    batch: list[Pending] = []
    num_characters = 0
    last_fault: int | None = None
    for one in pending:
        try:
            _find_prompt(one, source.reader)
        except RequestError as error:
            if one.draft.line != last_fault:
                source.skip(one.draft.line, str(error))
            last_fault = one.draft.line
            continue
        batch.append(one)
        num_characters += len(one.prompt or "") + len(one.answer or "") + one.draft.num_prompt_tokens
        if num_characters >= _BATCH:
            yield from _encoded(batch, source)
            batch, num_characters = [], 0
    yield from _encoded(batch, source)


def _find_prompt(one: Pending, reader: Callable[[], PromptReader]) -> None:
    body = one.draft.body or {}
    prompt = body.get("prompt")
    if "messages" not in body and isinstance(prompt, list):
        _set_prompt(one.draft, prompt)
    else:
        one.prompt = reader().body_text(body)


def _encoded(batch: list[Pending], source: Source) -> Iterator[Draft]:
    # A template writes the special tokens itself; in a plain prompt the tokenizer does.
    prompts = [one for one in batch if one.prompt is not None]
    for special in (False, True):
        group = [one for one in prompts if ("messages" not in (one.draft.body or {})) == special]
        texts = [one.prompt or "" for one in group]
        for one, tokens in zip(group, _tokens(texts, source.reader, special=special), strict=True):
            _set_prompt(one.draft, tokens)
    answered = [one for one in batch if one.answer is not None]
    answers = [one.answer or "" for one in answered]
    for one, tokens in zip(answered, _tokens(answers, source.reader, special=False), strict=True):
        one.draft.output = bytes(run_of(tokens))
        if one.draft.num_output_tokens is None:
            one.draft.num_output_tokens = len(tokens)
    for one in batch:
        if one.draft.num_prompt_tokens:
            yield one.draft
        else:
            source.skip(one.draft.line, "the prompt has no tokens")


def _tokens(texts: list[str], reader: Callable[[], PromptReader], *, special: bool) -> list[list[int]]:
    return reader().tokenizer.encode_all(texts, add_special_tokens=special) if texts else []


def _set_prompt(draft: Draft, tokens: Iterable[int]) -> None:
    draft.symbols = bytes(run_of(tokens))
    draft.num_prompt_tokens = len(draft.symbols) // TOKEN_BYTES
