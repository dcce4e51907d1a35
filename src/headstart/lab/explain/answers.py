"""Answers that come back otherwise than they were generated: without their reasoning, or in other tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import median

from headstart.cache.tokens import TOKEN_BYTES
from headstart.lab.explain.cause import Cause
from headstart.lab.explain.edits import Edit, edited
from headstart.lab.explain.excerpts import Excerpts
from headstart.lab.explain.finding import Evidence, FindingKind
from headstart.lab.explain.reach import cached_run, reach
from headstart.lab.explain.sites import Pair
from headstart.lab.traces.trace import Trace

_TAG = 6
"""A tag has so many tokens, at most."""
_THINKING = ("<think>", "</think>", "<thinking>", "</thinking>", "<reasoning>", "</reasoning>")
_FIXES = {
    FindingKind.REASONING_DROPPED: "Keep the reasoning in the history until the task is done "
    "(preserve_thinking or clear_thinking=false of the chat template, if it has such a switch), or weigh "
    "it: dropping saves context and computes the rest of the history again.",
    FindingKind.RETOKENISED: "Send answers back as the token ids that were generated (prompt token ids), "
    "or keep answers of a form that tokenises one way: what is spelled in other tokens is another prefix.",
}


def is_dropped_reasoning(trace: Trace, pair: Pair, excerpts: Excerpts) -> bool:
    """Whether the earlier prompt has thoughts where the later one has none."""
    now, then = pair.difference, trace.requests[pair.other].symbols
    if now.other_stop - now.other_start <= now.stop - now.start:
        return False
    kept = excerpts.text(trace.requests[pair.number].symbols, now.start, now.stop)
    # The difference may begin or end in the middle of a tag.
    dropped = [
        excerpts.text(then, max(0, place - _TAG), place + _TAG) for place in (now.other_start, now.other_stop)
    ]
    return any(tag in text for tag in _THINKING for text in dropped) and not any(
        tag in kept for tag in _THINKING
    )


def find_dropped(trace: Trace, pairs: Sequence[Pair], excerpts: Excerpts) -> list[Cause]:
    """Reasoning that earlier prompts of a conversation had and later ones lack."""
    edits: dict[int, list[Edit]] = {}
    evidence: list[Evidence] = []
    for pair in pairs:
        there = pair.difference
        run = trace.requests[pair.other].symbols[
            there.other_start * TOKEN_BYTES : there.other_stop * TOKEN_BYTES
        ]
        edits.setdefault(pair.number, []).append(Edit(there.start, there.stop, run))
        if not evidence:
            earlier, later = trace.requests[pair.other], trace.requests[pair.number]
            evidence = [
                excerpts.evidence(earlier, there.other_start, there.other_stop),
                excerpts.evidence(later, there.start, there.stop),
            ]
    return [_cause(FindingKind.REASONING_DROPPED, edits, evidence)] if edits else []


def find_respelled(trace: Trace, excerpts: Excerpts) -> list[Cause]:
    """Recorded answers that the next turn has without their reasoning, or in other tokens."""
    found: dict[FindingKind, dict[int, list[Edit]]] = {kind: {} for kind in _FIXES}
    for number, (shared, earlier) in enumerate(reach(trace)):
        if earlier is None or trace.requests[earlier].output is None:
            continue
        edit = _restoring(trace, number, earlier, shared, excerpts)
        if edit is not None:
            found[edit[0]].setdefault(number, []).append(edit[1])
    causes = []
    for kind, edits in found.items():
        shown = [(trace.requests[number], own[0]) for number, own in edits.items()][:2]
        evidence = [excerpts.evidence(request, edit.start, edit.stop) for request, edit in shown]
        causes += [_cause(kind, edits, evidence)] if edits else []
    return causes


def _restoring(
    trace: Trace, number: int, earlier: int, shared: int, excerpts: Excerpts
) -> tuple[FindingKind, Edit] | None:
    """What would put the generated tokens into the later prompt; None if it has them, or says otherwise."""
    prompt, then = trace.requests[number].symbols, trace.requests[earlier]
    begin = then.num_symbols
    output = cached_run(then)[len(then.symbols) :]
    num_output = len(output) // TOKEN_BYTES
    # A difference in the answer's first tokens may have been merged with those in front of it.
    if num_output == 0 or not begin <= shared < begin + num_output:
        return None
    answer = excerpts.text(output)
    rest = excerpts.text(prompt, begin, begin + num_output * 2)
    thoughts, said = _without_thoughts(answer)
    said = said.strip()
    if not said:
        return None
    if thoughts and not any(tag in rest for tag in _THINKING) and rest.lstrip().startswith(said[:_TOLD]):
        kind, text = FindingKind.REASONING_DROPPED, said
    elif rest.startswith(answer.rstrip()):  # many clients strip what they send back
        kind, text = FindingKind.RETOKENISED, answer if rest.startswith(answer) else answer.rstrip()
    else:
        return None
    stop = _end_of(text, prompt, begin, rest, excerpts)
    return (kind, Edit(begin, stop, output)) if stop is not None else None


_TOLD = 48


def _without_thoughts(answer: str) -> tuple[bool, str]:
    for tag in _THINKING[1::2]:
        _, found, said = answer.rpartition(tag)
        if found:
            return True, said
    return False, answer


def _end_of(text: str, prompt: bytes, begin: int, rest: str, excerpts: Excerpts) -> int | None:
    """The token of the prompt behind which ``text`` has been said, by halving."""
    wanted = rest.find(text[:_TOLD]) + len(text)
    low, high = begin, min(len(prompt) // TOKEN_BYTES, begin + 2 * len(text) + 8)
    while low < high:
        middle = (low + high) // 2
        if len(excerpts.text(prompt, begin, middle)) >= wanted:
            high = middle
        else:
            low = middle + 1
    return low


def _cause(kind: FindingKind, edits: dict[int, list[Edit]], evidence: Sequence[Evidence]) -> Cause:
    positions = [own[0].start for own in edits.values()]
    lost = sum(len(edit.run) // TOKEN_BYTES for own in edits.values() for edit in own)
    if kind is FindingKind.REASONING_DROPPED:
        what = (
            f"In {len(edits):,} requests the history lacks reasoning that was cached with it, usually "
            f"from token {int(median(positions)):,} on: all behind it is another prefix."
        )
    else:
        what = (
            f"In {len(edits):,} requests an answer of {lost // len(edits):,} tokens comes back in other "
            f"tokens than were generated, usually at token {int(median(positions)):,}: the text is the "
            "same."
        )
    return Cause(
        kind=kind,
        what=what,
        fix=_FIXES[kind],
        position=median(positions),
        change=partial(edited, edits=edits),
        evidence=tuple(evidence),
    )
