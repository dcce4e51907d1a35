"""Several replicas that each compute, and keep, the same prefixes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headstart.lab.explain.finding import Candidate, FindingKind
from headstart.lab.explain.traffic.case import Case


def find_routing_dilution(case: Case) -> Iterator[Candidate]:
    """What one cache with the memory of all replicas would hit beyond them."""
    setting = case.setting
    if setting.replicas < 2:
        return
    capacity = None if setting.capacity_blocks is None else setting.capacity_blocks * setting.replicas
    at_once = None if setting.max_num_seqs is None else setting.max_num_seqs * setting.replicas
    one = case.gain(replace(setting, replicas=1, capacity_blocks=capacity, max_num_seqs=at_once))
    if not case.is_worth(one.num_tokens):
        return
    what = (
        f"{setting.replicas} replicas with {setting.routing} routing hit {one.num_tokens:,} tokens "
        f"({case.share(one.num_tokens)} of all) less than one cache of their whole memory: a prefix is "
        "computed and kept wherever a request with it is sent"
    )
    if setting.routing == "prefix":
        fix = (
            "prefix routing is on already; what is left is the price of balancing load. Fewer, larger "
            "replicas would win some of it back."
        )
        yield case.candidate(FindingKind.ROUTING_DILUTION, what, fix, one)
        return
    routed = replace(setting, routing="prefix")
    if not case.is_worth(case.gain(routed).num_tokens):
        fix = (
            "prefix routing would win nothing back here: what is left is that each replica computes a prefix "
            "for the first time. Fewer, larger replicas would win some of it back."
        )
        yield case.candidate(FindingKind.ROUTING_DILUTION, what, fix, one)
        return
    fix = (
        "send requests where their prefix is (--routing prefix here; your router's prefix-aware routing). "
        "One cache for all is the bound, which no routing exceeds by much."
    )
    yield case.candidate(FindingKind.ROUTING_DILUTION, what, fix, one, setting=routed)
