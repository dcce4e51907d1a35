"""What needs to know what was in the prompts refuses traces that do not tell."""

from __future__ import annotations

from headstart.errors import ConfigError
from headstart.lab.traces.trace import Trace


def require_content(trace: Trace) -> None:
    """Raises ``ConfigError`` for a trace that tells lengths and times alone."""
    if not trace.has_content:
        raise ConfigError(
            f"{trace.name} says nothing of hits: a trace of the {trace.format} format tells how long prompts "
            "were and not what was in them, and two prompts of one length may share everything or nothing; "
            "hit rates need prompts, token ids or hash ids"
        )
