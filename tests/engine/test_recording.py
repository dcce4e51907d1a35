from __future__ import annotations

import gc
import inspect
from array import array
from hashlib import sha256

import msgspec
import pytest

from headstart.cache import (
    Adapter,
    CacheConfig,
    CacheRequest,
    KVCacheManager,
    MediaSpan,
    Namespace,
    PromptEmbeds,
)
from headstart.engine.decisions import (
    Allocate,
    BeginStep,
    Commit,
    Fork,
    Found,
    Free,
    Gone,
    Granted,
    Lookup,
    PinCall,
    Pinned,
    Reset,
    RetainCall,
    Rollback,
    Seen,
    State,
    Tokens,
    Unpin,
)
from headstart.engine.recording import RecordingManager, steps_between_digests
from headstart.errors import CacheError
from tests.recorded import Tape


@pytest.fixture
def tape() -> Tape:
    return Tape()


@pytest.fixture
def manager(tape: Tape) -> RecordingManager:
    return RecordingManager(CacheConfig(10, 4), tape)


def admit(manager: KVCacheManager, request: CacheRequest) -> None:
    hit = manager.get_computed_blocks(request)
    assert manager.allocate_slots(request, request.num_tokens - hit.num_tokens, hit) is not None


def test_a_life_is_recorded_with_each_token_once(manager: RecordingManager, tape: Tape) -> None:
    request = CacheRequest("a", [1, 2, 3, 4, 5])
    manager.begin_step(1.5)
    admit(manager, request)
    manager.commit_step()
    request.append(6)
    manager.begin_step(1.75)
    assert manager.allocate_slots(request, 1) is not None
    assert manager.rollback_step() == ("a",)
    manager.free(request)
    assert manager.reset_prefix_cache()
    del request
    assert tape.records == [
        BeginStep(1.5),
        Seen(0, "a", [1, 2, 3, 4, 5]),
        Lookup(0, Found(0)),
        Allocate(0, 5, 0, Granted([0, 1])),
        Commit(8),
        BeginStep(1.75),
        Tokens(0, [6]),
        Allocate(0, 1, None, Granted()),
        Rollback(("a",)),
        Free(0, ()),
        Reset(True),
        Gone(0),
    ]


def test_a_copy_and_no_room_are_recorded(manager: RecordingManager, tape: Tape) -> None:
    first, second = CacheRequest("a", range(10)), CacheRequest("b", [*range(6), *range(70, 100)])
    admit(manager, first)
    manager.commit_step()
    hit = manager.get_computed_blocks(second)
    assert manager.allocate_slots(second, 3, hit) is not None
    manager.commit_step()
    assert manager.allocate_slots(second, 27) is None
    calls = [record for record in tape.records if isinstance(record, Allocate)]
    assert calls[1] == Allocate(1, 3, 6, Granted([3, 4], [(1, 3, 2)]))
    assert calls[2] == Allocate(1, 27, None, None)


def test_a_preempted_request_is_not_written_again(manager: RecordingManager, tape: Tape) -> None:
    request = CacheRequest("a", range(10))
    for _ in range(3):
        admit(manager, request)
        manager.commit_step()
        manager.free(request)
    assert sum(isinstance(record, Seen) for record in tape.records) == 1


def test_of_a_fork_only_what_is_new_is_written(manager: RecordingManager, tape: Tape) -> None:
    request = CacheRequest("a", range(6))
    admit(manager, request)
    manager.commit_step()
    child = CacheRequest("b", [*range(6), 9])
    manager.fork(request, child)
    assert tape.records[-2:] == [Seen(1, "b", [9], None, None, 0, 6), Fork(0, 1)]


@pytest.mark.parametrize(
    "call",
    [
        lambda manager, request: manager.allocate_slots(request, 0),
        lambda manager, request: manager.free(CacheRequest("b", [1])),
        lambda manager, request: manager.fork(request, CacheRequest("b", [1])),
        lambda manager, request: manager.begin_step(1.0),
    ],
)
def test_a_call_that_raises_is_recorded_and_safe_at_once(
    manager: RecordingManager, tape: Tape, call: object
) -> None:
    request = CacheRequest("a", range(6))
    manager.begin_step(0.0)
    admit(manager, request)
    assert callable(call)
    with pytest.raises(CacheError):
        call(manager, request)
    assert tape.safe[-1].result == "CacheError"  # type: ignore[union-attr]


def test_salts_are_not_in_it_but_which_are_equal_is(tape: Tape) -> None:
    salts = ["secret", "secret", "other secret", None]
    for _ in range(2):  # two logs
        manager = RecordingManager(CacheConfig(10, 4), tape)
        for number, salt in enumerate(salts):
            namespace = Namespace(Adapter("x", "d"), salt)
            request = CacheRequest(str(number), [1, 2], namespace=namespace, tenant=salt)
            manager.get_computed_blocks(request)
            with pytest.raises(CacheError):
                manager.free(request)  # its text has the namespace in it
    assert b"secret" not in msgspec.json.encode(tape.records)
    seen = [record for record in tape.records if isinstance(record, Seen)]
    assert [record.tenant for record in seen] == [record.salt for record in seen]
    assert [record.adapter for record in seen] == [("x", "d")] * 8
    for names in ([record.salt for record in seen[:4]], [record.salt for record in seen[4:]]):
        assert names[0] == names[1] != names[2]
        assert names[3] is None
    assert seen[0].salt != seen[4].salt


