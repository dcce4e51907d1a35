"""The drafts of all files to one trace: one clock, one order, and who may share with whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from headstart.cache import Adapter, Namespace
from headstart.cache.keys import SHARED
from headstart.errors import ConfigError, TraceError
from headstart.lab.traces.draft import Part
from headstart.lab.traces.faults import Faults
from headstart.lab.traces.formats import RULES
from headstart.lab.traces.hash_ids import block_size_of, settle
from headstart.lab.traces.times import align
from headstart.lab.traces.trace import BadLine, Trace, TraceFormat, TraceRequest

_MOST_NAMES = 8  # that a note tells
_STRANGE = 0.02  # how far from the server's count of tokens another tokenizer's may be


def join(parts: Sequence[Part], faults: Faults, hash_block_size: int | None = None) -> Trace:
    """The trace of all files, with what is to be said of how they were read.

    Raises ``ConfigError`` for files of several formats and for a ``hash_block_size`` without hash ids,
    ``TraceError`` for a file without a single request.
    """
    found = _format_of(parts)
    rules = RULES[found]
    _require_requests(parts, faults)
    started_over = align(parts, rules.seconds)
    num_worlds, block_size = 1, 1
    if rules.hash_block_size is not None:
        block_size = hash_block_size or block_size_of(parts, rules.hash_block_size)
        num_worlds = settle(parts, started_over, block_size, faults)
        _require_requests(parts, faults)
    elif hash_block_size is not None:
        raise ConfigError(f"--hash-block-size is for hash ids, and {parts[0].file} is {found}")
    order = {part.file: number for number, part in enumerate(parts)}
    notes = [
        f"the clock of {part.file} starts over, so its requests come after all those before"
        for part, is_over in zip(parts, started_over, strict=True)
        if is_over
    ]
    if num_worlds > 1:
        notes.append(f"these are {num_worlds} traces whose hash ids have nothing to do with each other")
    return Trace(
        name=" + ".join(Path(part.file).name for part in parts),
        format=found,
        requests=_requests(parts),
        tokens_per_symbol=block_size,
        has_content=rules.has_content,
        skipped=sorted(faults.found, key=lambda bad: (order[bad.file], bad.line)),
        notes=[*notes, *_notes(parts)],
    )


def _format_of(parts: Sequence[Part]) -> TraceFormat:
    first = parts[0]
    for part in parts:
        if part.format is not first.format:
            raise ConfigError(
                f"{first.file} is {first.format} and {part.file} is {part.format}: traces that are read "
                "together have one format"
            )
    return first.format


def _require_requests(parts: Sequence[Part], faults: Faults) -> None:
    for part in parts:
        if not part.drafts:
            bad = min((bad for bad in faults.found if bad.file == part.file), key=_line, default=None)
            why = f"; line {bad.line}: {bad.why}" if bad else ""
            raise TraceError(f"no line of {part.file} can be read as {part.format}{why}")


def _line(bad: BadLine) -> int:
    return bad.line


def _requests(parts: Sequence[Part]) -> list[TraceRequest]:
    """By their arrival, the first at 0, if all have times; else as they stand in the files, without times.

    Of requests that came at once the one that stands first comes first.
    """
    drafts = [(part.file, draft) for part in parts for draft in part.drafts]
    times = [draft.time for _, draft in drafts if draft.time is not None]
    has_times = len(times) == len(drafts)
    if has_times:
        drafts.sort(key=lambda one: one[1].time or 0.0)
    begin = min(times, default=0.0)
    namespace = _namespaces(by_model=len(_models(parts)) > 1)
    return [
        TraceRequest(
            symbols=draft.symbols,
            num_prompt_tokens=draft.num_prompt_tokens,
            arrival_s=draft.time - begin if has_times and draft.time is not None else None,
            num_output_tokens=draft.num_output_tokens,
            namespace=namespace(draft.model, draft.salt),
            session=draft.session,
            output=draft.output,
            body=draft.body,
            line=draft.line,
            file=file,
        )
        for file, draft in drafts
    ]


def _models(parts: Sequence[Part]) -> list[str]:
    return list(dict.fromkeys(draft.model or "" for part in parts for draft in part.drafts))


def _namespaces(*, by_model: bool) -> Callable[[str | None, str | None], Namespace]:
    """The namespace of a model and a salt; equal ones are one object.

    What one model computed is of no use to another.  Names are all that a log tells of them, so they are
    adapters without a digest; a trace of a single model needs none.
    """

    @cache
    def namespace(model: str | None, salt: str | None) -> Namespace:
        adapter = Adapter(model, digest="") if by_model and model else None
        return Namespace(adapter, salt) if adapter or salt else SHARED

    return namespace


def _notes(parts: Sequence[Part]) -> Iterator[str]:
    drafts = [draft for part in parts for draft in part.drafts]
    for part in parts:
        if RULES[part.format].seconds is None and part.seconds != 1:
            yield f"the times of {part.file} are read in units of {part.seconds:g} s"
    num_without = sum(draft.time is None for draft in drafts)
    if 0 < num_without < len(drafts):
        yield (
            f"{num_without:,} of {len(drafts):,} requests have no time, so none is used: they come as they "
            "stand in the file"
        )
    models = _models(parts)
    if len(models) > 1:
        names = ", ".join(name or "one without a name" for name in models[:_MOST_NAMES])
        more = ", …" if len(models) > _MOST_NAMES else ""
        yield (
            f"{len(models)} models were asked ({names}{more}): they share nothing, and all prompts are "
            "tokenised by one tokenizer"
        )
    counted = [draft for draft in drafts if draft.num_counted_tokens is not None]
    theirs = sum(draft.num_counted_tokens or 0 for draft in counted)
    ours = sum(draft.num_prompt_tokens for draft in counted)
    if abs(ours - theirs) > _STRANGE * theirs:
        yield (
            f"the server counted {theirs:,} prompt tokens where this tokenizer finds {ours:,}: the figures "
            "are those of another tokenizer or template than the server's"
        )
