"""An explanation as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from headstart.lab.explain.finding import Explanation, Finding


def fields(explanation: Explanation) -> dict[str, Any]:
    """The explanation in JSON's types.  Rates and shares are from 0 to 1; counts of misses are tokens."""
    setting = explanation.setting
    return {
        "trace": explanation.trace_name,
        "policy": setting.policy,
        "prefix_index": setting.prefix_index,
        "block_size": setting.block_size,
        "capacity_blocks": setting.capacity_blocks,
        "max_num_seqs": setting.max_num_seqs,
        "replicas": setting.replicas,
        "routing": setting.routing if setting.replicas > 1 else None,
        **asdict(explanation.rates),
        "misses": {str(reason): count for reason, count in explanation.misses.items()},
        "findings": [_finding(finding) for finding in explanation.findings],
        "definitions": list(DEFINITIONS),
        "notes": explanation.notes,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {**asdict(finding), "kind": str(finding.kind), "is_fault": finding.kind.is_fault}


DEFINITIONS = (
    (
        "Token hit rate: hit tokens of all prompt tokens, as vLLM counts. A prompt's last token never "
        "counts as a hit. Full hits: the share of requests of which all was cached but what must be "
        "computed; any hit: that with a hit at all, which flatters."
    ),
    (
        "Tokens lost to what prompts say: how many fewer would be computed with a cache without bounds "
        "once the cause is gone. Causes are taken away from the front of the prompt to its end, and each is "
        "charged what that adds, so that no token is counted twice."
    ),
    (
        "Tokens lost to traffic and settings: what a replay with that one thing changed hits more. These "
        "overlap."
    ),
    (
        "With this fix: the token hit rate when the traffic, rewritten, is replayed with the same "
        "settings; a variable is moved to the end of its prompt, other spellings are written as they "
        "came first."
    ),
)
"""What the numbers mean."""
