"""From recorded traffic to an explanation: replay it, look for what costs hits, try each fix by replaying."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from headstart.cache.reasons import MissReason
from headstart.errors import TraceError
from headstart.lab.explain.content import find_content
from headstart.lab.explain.finding import Candidate, Explanation, Finding
from headstart.lab.explain.traffic import find_traffic
from headstart.lab.replay.outcome import Outcome, Setting
from headstart.lab.replay.point import replay_point
from headstart.lab.traces.texts import PromptReader
from headstart.lab.traces.trace import Trace

_UNTOLD = 0.05
"""From this share of diverged tokens on that no finding is about, it is said that there are some."""


def explain(
    trace: Trace,
    setting: Setting,
    reader: PromptReader | None = None,
    *,
    privacy: bool = False,
    warmup: int = 0,
    bytes_per_token: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Explanation:
    """Why the trace hits what it hits: findings, the dearest first, and last what is nobody's fault.

    ``reader`` is the model whose tokens the trace has; without it nothing can be said of text.  With
    ``privacy`` no word of a prompt is in the explanation.  The first ``warmup`` requests do not count.
    ``bytes_per_token`` of KV lets fixes name memory.  ``progress`` is told what is being done.
    Raises ``TraceError`` for a trace that says nothing of hits, and ``ConfigError`` for a setting that it
    cannot be replayed with.
    """
    if not trace.has_content:
        raise TraceError(
            f"{trace.name} has lengths and times and no content: nothing tells which prompts begin alike, "
            "so its misses cannot be explained"
        )
    progress("replaying")
    outcome = replay_point(trace, setting, warmup=warmup)
    progress("looking for causes")
    content = find_content(
        trace, outcome, reader, privacy=privacy, warmup=warmup, advance=lambda: progress("pricing causes")
    )
    progress("looking for causes in the traffic")
    traffic = find_traffic(
        trace, outcome, replay=partial(replay_point, warmup=warmup), bytes_per_token=bytes_per_token
    )
    findings = []
    candidates = [*content, *traffic]
    for number, candidate in enumerate(candidates, 1):
        progress(f"trying fix {number} of {len(candidates)}")
        findings.append(_tried(candidate, trace, setting, warmup))
    return Explanation(
        trace_name=trace.name,
        setting=setting,
        rates=outcome.rates,
        misses=outcome.misses,
        findings=sorted(findings, key=lambda finding: (not finding.kind.is_fault, -finding.num_tokens_lost)),
        notes=[*_how_read(trace, outcome, warmup), *_unseen(trace, reader), *_untold(outcome, content)],
    )


def _tried(candidate: Candidate, trace: Trace, setting: Setting, warmup: int) -> Finding:
    """The finding with the hit rate after its fix, where that can be replayed."""
    if candidate.rewritten is None and candidate.setting is None:
        return candidate.finding
    rewritten = trace if candidate.rewritten is None else candidate.rewritten()
    after = replay_point(rewritten, candidate.setting or setting, warmup=warmup)
    return replace(candidate.finding, token_hit_rate_after=after.rates.token_hit_rate)


def _how_read(trace: Trace, outcome: Outcome, warmup: int) -> list[str]:
    notes = [f"{note[0].upper()}{note[1:].rstrip('.')}." for note in trace.notes]
    if trace.skipped:
        first = trace.skipped[0]
        notes.append(
            f"{len(trace.skipped):,} lines could not be read and are left out; the first is line "
            f"{first.line} of {first.file}."
        )
    if warmup:
        notes.append(f"The first {warmup:,} requests fill the cache and do not count.")
    else:
        notes.append("All requests count, from an empty cache on: the cold start is in.")
    if outcome.refused:
        notes.append(f"{outcome.refused:,} requests never fit into this capacity, and hit nothing.")
    return notes


def _unseen(trace: Trace, reader: PromptReader | None) -> list[str]:
    """What such a log cannot tell."""
    if trace.tokens_per_symbol > 1:
        note = (
            f"The log has hash ids of {trace.tokens_per_symbol} tokens and no text: variables, other "
            "orders, drift and dropped reasoning cannot be seen in it."
        )
        return [note]
    notes = []
    if reader is None:
        notes.append("Without a tokenizer token ids have no text: what varies is found, and not named.")
    if all(request.body is None for request in trace.requests):
        notes.append(
            "The log has token ids and no request bodies: other orders of tools, examples and keys "
            "cannot be told from other text."
        )
    if all(request.output is None for request in trace.requests):
        notes.append(
            "The log has no answers: whether they came back as they were generated is seen only where "
            "two prompts have them."
        )
    return notes


def _untold(outcome: Outcome, content: list[Candidate]) -> list[str]:
    tokens = outcome.rates.num_prompt_tokens
    told = sum(candidate.finding.num_tokens_lost for candidate in content)
    untold = outcome.misses.get(MissReason.DIVERGED, 0) - told
    if untold < _UNTOLD * tokens:
        return []
    note = (
        f"{untold:,} more tokens ({untold / tokens:.0%}) are cached behind another beginning, and no "
        "single change brings them back: pieces such as documents or search results that come in ever "
        "other company. A prefix cache cannot share those; fewer pieces in front of them, or the most "
        "common ones first, help a little."
    )
    return [note]
