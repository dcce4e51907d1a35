"""What every contender of bench/cache_peers.py is put through, in a process and an interpreter of its own.

Standard library only: other projects' environments run it.  A contender's script makes a `Contender` and
calls `serve`, which reads one order a line from standard input and answers each with one line:

    {"case": "hit", "tokens": 1024}                    prepare   -> {}
    {"source": "list", "seed": 7, "passes": 3}         measure   -> {"seconds": [...], "hit_tokens": 1008}

All contenders draw the same tokens from the same seeds.
"""

from __future__ import annotations

import json
import random
import sys
from array import array
from collections.abc import Callable
from time import process_time
from typing import Any, Protocol

FRESH_TOKENS = 8
"""The tokens at the end of a prompt that are not cached where the rest is."""
VOCABULARY = range(50_000)


class Contender(Protocol):
    """A cache manager with a pool of its own, driven as its project drives it."""

    num_tokens: int
    """The pool's size, in tokens."""
    sources: dict[str, Callable[[list[int]], Any]]
    """Makes of a list of ints what the contender is handed; outside of the measured time."""

    def clear(self) -> None:
        """Forget everything cached."""
        ...

    def admit(self, name: str, tokens: Any) -> int:
        """From tokens to blocks and back: request, lookup, allocation, free.  Returns the tokens hit."""
        ...


class Course:
    """One kind of admission.

    ``hit``: all but the last `FRESH_TOKENS` are cached.  ``miss``: nothing is, and there is room.
    ``evict``: nothing is, and the pool is full of what was cached before.
    """

    def __init__(self, contender: Contender, case: str, num_tokens: int) -> None:
        self._contender = contender
        self._case = case
        self._num_tokens = num_tokens
        self._room = 0  # tokens that fit without evicting
        self._count = 0
        self._base = self._draw(random.Random(0), num_tokens)
        self._start_afresh()
        if case == "hit":
            self._admit(self._base)
        elif case == "evict":
            for seed in range(1 + contender.num_tokens // num_tokens):
                self._admit(self._draw(random.Random(f"fill {seed}"), num_tokens))

    def measure(self, source: str, seed: int, passes: int) -> dict[str, Any]:
        """Seconds of each of several admissions, and the fewest tokens that one of them hit."""
        make, draw = self._contender.sources[source], random.Random(seed)
        seconds, hits = [], []
        for _ in range(passes):
            if self._case == "hit":
                tokens = self._base[:-FRESH_TOKENS] + self._draw(draw, FRESH_TOKENS)
            else:
                tokens = self._draw(draw, self._num_tokens)
            if self._case == "miss" and self._room < 2 * self._num_tokens:
                self._start_afresh()
            prompt = make(tokens)
            start = process_time()
            hits.append(self._admit(prompt))
            seconds.append(process_time() - start)
        return {"seconds": seconds, "hit_tokens": min(hits)}

    def _admit(self, prompt: Any) -> int:
        self._count += 1
        self._room -= self._num_tokens
        return self._contender.admit(f"request-{self._count}", prompt)

    def _start_afresh(self) -> None:
        self._contender.clear()
        self._room = self._contender.num_tokens

    @staticmethod
    def _draw(chance: random.Random, count: int) -> list[int]:
        return chance.choices(VOCABULARY, k=count)


def as_buffer(typecode: str) -> Callable[[list[int]], Any]:
    """Makes an array of ``typecode`` of the tokens."""
    return lambda tokens: array(typecode, tokens)


def serve(contender: Contender) -> None:
    """Answer orders until standard input ends.  What a library prints goes to standard error."""
    answers, sys.stdout = sys.stdout, sys.stderr
    course: Course | None = None
    for line in sys.stdin:
        order = json.loads(line)
        answer: dict[str, Any] = {}
        if "case" in order:
            course = Course(contender, order["case"], order["tokens"])
        else:
            assert course is not None, "nothing was prepared"
            answer = course.measure(**order)
        print(json.dumps(answer), file=answers, flush=True)
