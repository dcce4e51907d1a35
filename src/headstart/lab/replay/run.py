"""A whole replay, from what was asked for to the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headstart.errors import ConfigError
from headstart.lab.replay.bounds import bounds_of
from headstart.lab.replay.costs import PRESET, CostModel
from headstart.lab.replay.estimate import Estimate, estimate
from headstart.lab.replay.outcome import Outcome, ReplayReport, Setting
from headstart.lab.replay.points import Axes
from headstart.lab.replay.report import report_on
from headstart.lab.replay.sweep import sweep
from headstart.lab.traces.content import require_content
from headstart.lab.traces.trace import Trace

DEFAULT_BLOCK_SIZE = 16
"""Tokens: vLLM's and this engine's."""


def run(
    trace: Trace,
    axes: Axes,
    block_sizes: Sequence[int],
    *,
    costs: CostModel = PRESET,
    warmup: int = 0,
    kv_bytes_per_token: int | None = None,
    jobs: int = 1,
    on_estimate: Callable[[Estimate], None] | None = None,
    replayed: Callable[[Sequence[Setting]], Callable[[int], None]] | None = None,
) -> ReplayReport:
    """Replay the trace at every point of ``axes`` and ``block_sizes``.

    ``costs`` are for requests that overlap.  The first ``warmup`` requests do not count.  ``on_estimate`` is
    told what it will take, if that is long.
    ``replayed`` gets the points, and gives what is told how many requests are done, of all of them together.
    Raises ``TraceError`` for a trace without content, ``ConfigError`` for what does not go together.
    """
    require_content(trace)
    bounds = {size: bounds_of(trace, size, warmup=warmup) for size in block_sizes}
    points = axes.points(bounds, kv_bytes_per_token)
    if on_estimate is not None:
        expected = estimate(trace, points, jobs, costs)
        if expected is not None and expected.is_long:
            on_estimate(expected)
    progress = None if replayed is None else replayed(points)
    outcomes: list[Outcome] = sweep(trace, points, costs=costs, warmup=warmup, jobs=jobs, progress=progress)
    return report_on(trace, outcomes, bounds, costs=costs, warmup=warmup)


def block_sizes(text: str | None, trace: Trace) -> list[int]:
    """Block sizes in tokens, with commas between them; the trace's own, or 16, if nothing is given.

    Raises ``ConfigError`` for what is no number of at least 1.
    """
    if text is None:
        return [trace.tokens_per_symbol if trace.tokens_per_symbol > 1 else DEFAULT_BLOCK_SIZE]
    sizes = [_whole(part, "a block size is a number of tokens (16)") for part in text.split(",")]
    if 0 in sizes:
        raise ConfigError("a block size must be at least 1 token")
    return list(dict.fromkeys(sizes))


def warmup_requests(text: str, trace: Trace) -> int:
    """How many requests ``6000`` or ``50%`` of the trace are.

    Raises ``ConfigError`` if it is neither, and if none is left to count.
    """
    forms = "--warmup is a number of requests (6000) or a share of them (50%)"
    share = text.strip().removesuffix("%")
    if share == text.strip():
        count = _whole(text, forms)
    else:
        count = len(trace.requests) * _whole(share, forms) // 100
    if count >= len(trace.requests):
        raise ConfigError(
            f"--warmup {text} leaves none of the {len(trace.requests):,} requests of {trace.name} to count"
        )
    return count


def _whole(text: str, forms: str) -> int:
    digits = text.strip().replace("_", "")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
        raise ConfigError(f"{forms}, not {text!r}")
    return int(digits)
