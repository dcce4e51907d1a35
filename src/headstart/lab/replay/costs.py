"""How long an engine's steps take, for replays in which requests overlap: a line with four constants."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isfinite

from headstart.engine.request import ScheduledRow, StepPlan
from headstart.errors import ConfigError


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds that a step takes: ``step``, and something for all that is computed in it.

    ``prefill_token`` for each prompt token, ``decode_row`` for each request that decodes, and
    ``attended_token`` for each pair of a computed token and a token before it, which is what long contexts
    cost.

    The constants that are preset are those of the embedded model on two cores of a server's CPU, from
    docs/benchmarks.md: a prompt of 1,211 tokens takes 506 ms longer than one of which 1,200 are cached; one
    stream decodes 32.7 tokens a second and 16 streams 332.  No figure there tells what contexts cost.

    Raises ``ConfigError`` for a constant that is no number of seconds.
    """

    step: float = 0.029
    prefill_token: float = 0.00042
    decode_row: float = 0.0012
    attended_token: float = 0.0

    def __post_init__(self) -> None:
        for name in _NAMES:
            seconds = getattr(self, name)
            if not (isfinite(seconds) and seconds >= 0):
                raise ConfigError(f"{name} must be a number of seconds of at least 0, not {seconds}")

    @classmethod
    def parse(cls, text: str) -> CostModel:
        """From ``name=seconds,…``; what is not named is as preset.

        Raises ``ConfigError`` that says what is allowed.
        """
        given: dict[str, float] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, _, number = part.partition("=")
            name = name.strip()
            if name not in _NAMES:
                raise ConfigError(f"a cost model's constants are {', '.join(_NAMES)}, not {name!r}")
            if name in given:
                raise ConfigError(f"the cost model's {name} is given twice")
            try:
                given[name] = float(number)
            except ValueError as error:
                raise ConfigError(f"{name} must be a number of seconds, not {number.strip()!r}") from error
        return cls(**given)

    def __str__(self) -> str:
        """As `parse` takes it."""
        return ",".join(f"{name}={getattr(self, name):g}" for name in _NAMES)

    def describe(self) -> list[str]:
        """Sentences for a report."""
        parts = [
            f"{_shown(self.prefill_token)} for each prompt token that it computes",
            f"{_shown(self.decode_row)} for each request that decodes",
        ]
        if self.attended_token:
            parts.append(f"{_shown(self.attended_token)} for each token that a computed token attends to")
        added = f"{', '.join(parts[:-1])} and {parts[-1]}"
        sentences = [
            f"Time is simulated: a step takes {_shown(self.step)}, and in addition {added} ({self})."
        ]
        if self == CostModel():
            sentences.append(
                "These constants are those of the embedded model on two cores of a server's CPU: "
                "give those of your own machine to see it."
            )
        return sentences

    # -- seconds ---------------------------------------------------------------------------------

    def step_seconds(self, plan: StepPlan) -> float:
        """How long the plan takes; an empty one takes no time."""
        if not plan.rows:
            return 0.0
        return self.step + sum(map(self._row_seconds, plan.rows))

    def _row_seconds(self, row: ScheduledRow) -> float:
        stop = row.start + len(row.token_ids)
        return self.decode_seconds(row.start) if row.is_decoding else self.prefill_seconds(row.start, stop)

    def prefill_seconds(self, start: int, stop: int) -> float:
        """What computing a prompt's tokens ``start`` to ``stop`` (exclusive) adds to the time."""
        pairs = (stop - start) * (start + stop - 1) / 2
        return (stop - start) * self.prefill_token + pairs * self.attended_token

    def decode_seconds(self, position: int) -> float:
        """What decoding the token at this position adds to a step."""
        return self.decode_row + position * self.attended_token


_NAMES = tuple(field.name for field in fields(CostModel))
PRESET = CostModel()
"""The embedded model on a small CPU machine."""


def _shown(seconds: float) -> str:
    milliseconds = seconds * 1000
    return (
        f"{milliseconds:.3g} ms" if milliseconds >= 0.01 or not seconds else f"{milliseconds * 1000:.3g} µs"
    )
