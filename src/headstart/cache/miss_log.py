"""From what happens in the cache to a report for each request: the follower behind `KVCacheManager`.

What happens is queued, in order and unhashed, and dealt with later: when somebody asks for reports, after
the tokens of a step were sent.  So no lookup beyond a request's own namespace can be timed by its first
token, and a prompt is explained by what was cached when it was admitted, whatever has happened since.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from headstart.cache.keys import SHARED, CacheRequest, Namespace
from headstart.cache.misses import CONTEXT, PRINT, Findings, Memory, Prompt, Stored, num_common, space_of
from headstart.cache.reasons import MissReason, MissReport
from headstart.config import CacheConfig
from headstart.errors import CacheError

_LONGEST_QUEUE = 4096
_MOST_QUEUED_TOKENS = 1 << 18
"""When nobody asks, what is queued is dealt with at these bounds."""


@dataclass(slots=True, eq=False)
class _Outcome:
    """What became of a first admission.  ``answered``: its first token was sent, or will never be.

    Kept for as long as the request lives, which it must not name.
    """

    answered: bool = False
    withdrawn: bool = False
    report: MissReport | None = None


@dataclass(frozen=True, slots=True)
class _Admitted:
    """A first admission, to be explained.

    ``run`` is the prompt from 32 tokens before block ``start`` on: the first missing one, or the first at all
    where hit blocks are of the same step.
    """

    outcome: _Outcome
    request_id: str
    space: int
    run: bytes
    start: int
    num_tokens: int
    num_hit_tokens: int
    hit_block_ids: Sequence[int]
    in_flight: int
    now: float
    num_taken: int


@dataclass(frozen=True, slots=True)
class _Moved:
    block_id: int
    to: int


@dataclass(frozen=True, slots=True)
class _Evicted:
    """One after the other, for the same grant."""

    block_ids: list[int]
    now: float
    num_taken: int


@dataclass(frozen=True, slots=True)
class _Tail:
    """What a request that ended had in its partly filled block, behind block ``after``."""

    space: int
    tokens: bytes
    after: int | None


@dataclass(frozen=True, slots=True)
class _Cleared:
    pass


@dataclass(frozen=True, slots=True)
class _Live:
    """A request that is being computed: its tokens when it was admitted."""

    request: CacheRequest
    space: int
    num_tokens: int


_Event = list[Stored] | _Admitted | _Moved | _Evicted | _Tail | _Cleared


class MissLog:
    """Keeps `Listener`'s protocol, and is told of requests by the manager.

    Reports live as long as their requests; the rest is bounded, and keeps no request that holds nothing.
    """

    def __init__(self, config: CacheConfig) -> None:
        self._config = config
        self._memory = Memory(config)
        self._queue: deque[_Event] = deque()
        self._num_queued_tokens = 0
        self._num_taken = 0
        self._live: dict[str, _Live] = {}
        self._outcomes: WeakKeyDictionary[CacheRequest, _Outcome] = WeakKeyDictionary()
        self.now = 0.0
        self.num_prompt_tokens = 0
        self.num_hit_tokens = 0
        self.tokens = dict.fromkeys(MissReason, 0)
        """Of all requests explained so far, by reason."""

    # -- what the index tells --------------------------------------------------------------------

    def stored(self, request: CacheRequest, start: int, block_ids: Sequence[int], after: int | None) -> None:
        """See `Listener`, as for these four.  Copies the new text."""
        size = self._config.block_size
        first, stop = start * size, (start + len(block_ids)) * size
        run = request.text(first - first % PRINT, stop)
        new = Stored(self._space_of(request), start, run, tuple(block_ids), after)
        self._num_queued_tokens += stop - first
        last = self._queue[-1] if self._queue else None
        if isinstance(last, list):
            last.append(new)
            self._bound()
        else:
            self._append([new])

    def moved(self, block_id: int, to: int) -> None:
        """Queued, as the next two."""
        self._append(_Moved(block_id, to))

    def removed(self, block_id: int) -> None:
        """With the time, and how many blocks were taken before the grant that it made room for."""
        last = self._queue[-1] if self._queue else None
        if isinstance(last, _Evicted) and last.now == self.now and last.num_taken == self._num_taken:
            last.block_ids.append(block_id)
        else:
            self._append(_Evicted([block_id], self.now, self._num_taken))

    def cleared(self) -> None:
        """Whoever has everything forgotten has its ghosts forgotten, too."""
        self._append(_Cleared())

    # -- what the manager tells ------------------------------------------------------------------

    def admitted(
        self,
        request: CacheRequest,
        num_hit_tokens: int,
        hit_block_ids: Sequence[int],
        *,
        looked: bool,
        shares_pending: bool,
    ) -> None:
        """The request is about to take blocks.

        ``looked``: its hit, if any, is all that was to be had; ``shares_pending``: the open step fills a part
        of that.
        """
        space = _space(request.namespace)
        if not request.num_admissions:
            outcome = self._outcomes[request] = _Outcome()
            start = 0 if shares_pending else len(hit_block_ids)
            first = max(0, start * self._config.block_size - CONTEXT)
            event = _Admitted(
                outcome,
                request.request_id,
                space,
                request.text(first, request.num_tokens),
                start,
                request.num_tokens,
                num_hit_tokens,
                hit_block_ids,
                self._in_flight(request, space, num_hit_tokens),
                self.now,
                self._num_taken,
            )
            if looked and self._config.enable_prefix_caching:
                self._append(event)
            else:
                self._report(event, {MissReason.SKIPPED: event.num_tokens - num_hit_tokens})
        self._live[request.request_id] = _Live(request, space, request.num_tokens)

    def withdrawn(self, request: CacheRequest) -> None:
        """Its admission is taken back; if it was the first, it was none."""
        self._live.pop(request.request_id, None)
        outcome = None if request.num_admissions else self._outcomes.pop(request, None)
        if outcome is not None:
            outcome.withdrawn = outcome.answered = True
            if outcome.report is not None:
                self._count(outcome.report, -1)

    def ended(self, request: CacheRequest, num_computed: int, block_ids: Sequence[int]) -> None:
        """It gives its blocks back, with K and V of ``num_computed`` tokens in them."""
        space = self._space_of(request)
        self._live.pop(request.request_id, None)
        outcome = self._outcomes.get(request)
        if outcome is not None:
            outcome.answered = True
        whole, rest = divmod(num_computed, self._config.block_size)
        if rest and self._config.enable_prefix_caching and not request.skip_writing:
            tail = request.text(num_computed - rest, num_computed)
            self._append(_Tail(space, tail, block_ids[whole - 1] if whole else None))

    def took(self, count: int) -> None:
        """So many blocks were taken from the pool, for which those reported since were evicted."""
        self._num_taken += count

    # -- reports ---------------------------------------------------------------------------------

    def reports(self, requests: Iterable[CacheRequest]) -> list[MissReport]:
        """Of those that were counted, in their order; first tokens of them have been sent.

        Deals with what is queued up to their admissions, and on to the first whose token was not sent.
        """
        asked = [self._outcomes[request] for request in requests if request in self._outcomes]
        for outcome in asked:
            outcome.answered = True
        waiting = sum(outcome.report is None for outcome in asked)
        while self._queue:
            head = self._queue[0]
            if isinstance(head, _Admitted):
                if not (waiting or head.outcome.answered):
                    break
                waiting -= any(head.outcome is outcome for outcome in asked)
            self._take(self._queue.popleft())
        return [outcome.report for outcome in asked if outcome.report is not None]

    def check(self) -> None:
        """Prove law I12 of what was explained so far."""
        total = self.num_hit_tokens + sum(self.tokens.values())
        if total != self.num_prompt_tokens or min(self.tokens.values()) < 0:
            raise CacheError(
                f"law I12: {self.num_prompt_tokens} prompt tokens, {self.num_hit_tokens} hit, {self.tokens}"
            )

    def sizes(self) -> dict[str, tuple[int, int]]:
        """How large each table is, and may become."""
        queue = {
            "queue": (len(self._queue), _LONGEST_QUEUE),
            "queued tokens": (self._num_queued_tokens, _MOST_QUEUED_TOKENS),
        }
        return queue | self._memory.sizes()

    # -- the queue -------------------------------------------------------------------------------

    def _append(self, event: _Event) -> None:
        self._queue.append(event)
        self._bound()

    def _space_of(self, request: CacheRequest) -> int:
        """Hashed once, while it is being computed."""
        live = self._live.get(request.request_id)
        return live.space if live is not None and live.request is request else _space(request.namespace)

    def _bound(self) -> None:
        if len(self._queue) >= _LONGEST_QUEUE or self._num_queued_tokens >= _MOST_QUEUED_TOKENS:
            while self._queue:
                self._take(self._queue.popleft())

    def _take(self, event: _Event) -> None:
        match event:
            case list():
                self._memory.store(event)
                self._num_queued_tokens -= sum(len(new.block_ids) for new in event) * self._config.block_size
            case _Evicted(block_ids, now, num_taken):
                self._memory.evict(block_ids, now, num_taken)
            case _Admitted():
                if not event.outcome.withdrawn:
                    self._explain(event)
            case _Tail(space, tokens, after):
                self._memory.keep_tail(space, tokens, after)
            case _Moved(block_id, to):
                self._memory.move(block_id, to)
            case _Cleared():
                self._memory = Memory(self._config)

    # -- explaining ------------------------------------------------------------------------------

    def _explain(self, admission: _Admitted) -> None:
        num_tokens, hit = admission.num_tokens, admission.num_hit_tokens
        if num_tokens - hit == 1:
            self._report(admission, {MissReason.LAST_TOKEN: 1})
            return
        prompt = self._prompt(admission)
        found = self._memory.explain(prompt)
        place, last = hit, num_tokens - 1
        tokens = {MissReason.LAST_TOKEN: 1}
        for reason, stop in (
            (MissReason.UNALIGNED, found.unaligned),
            (MissReason.IN_FLIGHT, prompt.in_flight),
            (MissReason.EVICTED, found.evicted),
        ):
            stop = min(stop, last)
            if stop > place:
                tokens[reason] = stop - place
                place = stop
        own, place = place, max(place, min(found.isolated, last))
        hidden = sum([max(0, min(stop, place) - max(start, own)) for start, stop in found.diverged])
        if place > own:
            tokens[MissReason.ISOLATED] = place - own
        diverged = sum([max(0, min(stop, last) - max(start, place)) for start, stop in found.diverged])
        if diverged:
            tokens[MissReason.DIVERGED] = diverged
        if last - place > diverged:
            tokens[MissReason.COLD] = last - place - diverged
        self._report(admission, tokens, found, hidden)

    def _prompt(self, admission: _Admitted) -> Prompt:
        """From the last hit block that has a row; those behind it are of the step that admitted it."""
        block_ids = admission.hit_block_ids
        known = len(block_ids)
        while known > admission.start and not self._memory.knows(block_ids[known - 1]):
            known -= 1
        return Prompt(
            space=admission.space,
            run=admission.run,
            known=known,
            after=block_ids[known - 1] if known else None,
            num_hit_blocks=len(block_ids),
            num_hit_tokens=admission.num_hit_tokens,
            num_tokens=admission.num_tokens,
            in_flight=admission.in_flight,
        )

    def _in_flight(self, request: CacheRequest, space: int, hit: int) -> int:
        """The longest prefix of the prompt, beyond its hit, that a live request was admitted with.

        Looked for at the admission: it is in the request's own namespace.  Nobody waits for one that skips
        writing.
        """
        longest = 0
        if request.num_tokens - hit == 1:
            return longest
        following = request.text(hit, hit + 1)
        for other in self._live.values():
            stop = min(other.num_tokens, request.num_tokens)
            if other.space != space or stop <= hit or other.request.skip_writing:
                continue
            if other.request.text(hit, hit + 1) == following and other.request.begins_like(request, hit):
                equal = num_common(other.request.text(hit, stop), request.text(hit, stop))
                longest = max(longest, hit + equal)
        return longest

    def _report(
        self,
        admission: _Admitted,
        tokens: dict[MissReason, int],
        found: Findings | None = None,
        isolated_diverged: int = 0,
    ) -> None:
        evicted = found.evicted_at if found is not None and MissReason.EVICTED in tokens else None
        admission.outcome.report = report = MissReport(
            admission.request_id,
            admission.num_tokens,
            admission.num_hit_tokens,
            tokens,
            max(found.unaligned, admission.num_hit_tokens)
            if found is not None and (isolated_diverged or MissReason.DIVERGED in tokens)
            else None,
            admission.now - evicted[0] if evicted is not None else None,
            admission.num_taken - evicted[1] if evicted is not None else None,
            isolated_diverged,
        )
        self._count(report, 1)

    def _count(self, report: MissReport, sign: int) -> None:
        self.num_prompt_tokens += sign * report.num_prompt_tokens
        self.num_hit_tokens += sign * report.num_hit_tokens
        for reason, count in report.tokens.items():
            self.tokens[reason] += sign * count


_SHARED_SPACE = space_of(SHARED)


def _space(namespace: Namespace) -> int:
    """`space_of`, which is not remembered: a salt must not outlive what is cached under it."""
    return _SHARED_SPACE if namespace == SHARED else space_of(namespace)
