"""How a report writes figures and settings for people."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from headstart.cache.reasons import MissReason
from headstart.lab.replay.outcome import OPTIMAL, Setting

_THIN = "\N{NARROW NO-BREAK SPACE}"
_SPACE = "\N{NO-BREAK SPACE}"
_MINUS = "\N{MINUS SIGN}"

REASON_WORDS: dict[MissReason, str] = {
    MissReason.SKIPPED: "not looked up",
    MissReason.LAST_TOKEN: "end of prompt",
    MissReason.UNALIGNED: "lost to the block boundary",
    MissReason.IN_FLIGHT: "being computed",
    MissReason.EVICTED: "evicted",
    MissReason.ISOLATED: "in another namespace",
    MissReason.DIVERGED: "behind another beginning",
    MissReason.COLD: "cold",
}
"""Each reason in two or three words; docs/misses.md has whole sentences."""


def percent(share: float) -> str:
    """``0.188`` as "18.8 %"; what is more than nothing never reads as nothing, nor less than all as all."""
    if 0 < share < 0.0005:
        return f"<{_THIN}0.1{_THIN}%"
    if 0.9995 <= share < 1:
        return f">{_THIN}99.9{_THIN}%"
    return f"{100 * share:.1f}{_THIN}%"


def points(difference: float) -> str:
    """A difference of two rates, ``0.091`` as "+9.1 points"."""
    tenths = round(1000 * difference)
    sign = "+" if tenths > 0 else _MINUS if tenths < 0 else "±"
    return f"{sign}{abs(tenths) / 10:.1f}{_SPACE}points"


def count(number: float) -> str:
    """A number of things, with commas."""
    return f"{number:,.0f}"


def compact(number: float) -> str:
    """A number for an axis: 512, 8k, 1.5M.  Powers of two read as such (8,192 is 8k, as block counts are)."""
    for unit, letter in ((2**30, "G"), (2**20, "M"), (2**10, "k")):
        if number >= unit and number % (unit / 2) == 0:
            return f"{number / unit:g}{letter}"
    for unit, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= unit:
            return f"{number / unit:.3g}{letter}"
    return f"{number:g}"


def clock(seconds: float) -> str:
    """A time since the trace began: "0:07", "12:30", "3:05:00"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def policy_name(policy: str) -> str:
    """A policy by the name that people write."""
    if policy == OPTIMAL:
        return "optimum"
    return policy.upper() if len(policy) <= 4 and policy != "cost" else policy


def capacity(setting: Setting) -> str:
    """The capacity in blocks."""
    if setting.capacity_blocks is None:
        return "a cache that never evicts"
    return f"{count(setting.capacity_blocks)} blocks"


def series_of(setting: Setting) -> Setting:
    """The setting without its capacity: what one line of the capacity curve has in common."""
    return replace(setting, capacity_blocks=None)


class SettingNames:
    """Short names of the settings of one report: each says what differs between them, and no more."""

    def __init__(self, settings: Iterable[Setting]) -> None:
        chosen = list(settings)
        own = [one for one in chosen if one.policy != OPTIMAL] or chosen
        self._has_indexes = len({one.prefix_index for one in own}) > 1
        self._has_block_sizes = len({one.block_size for one in chosen}) > 1
        self._has_max_num_seqs = len({one.max_num_seqs for one in own}) > 1
        self._has_replicas = len({one.replicas for one in own}) > 1
        self._has_routings = len({one.routing for one in own if one.replicas > 1}) > 1

    def series(self, setting: Setting) -> str:
        """Of all but the capacity."""
        parts = [policy_name(setting.policy)]
        if setting.policy != OPTIMAL and self._has_indexes:
            parts.append(setting.prefix_index)
        if self._has_block_sizes:
            parts.append(f"blocks of {setting.block_size}")
        if self._has_max_num_seqs and setting.policy != OPTIMAL:
            at_once = setting.max_num_seqs
            parts.append("one at a time" if at_once is None else f"{at_once} at once")
        if self._has_replicas or self._has_routings:
            parts.append("1 replica" if setting.replicas == 1 else f"{setting.replicas} replicas")
            if setting.replicas > 1 and self._has_routings:
                parts.append(setting.routing)
        return ", ".join(parts)

    def full(self, setting: Setting) -> str:
        """Of the series and the capacity."""
        return f"{self.series(setting)}, {capacity(setting).removeprefix('a cache that ')}"
