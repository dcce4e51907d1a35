"""What needs to know what was in the prompts refuses traces that do not tell."""

from __future__ import annotations

from headstart.errors import TraceError
from headstart.lab.traces.trace import Trace


def require_content(trace: Trace) -> None:
    """Raises ``TraceError``, which says why, for a trace that tells lengths and times alone."""
    if not trace.has_content:
        raise TraceError(
            f"{trace.name} is of the {trace.format} format, which tells how long prompts were and not what "
            "was in them: two of one length may share everything or nothing, so no hit rate can be told "
            "from it; that takes prompts, token ids or hash ids"
        )
