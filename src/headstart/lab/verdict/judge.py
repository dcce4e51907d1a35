"""The verdict: what a replay hits, which variable stands in the way, and what it saves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from headstart.errors import ConfigError
from headstart.lab.replay.bounds import bounds_of
from headstart.lab.replay.capacity import Capacity
from headstart.lab.replay.chains import symbols_of
from headstart.lab.replay.costs import PRESET
from headstart.lab.replay.outcome import Rates, Setting
from headstart.lab.replay.replay import replay
from headstart.lab.traces.content import require_content
from headstart.lab.traces.paths import number_blocks
from headstart.lab.traces.trace import Trace
from headstart.lab.verdict.variables import SHARED_TOKENS, Variable, Word, variables_of

SECONDS_PER_TOKEN = PRESET.prefill_token
"""To compute one prompt token: that of the cost model, the embedded model on two CPU cores."""
_BLOCK_SIZE = 16
_STARTS = {Word.GOOD: "Yes", Word.MARGINAL: "Somewhat", Word.BAD: "Hardly"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """All that came of it.

    ``rates`` are of a replay with ``setting``; ``unbounded_token_hit_rate`` is that of a pool that holds
    everything.  ``first_token_s`` is the mean over requests of the seconds that computing the whole prompt
    takes, ``saved_first_token_s`` what hits save of it, ``total_saved_s`` that of all requests together.
    """

    trace_name: str
    setting: Setting
    variables: list[Variable]
    rates: Rates
    unbounded_token_hit_rate: float
    seconds_per_token: float
    notes: list[str]

    @property
    def word(self) -> Word:
        """That of the replayed token hit rate."""
        return SHARED_TOKENS.word(self.rates.token_hit_rate)

    @property
    def first_token_s(self) -> float:
        """Without a cache."""
        return self.rates.num_prompt_tokens * self.seconds_per_token / self.rates.num_requests

    @property
    def total_saved_s(self) -> float:
        """Of all requests."""
        return self.rates.num_hit_tokens * self.seconds_per_token

    @property
    def saved_first_token_s(self) -> float:
        """Of a request, in the mean."""
        return self.total_saved_s / self.rates.num_requests

    @property
    def sentence(self) -> str:
        """The verdict, and where it is not plainly good, what stands in the way."""
        capacity, size = self.setting.capacity_blocks, self.setting.block_size
        pool = (
            "a pool that holds everything" if capacity is None else f"{capacity:,} blocks of {size:,} tokens"
        )
        saved, whole = _seconds(self.saved_first_token_s), _seconds(self.first_token_s)
        start, index = _STARTS[self.word], self.setting.prefix_index
        text = (
            f"{start}: with {pool} and the {index} index prefix caching hits "
            f"{self.rates.token_hit_rate:.1%} of the prompt tokens, which saves {saved} of the {whole} that "
            "computing a prompt takes in the mean"
        )
        worst = self._worst()
        if worst is not None:
            text += f"; {worst.problem}"
        if SHARED_TOKENS.word(self.unbounded_token_hit_rate) is not self.word:
            text += f" (a pool that holds everything would hit {self.unbounded_token_hit_rate:.1%})"
        return f"{text}."

    def _worst(self) -> Variable | None:
        """What stands in the way of a better verdict: the first bad variable, or else marginal one."""
        if self.word is Word.GOOD:
            return None
        by_word = {word: [one for one in self.variables if one.word is word] for word in Word}
        return next(iter((*by_word[Word.BAD], *by_word[Word.MARGINAL])), None)

    def fields(self) -> dict[str, Any]:
        """Everything, in JSON's types.  What is beyond all numbers is null."""
        return {
            "trace_name": self.trace_name,
            "setting": asdict(self.setting),
            "variables": [one.fields() for one in self.variables],
            "verdict": self.word,
            "sentence": self.sentence,
            **asdict(self.rates),
            "unbounded_token_hit_rate": self.unbounded_token_hit_rate,
            "seconds_per_token": self.seconds_per_token,
            "first_token_s": self.first_token_s,
            "saved_first_token_s": self.saved_first_token_s,
            "total_saved_s": self.total_saved_s,
            "notes": self.notes,
        }


def judge(
    trace: Trace,
    *,
    block_size: int | None = None,
    capacity: Capacity | None = None,
    kv_bytes_per_token: int | None = None,
    prefix_index: str = "radix",
    seconds_per_token: float = SECONDS_PER_TOKEN,
    progress: Callable[[int], None] | None = None,
) -> Verdict:
    """The verdict on a trace.

    Without a ``capacity`` the pool holds everything, and two variables are unknown.  ``block_size`` None is
    16, or what a hash id of the trace stands for.  ``kv_bytes_per_token`` tells what a capacity in bytes is.
    ``progress`` is told how many requests are replayed; each is twice.
    Raises ``ConfigError`` for a trace without content or requests, and for a block size or a capacity that it
    cannot be replayed with.
    """
    if not trace.requests:
        raise ConfigError(f"{trace.name} has no requests")
    require_content(trace)
    size = block_size or max(_BLOCK_SIZE, trace.tokens_per_symbol)
    paths = number_blocks(trace, symbols_of(size, trace))
    unique = bounds_of(trace, size).num_unique_blocks
    blocks = None if capacity is None else capacity.blocks(size, unique, kv_bytes_per_token)
    setting = Setting(prefix_index=prefix_index, block_size=size, capacity_blocks=blocks)
    # The radix index shares to the symbol: in a pool that holds everything its hits are what prompts share.
    shared = [one.num_hit_tokens for one in replay(trace, Setting(block_size=size), progress=progress).served]
    outcome = replay(
        trace,
        setting,
        progress=None if progress is None else lambda done: progress(len(trace.requests) + done),
    )
    variables = variables_of(trace, setting, paths, shared, unique)
    most = next(one.value for one in variables if one.name == "shared_tokens") or 0.0
    return Verdict(
        trace_name=trace.name,
        setting=setting,
        variables=variables,
        rates=outcome.rates,
        unbounded_token_hit_rate=most,
        seconds_per_token=seconds_per_token,
        notes=_notes(trace, setting, seconds_per_token),
    )


def _notes(trace: Trace, setting: Setting, seconds_per_token: float) -> list[str]:
    notes = [*trace.notes, _DEFINITIONS]
    seconds = (
        f"Seconds are prompt tokens times {seconds_per_token:g} s (--seconds-per-token): no queue, no batch."
    )
    notes.append(f"{seconds} {_PRESET}" if seconds_per_token == SECONDS_PER_TOKEN else seconds)
    if trace.tokens_per_symbol > 1:
        size = trace.tokens_per_symbol
        notes.append(f"A hash id stands for {size:,} tokens: what prompts share within one is not seen.")
    if setting.capacity_blocks is None:
        notes.append("No capacity was given, so the pool holds everything.")
    if trace.skipped:
        number = "1 line" if len(trace.skipped) == 1 else f"{len(trace.skipped):,} lines"
        notes.append(f"{number} could not be read and left out; the first: {trace.skipped[0]}.")
    return notes


_DEFINITIONS = (
    "Hit rates are of tokens (hit tokens of all prompt tokens); the last token of a prompt never counts. "
    "The cache starts empty, and requests come one after the other."
)
_PRESET = "The preset is what the embedded model takes on two CPU cores: give your own machine's."


def _seconds(value: float) -> str:
    return f"{value:,.2f} s" if value >= 1 else f"{value * 1000:,.3g} ms"
