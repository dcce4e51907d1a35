"""What must be changed to get from one setting to another, in words."""

from __future__ import annotations

from dataclasses import replace

from headstart.lab.replay.outcome import OPTIMAL, Setting
from headstart.lab.replay.wording import count, policy_name


def difference(here: Setting, there: Setting) -> str | None:
    """What must be changed to get there; None where it is more than one thing, or nothing.

    Nobody can change to the optimum, which knows the future.
    """
    if there.policy == OPTIMAL or here == there:
        return None
    if there == replace(here, capacity_blocks=there.capacity_blocks):
        return capacity_change(here.capacity_blocks, there.capacity_blocks)
    if there == replace(here, block_size=there.block_size, capacity_blocks=there.capacity_blocks):
        return f"blocks of {count(there.block_size)} tokens" if _as_large(here, there) else None
    at_once, replicas = there.max_num_seqs, there.replicas
    for alike, words in (
        (replace(here, policy=there.policy), f"evicting by {policy_name(there.policy)}"),
        (replace(here, prefix_index=there.prefix_index), f"the {there.prefix_index} index"),
        (
            replace(here, max_num_seqs=at_once),
            "one request at a time" if at_once is None else f"{count(at_once)} requests at once",
        ),
        (replace(here, replicas=replicas), "one replica" if replicas == 1 else f"{count(replicas)} replicas"),
        (replace(here, routing=there.routing), f"routing by {there.routing}"),
    ):
        if there == alike:
            return words
    return None


def _as_large(one: Setting, other: Setting) -> bool:
    """Whether both hold equally many tokens: only then does a block size compare with another."""
    blocks, others = one.capacity_blocks, other.capacity_blocks
    if blocks is None or others is None:
        return blocks is others
    return blocks * one.block_size == others * other.block_size


def capacity_change(here: int | None, there: int | None) -> str | None:
    """From so many blocks to so many others; None if both are unlimited."""
    if here is None:
        return None if there is None else f"no more than {count(there)} blocks"
    if there is None:
        return "never evicting"
    times = there / here
    known = {
        2: "doubling the capacity",
        0.5: "half the capacity",
        0.25: "a quarter of the capacity",
        0.125: "an eighth of the capacity",
    }
    return known.get(times, f"{times:.3g} times the capacity") + f", to {count(there)} blocks"
