"""What is sent when: each scenario is a function that yields the rounds of one repeat.

A round is a set of requests sent together.  Repeat 0 of every scenario is its warm-up: the same
shapes, with prompts that share nothing with what is measured; it belongs to no figure.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from headstart.errors import ConfigError
from headstart.lab.load.prompts import PromptSource
from headstart.lab.load.timing import Timing

Kind = Literal["cold", "warm", "decode", "unshared"]
Send = Callable[[Sequence[int], int], Awaitable[Timing]]
"""Token ids and the most tokens to generate, as `Server.complete` takes them."""


class Scenario(StrEnum):
    """The load that can be put on a server."""

    FIRST_TOKEN = "first-token"  # noqa: S105 - a name, not a password
    DECODE = "decode"
    SHARED_PREFIX = "shared-prefix"
    UNSHARED = "unshared"

    @property
    def rounds_per_repeat(self) -> int:
        """How many rounds `repeat` yields."""
        return 1 if self in (Scenario.DECODE, Scenario.UNSHARED) else 2

    def num_rounds(self, load: Workload) -> int:
        """How many rounds `run` yields for ``load``, its warm-up among them."""
        return (load.repeats + 1) * self.rounds_per_repeat


@dataclass(frozen=True, slots=True)
class Workload:
    """How much is sent.

    Prompts of ``prompt_tokens``, of which a warm one shares the first ``shared_tokens`` with what
    went before; ``concurrency`` requests at once; ``repeats`` times after the warm-up.
    """

    prompt_tokens: int = 1211
    shared_tokens: int = 1200
    output_tokens: int = 1
    concurrency: int = 1
    repeats: int = 7

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "output_tokens", "concurrency", "repeats"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.shared_tokens < self.prompt_tokens:
            raise ConfigError(
                f"shared_tokens must be at least 0 and below prompt_tokens ({self.prompt_tokens}), "
                f"not {self.shared_tokens}"
            )

    def __str__(self) -> str:
        shared = f" ({self.shared_tokens:,} shared)" if self.shared_tokens else ""
        streams = f", {self.concurrency} at once" if self.concurrency > 1 else ""
        outputs, repeats = _counted(self.output_tokens, "output token"), _counted(self.repeats, "repeat")
        return f"{_counted(self.prompt_tokens, 'prompt token')}{shared}, {outputs}{streams}, {repeats}"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


@dataclass(frozen=True, slots=True)
class Round:
    """Requests that were sent together, and how each went."""

    kind: Kind
    repeat: int
    timings: tuple[Timing, ...]

    @property
    def is_warmup(self) -> bool:
        """Whether this round belongs to no figure."""
        return self.repeat == 0


async def run(scenario: Scenario, send: Send, prompts: PromptSource, load: Workload) -> AsyncIterator[Round]:
    """The rounds of ``scenario``, as they are measured."""
    for number in range(load.repeats + 1):
        async for each in repeat(scenario, send, prompts, load, number):
            yield each


def repeat(
    scenario: Scenario, send: Send, prompts: PromptSource, load: Workload, number: int
) -> AsyncIterator[Round]:
    """The rounds of one repeat of ``scenario``."""
    match scenario:
        case Scenario.FIRST_TOKEN:
            return first_token(send, prompts, load, number)
        case Scenario.DECODE:
            return decode(send, prompts, load, number)
        case Scenario.SHARED_PREFIX:
            return shared_prefix(send, prompts, load, number)
        case Scenario.UNSHARED:
            return unshared(send, prompts, load, number)


async def first_token(send: Send, prompts: PromptSource, load: Workload, number: int) -> AsyncIterator[Round]:
    """One request with a prefix never seen before, then one that differs in its tail alone."""
    prefix = prompts.prefix(load.shared_tokens)
    cold, warm = prompts.tails(2, load.prompt_tokens - load.shared_tokens)
    yield await _together(send, "cold", number, [prefix + cold], load.output_tokens)
    yield await _together(send, "warm", number, [prefix + warm], load.output_tokens)


async def decode(send: Send, prompts: PromptSource, load: Workload, number: int) -> AsyncIterator[Round]:
    """Streams whose prompts share nothing, or (warm) a prefix that as many others have just left behind.

    As many, because a server may keep a cache of its own for each stream (llama.cpp's slots).
    """
    if not load.shared_tokens:
        yield await _together(send, "decode", number, _unshared(prompts, load), load.output_tokens)
        return
    earlier, streams = _behind_one_prefix(prompts, load)
    await _together(send, "cold", number, earlier, 1)
    yield await _together(send, "warm", number, streams, load.output_tokens)


async def shared_prefix(
    send: Send, prompts: PromptSource, load: Workload, number: int
) -> AsyncIterator[Round]:
    """Streams that share a prefix never seen before, then as many new ones that share it too."""
    cold, warm = _behind_one_prefix(prompts, load)
    yield await _together(send, "cold", number, cold, load.output_tokens)
    yield await _together(send, "warm", number, warm, load.output_tokens)


async def unshared(send: Send, prompts: PromptSource, load: Workload, number: int) -> AsyncIterator[Round]:
    """Requests that share nothing, all at once: what caching cannot help with."""
    yield await _together(send, "unshared", number, _unshared(prompts, load), load.output_tokens)


def _unshared(prompts: PromptSource, load: Workload) -> list[list[int]]:
    return [prompts.prefix(load.prompt_tokens) for _ in range(load.concurrency)]


def _behind_one_prefix(prompts: PromptSource, load: Workload) -> tuple[list[list[int]], list[list[int]]]:
    """Two sets of prompts that all share a prefix which is new."""
    prefix = prompts.prefix(load.shared_tokens)
    tails = prompts.tails(2 * load.concurrency, load.prompt_tokens - load.shared_tokens)
    streams = [prefix + tail for tail in tails]
    return streams[: load.concurrency], streams[load.concurrency :]


async def _together(
    send: Send, kind: Kind, number: int, prompts: list[list[int]], output_tokens: int
) -> Round:
    """Send all at once; the first failure cancels the others and is raised alone."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_timed(send, prompt, output_tokens)) for prompt in prompts]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return Round(kind, number, tuple(task.result() for task in tasks))


async def _timed(send: Send, prompt: list[int], max_tokens: int) -> Timing:
    return await send(prompt, max_tokens)
