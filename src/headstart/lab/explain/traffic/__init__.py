"""What traffic and settings cost, told without any text of prompts: it works on hash ids as well."""

from __future__ import annotations

from headstart.lab.explain.finding import Candidate
from headstart.lab.explain.traffic.alignment import find_short_prefix
from headstart.lab.explain.traffic.case import Case, Replay
from headstart.lab.explain.traffic.contention import find_batch_contention
from headstart.lab.explain.traffic.namespaces import find_split_namespaces
from headstart.lab.explain.traffic.pressure import find_eviction_pressure
from headstart.lab.explain.traffic.routing import find_routing_dilution
from headstart.lab.explain.traffic.tail import find_cold_tail
from headstart.lab.replay.outcome import Outcome
from headstart.lab.replay.replay import replay as replay_in_turn
from headstart.lab.traces.trace import Trace

__all__ = ["find_traffic"]

_FINDERS = (
    find_short_prefix,
    find_eviction_pressure,
    find_batch_contention,
    find_split_namespaces,
    find_cold_tail,
    find_routing_dilution,
)


def find_traffic(
    trace: Trace,
    outcome: Outcome,
    *,
    replay: Replay = replay_in_turn,
    bytes_per_token: int | None = None,
    least_share: float = 0.005,
) -> list[Candidate]:
    """What costs hits in ``outcome``, a replay of ``trace``, the dearest first.

    Each finding's price is measured: the hits of a replay with one thing changed, less those of ``outcome``.
    So prices overlap, and do not add up.  ``replay`` makes these replays; one that knows ``max_num_seqs`` and
    ``replicas`` should be given where the outcome has them, else requests come one after the other to one
    cache.  ``bytes_per_token`` of KV lets fixes name memory.  What costs less than ``least_share`` of the
    prompt tokens is left out.

    Empty for a trace without content.  Raises what ``replay`` raises.
    """
    if not trace.has_content or not outcome.served:
        return []
    case = Case(trace, outcome, replay, bytes_per_token, least_share)
    found = [candidate for find in _FINDERS for candidate in find(case)]
    return sorted(found, key=lambda candidate: -candidate.finding.num_tokens_lost)
