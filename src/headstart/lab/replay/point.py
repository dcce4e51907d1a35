"""One point of a sweep, by whatever replays its kind of setting."""

from __future__ import annotations

from collections.abc import Callable

from headstart.lab.replay.chains import Chains
from headstart.lab.replay.optimal import replay_optimal
from headstart.lab.replay.outcome import OPTIMAL, Outcome, Setting
from headstart.lab.replay.replay import replay
from headstart.lab.traces.trace import Trace


def replay_point(
    trace: Trace,
    setting: Setting,
    *,
    warmup: int = 0,
    progress: Callable[[int], None] | None = None,
    chains: Chains | None = None,
) -> Outcome:
    """What the trace would have hit with this setting.  As `replay`; raises what that raises."""
    if setting.policy == OPTIMAL:
        return replay_optimal(trace, setting, warmup=warmup, progress=progress, chains=chains)
    return replay(trace, setting, warmup=warmup, progress=progress, chains=chains)
