"""From recorded traffic to an explanation: replay it, look for what costs hits, try each fix by replaying."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headstart.errors import ConfigError
from headstart.lab.explain.content import find_content
from headstart.lab.explain.finding import Candidate, Explanation, Finding
from headstart.lab.explain.traffic import find_traffic
from headstart.lab.replay.outcome import Outcome, Setting
from headstart.lab.replay.replay import replay
from headstart.lab.traces.texts import PromptReader
from headstart.lab.traces.trace import Trace


def explain(
    trace: Trace,
    setting: Setting,
    reader: PromptReader | None = None,
    *,
    privacy: bool = False,
    warmup: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> Explanation:
    """Why the trace hits what it hits with this setting, the dearest finding first, and last what nobody can mend.

    ``reader`` is the model whose tokens the trace has; without it nothing can be said of text.  With
    ``privacy`` no word of a prompt is in the explanation.  ``progress`` is told what is being done.
    Raises ``ConfigError`` for a trace that says nothing of hits, and for a setting that it cannot be replayed
    with.
    """
    if not trace.has_content:
        raise ConfigError(
            f"{trace.name} has lengths and times and no content: nothing tells which prompts begin alike, so its "
            "misses cannot be explained"
        )
    if not trace.requests[warmup:]:
        raise ConfigError(f"{trace.name} has {len(trace.requests):,} requests: none is left to be explained")
    progress("replaying")
    outcome = replay(trace, setting, warmup=warmup)
    progress("looking for causes")
    candidates = [
        *find_content(
            trace,
            outcome,
            reader,
            privacy=privacy,
            warmup=warmup,
            advance=lambda: progress("trying what could be otherwise"),
        ),
        *find_traffic(trace, outcome),
    ]
    findings = []
    for number, candidate in enumerate(candidates, 1):
        progress(f"trying fix {number} of {len(candidates)}")
        findings.append(_tried(candidate, trace, setting, warmup))
    return Explanation(
        trace_name=trace.name,
        setting=setting,
        rates=outcome.rates,
        misses=outcome.misses,
        findings=sorted(findings, key=lambda finding: (not finding.kind.is_fault, -finding.num_tokens_lost)),
        notes=_notes(trace, outcome, reader),
    )


def _tried(candidate: Candidate, trace: Trace, setting: Setting, warmup: int) -> Finding:
    """The finding with the hit rate after its fix, where that can be replayed."""
    if candidate.rewritten is None and candidate.setting is None:
        return candidate.finding
    rewritten = trace if candidate.rewritten is None else candidate.rewritten()
    after = replay(rewritten, candidate.setting or setting, warmup=warmup)
    return replace(candidate.finding, token_hit_rate_after=after.rates.token_hit_rate)


def _notes(trace: Trace, outcome: Outcome, reader: PromptReader | None) -> list[str]:
    """How the log was read, and what could not be judged."""
    notes = [f"{note[0].upper()}{note[1:]}." for note in trace.notes]
    if trace.skipped:
        notes.append(f"{len(trace.skipped):,} lines could not be read and are left out, such as {trace.skipped[0]}.")
    if trace.tokens_per_symbol > 1:
        notes.append(
            f"The log has hash ids of {trace.tokens_per_symbol} tokens and no text: variables, other orders, drift "
            "and dropped reasoning cannot be seen in it."
        )
    elif reader is None:
        notes.append("Without the tokenizer the log has no text: what varies is found, and not named.")
    elif all(request.body is None for request in trace.requests):
        notes.append(
            "The log has token ids and no request bodies: other orders of tools, examples and keys cannot be told "
            "from other text."
        )
    if trace.tokens_per_symbol == 1 and all(request.output is None for request in trace.requests):
        notes.append(
            "The log has no answers: whether they came back as they were generated (re-tokenised, without their "
            "reasoning) is seen only between prompts."
        )
    if outcome.refused:
        notes.append(f"{outcome.refused:,} requests never fit into this capacity, and hit nothing.")
    return notes
