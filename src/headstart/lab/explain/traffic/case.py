"""What every finder of this package is given, and how what a change would win is counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from headstart.lab.explain.finding import Candidate, Evidence, Finding, FindingKind
from headstart.lab.replay.outcome import Outcome, Setting
from headstart.lab.traces.trace import Trace

Replay = Callable[[Trace, Setting], Outcome]
"""Replays a trace with a setting.  Requests keep their numbers; those of a warm-up may be served or not."""


@dataclass(frozen=True, slots=True)
class Gain:
    """What another replay hits beyond the outcome that is explained: per request, by its number, in tokens.

    Requests that hit less there count against those that hit more.
    """

    by_request: dict[int, int]

    @property
    def num_tokens(self) -> int:
        """In all; never below 0."""
        return max(0, sum(self.by_request.values()))

    @property
    def num_requests(self) -> int:
        """That hit more."""
        return sum(tokens > 0 for tokens in self.by_request.values())


@dataclass(frozen=True, slots=True)
class Case:
    """Traffic, what came of it, and the means to try something else.

    Findings that cost less than ``least_share`` of the prompt tokens are left out.  ``bytes_per_token`` of KV
    lets sentences name memory.
    """

    trace: Trace
    outcome: Outcome
    replay: Replay
    bytes_per_token: int | None = None
    least_share: float = 0.005
    num_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        tokens = sum(one.num_prompt_tokens for one in self.outcome.served)
        object.__setattr__(self, "num_tokens", tokens)

    @property
    def setting(self) -> Setting:
        """The outcome's."""
        return self.outcome.setting

    @property
    def block_symbols(self) -> int:
        """Symbols in a block."""
        return self.setting.block_size // self.trace.tokens_per_symbol

    def gain(self, setting: Setting | None = None, trace: Trace | None = None) -> Gain:
        """What a replay with another setting, trace or both would hit beyond the outcome."""
        return self.gain_of(self.replay(trace or self.trace, setting or self.setting))

    def gain_of(self, other: Outcome) -> Gain:
        """The same of a replay that was made already."""
        hits = {one.number: one.num_hit_tokens for one in other.served}
        return Gain({one.number: hits[one.number] - one.num_hit_tokens for one in self.outcome.served})

    def is_worth(self, num_tokens: int) -> bool:
        """Whether so many tokens are enough to speak of."""
        return num_tokens > 0 and num_tokens >= self.least_share * self.num_tokens

    def candidate(
        self,
        kind: FindingKind,
        what: str,
        fix: str,
        gain: Gain,
        *,
        rewritten: Callable[[], Trace] | None = None,
        setting: Setting | None = None,
    ) -> Candidate:
        """A finding that costs what ``gain`` says, with the two requests that show it best."""
        finding = Finding(
            kind,
            what,
            fix,
            num_tokens_lost=gain.num_tokens,
            share_lost=gain.num_tokens / self.num_tokens if self.num_tokens else 0.0,
            num_requests=gain.num_requests,
            evidence=self._evidence(gain),
        )
        return Candidate(finding, rewritten, setting)

    def _evidence(self, gain: Gain) -> tuple[Evidence, ...]:
        hits = {one.number: one.num_hit_tokens for one in self.outcome.served}
        worst = sorted(gain.by_request, key=lambda number: (-gain.by_request[number], number))[:2]
        places = [
            (self.trace.requests[number], hits[number]) for number in worst if gain.by_request[number] > 0
        ]
        return tuple(Evidence(request.file, request.line, position) for request, position in places)

    def share(self, num_tokens: int) -> str:
        """``num_tokens`` as a share of all prompt tokens, for a sentence."""
        return f"{num_tokens / self.num_tokens:.1%}" if self.num_tokens else "0.0%"

    def pool(self, num_blocks: int) -> str:
        """So many blocks, with tokens and where it can be told memory, for a sentence."""
        tokens = num_blocks * self.setting.block_size
        memory = (
            "" if self.bytes_per_token is None else f", {memory_words(tokens * self.bytes_per_token)} of KV"
        )
        return f"{num_blocks:,} blocks ({tokens:,} tokens{memory})"


def memory_words(num_bytes: float) -> str:
    """Bytes in GiB, or in MiB where they are few."""
    gib = num_bytes / 2**30
    return f"{gib:,.1f} GiB" if gib >= 1 else f"{num_bytes / 2**20:,.0f} MiB"