def test_images_and_embeddings_are_written_as_digests(manager: RecordingManager, tape: Tape) -> None:
    span, rows = MediaSpan("cafe" * 16, 1, 2), PromptEmbeds(b"abcd", 2)
    manager.get_computed_blocks(CacheRequest("a", [1, 2, 3], media=[span], prompt_embeds=rows))
    [seen] = [record for record in tape.records if isinstance(record, Seen)]
    assert seen.media == [("cafe" * 16, 1, 2)]
    assert seen.prompt_embeds == sha256(b"ab").digest() + sha256(b"cd").digest()


def test_what_a_step_did_is_safe_when_it_ends_and_the_rest_at_once(
    manager: RecordingManager, tape: Tape
) -> None:
    request = CacheRequest("a", range(6))
    manager.begin_step(0.0)
    admit(manager, request)
    assert tape.safe == []  # it would cost a write for each call
    manager.commit_step()
    assert tape.safe == tape.records
    manager.free(request)
    assert tape.safe == tape.records
    manager.reset_prefix_cache()
    assert tape.safe == tape.records


def test_digests_come_every_so_often_and_at_the_end(tape: Tape) -> None:
    manager = RecordingManager(CacheConfig(10, 4), tape, digest_every=3)
    for step in range(7):
        manager.begin_step(float(step))
        manager.commit_step() if step % 2 else manager.rollback_step()
    manager.close()
    assert tape.closed
    states = [place for place, record in enumerate(tape.records) if isinstance(record, State)]
    assert states == [6, 13, 16]
    assert tape.records[-1] == State(manager.state_digest(), closed=True)


def test_big_pools_are_digested_less_often() -> None:
    assert steps_between_digests(10) == 256
    assert steps_between_digests(1_000_000) == 62_500


def test_pins_and_what_they_need_are_recorded(manager: RecordingManager, tape: Tape) -> None:
    request = CacheRequest("a", range(8), num_prompt_tokens=5, retention_priority=3)
    manager.begin_step(1.0)
    admit(manager, request)
    manager.commit_step()
    assert manager.pin(request, 2.0) is not None
    assert manager.pin(CacheRequest("b", range(8)), 2.0) is not None
    with pytest.raises(CacheError):
        manager.pin(request, -1.0)
    assert manager.unpin("a")
    assert not manager.unpin("a")
    manager.begin_step(3.0)  # b's ends by itself, which is no call
    pins = [record for record in tape.records if isinstance(record, Seen | PinCall | Unpin)]
    assert pins == [
        Seen(0, "a", list(range(8)), num_prompt_tokens=5, retention_priority=3),
        PinCall(0, 2.0, Pinned(2, 3.0)),
        Seen(1, "b", list(range(8))),
        PinCall(1, 2.0, Pinned(2, 3.0)),
        PinCall(0, -1.0, "CacheError"),
        Unpin("a", True),
        Unpin("a", False),
    ]
    assert manager.pins == ()


def test_nothing_is_kept_of_requests_that_are_gone(manager: RecordingManager, tape: Tape) -> None:
    for number in range(100):
        request = CacheRequest(str(number), array("i", range(50)))
        manager.get_computed_blocks(request)  # never admitted: nobody will free it
        if number % 2:
            admit(manager, CacheRequest("x", range(6)))
            manager.rollback_step()
    del request
    gc.collect()
    assert manager._told == {}
    assert sum(isinstance(record, Gone) for record in tape.records) == 150


def test_every_call_that_can_change_something_is_recorded() -> None:
    """Whoever gives the door a new call or option learns here that logs must have it."""
    looks = {"block_table", "free_block_ids", "num_free_blocks", "usage", "stats", "num_evicted_blocks"}
    looks |= {"state_digest", "check", "pins", "num_collisions", "explain_misses", "miss_tokens"}
    looks |= {"hit_rate_estimates", "take_events"}  # what was told is not what is cached
    door = {name for name in vars(KVCacheManager) if not name.startswith("_")} - looks
    assert {name for name in vars(RecordingManager) if not name.startswith("_")} == door | {"close"}
    for name in door:
        plain, recorded = getattr(KVCacheManager, name), getattr(RecordingManager, name)
        assert inspect.signature(plain) == inspect.signature(recorded)


def test_retentions_and_opt_outs_are_recorded(manager: RecordingManager, tape: Tape) -> None:
    request = CacheRequest("a", range(8))
    manager.begin_step(1.0)
    admit(manager, request)
    manager.commit_step()
    assert manager.retain(request, 5.0, "chat") is not None
    assert manager.retain(CacheRequest("b", [7], skip_writing=True, skip_reading=True), 5.0) is None
    silent = Seen(1, "b", [7], skip_reading=True, skip_writing=True)
    assert tape.records[-4:-1] == [
        RetainCall(0, 5.0, "chat", Pinned(2, 6.0)),
        silent,
        RetainCall(1, 5.0, None, None),
    ]
    assert isinstance(tape.records[-1], Gone)
