from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterable

import pytest

from headstart.cache import (
    Adapter,
    CacheConfig,
    CacheRequest,
    KVCacheManager,
    MediaSpan,
    MissReason,
    MissReport,
    Namespace,
)
from headstart.cache.keys import SHARED
from headstart.cache.miss_log import MissLog
from headstart.cache.misses import Memory
from headstart.errors import CacheError
from tests.cache.checked import Make, admit, ask, make_manager, run, serve

TEXT = list(range(1000, 1100))


def explain(manager: KVCacheManager, request: CacheRequest) -> MissReport:
    (report,) = manager.explain_misses([request])
    return report


def told(manager: KVCacheManager, tokens: Iterable[int], namespace: Namespace = SHARED) -> dict[str, int]:
    """Serve the prompt; its hit and reasons, but for the last token, which must be among them."""
    request = ask("told", tokens, namespace)
    serve(manager, request)
    report = explain(manager, request)
    counts = {"hit": report.num_hit_tokens} | {reason.value: n for reason, n in report.tokens.items()}
    assert sum(counts.values()) == request.num_tokens
    assert counts.pop("last_token") == 1
    return {word: count for word, count in counts.items() if count}


def log_of(manager: KVCacheManager) -> MissLog:
    assert manager._misses is not None
    return manager._misses


# -- the reasons that the page's table does not go into ---------------------------------------------


@pytest.mark.parametrize("block_size", [1, 3, 4, 16, 20, 32])
@pytest.mark.parametrize("index", ["radix", "hash"])
def test_all_of_an_equal_text_is_found_wherever_it_stands(index: str, block_size: int) -> None:
    manager = make_manager(200, block_size, index=index)
    serve(manager, ask("a", [*range(7), *TEXT]))
    whole = 107 // block_size * block_size - 7  # of the text, what was cached in whole blocks
    for front in (1, 5, 16):
        prompt = [*range(10_000 + front, 10_000 + 2 * front), *TEXT[13:], 5, 6]
        counts = told(manager, prompt)
        manager.reset_prefix_cache()
        assert counts == {"diverged": whole - 13, "cold": len(prompt) - 1 - (whole - 13)}
        serve(manager, ask("a", [*range(7), *TEXT]))


@pytest.mark.parametrize("length", [31, 32, 33])
@pytest.mark.parametrize("place", range(16))
def test_32_equal_tokens_are_a_text_and_31_are_none(length: int, place: int) -> None:
    manager = make_manager(50, 4)
    serve(manager, ask("a", TEXT))
    counts = told(manager, [1, 2, *TEXT[place : place + length], 3, 4])
    assert counts.get("diverged", 0) == (length if length >= 32 else 0)


def test_a_run_counts_as_long_as_it_is_though_its_beginning_is_a_hit() -> None:
    manager = make_manager(100, 4)
    serve(manager, ask("a", [7, *TEXT[:40], 8, 9, 10]))
    serve(manager, ask("b", [*TEXT[:28], 50, 51, 52, 53]))
    assert told(manager, [*TEXT[:40], 60]) == {"hit": 28, "diverged": 12}


def test_the_first_difference_is_where_the_prompt_stops_being_equal_to_anything() -> None:
    for index, position in (("radix", 6), ("hash", 6)):
        manager = make_manager(100, 4, index=index)
        serve(manager, ask("a", [*range(6), 70, *TEXT]))
        request = ask("b", [*range(6), 71, *TEXT])
        serve(manager, request)
        assert explain(manager, request).diverged_at == position


def test_text_of_another_namespace_behind_another_beginning_is_cold() -> None:
    manager = make_manager(100, 4)
    serve(manager, ask("a", [1, *TEXT], Namespace(salt="tom")))
    assert told(manager, [2, *TEXT], Namespace(salt="eve")) == {"cold": 100}


def test_the_latest_of_two_namespaces_does_not_hide_the_others_text() -> None:
    manager = make_manager(100, 4)
    serve(manager, ask("a", [1, *TEXT]))
    serve(manager, ask("b", [1, *TEXT], Namespace(salt="eve")))
    assert told(manager, [2, *TEXT])["diverged"] == 99


def test_an_adapter_isolates_and_a_client_reads_cold() -> None:
    manager = make_manager(100, 4)
    serve(manager, ask("a", TEXT))
    request = ask("b", [*TEXT[:50], 1, 2], Namespace(Adapter("x", "d1")))
    serve(manager, request)
    report = explain(manager, request)
    assert report.tokens == {MissReason.LAST_TOKEN: 1, MissReason.ISOLATED: 50, MissReason.COLD: 1}
    assert report.for_client().tokens == {MissReason.LAST_TOKEN: 1, MissReason.COLD: 51}
    assert report.for_client().for_client() == report.for_client()


def test_what_was_evicted_in_another_namespace_is_cold() -> None:
    manager = make_manager(25, 4)
    serve(manager, ask("a", TEXT, Namespace(salt="tom")))
    serve(manager, ask("b", range(100)))
    assert told(manager, TEXT, Namespace(salt="eve")) == {"cold": 99}


def test_evicted_tells_when_and_how_many_blocks_ago() -> None:
    manager = make_manager(10, 4)
    manager.begin_step(100.0)
    serve(manager, ask("a", range(16)))
    manager.begin_step(101.5)
    serve(manager, ask("b", range(100, 128)))  # takes 6 unused blocks, and the last one of a
    manager.begin_step(103.0)
    serve(manager, ask("c", range(200, 205)))  # 2 more
    manager.begin_step(107.0)
    request = ask("d", range(16))
    serve(manager, request)
    report = explain(manager, request)
    assert (report.num_hit_tokens, report.tokens[MissReason.EVICTED]) == (4, 11)
    assert (report.evicted_s, report.evicted_blocks) == (4.0, 2)


def test_a_grant_that_copies_is_one_grant() -> None:
    manager = make_manager(4, 4)
    serve(manager, ask("a", range(4)))
    parent, child = ask("parent", [100, 101]), ask("child", range(100, 109))
    run(manager, parent)
    manager.fork(parent, child)
    assert manager.allocate_slots(child, 7) is not None  # copies into one block, takes two, evicts a's
    manager.commit_step()
    manager.free(child)
    manager.free(parent)
    request = ask("again", range(5))
    serve(manager, request)
    assert explain(manager, request).evicted_blocks == 3


def test_tails_are_known_to_the_token() -> None:
    manager = make_manager(4, 4)  # radix finds them until they are evicted
    assert told(manager, range(6)) == {"cold": 5}
    assert told(manager, [*range(6), 9]) == {"hit": 6}
    serve(manager, ask("flood", range(100, 116)))
    assert told(manager, [*range(6), 8, 8]) == {"evicted": 6, "cold": 1}


def test_a_shared_beginning_shorter_than_a_block_is_named() -> None:
    manager = make_manager(10, 4, index="hash")
    serve(manager, ask("a", [1, 2, 3]))
    assert told(manager, [1, 2, 3, 4, 5]) == {"unaligned": 3, "cold": 1}


def test_a_copy_for_which_there_is_no_room_is_unaligned() -> None:
    manager = make_manager(10, 4)
    serve(manager, ask("a", range(8)))
    request = ask("b", [*range(7), 50, 51])
    hit = manager.get_computed_blocks(request).without_copy()
    assert manager.allocate_slots(request, 5, hit) is not None
    manager.commit_step()
    assert explain(manager, request).tokens == {
        MissReason.LAST_TOKEN: 1,
        MissReason.UNALIGNED: 3,
        MissReason.COLD: 1,
    }


@pytest.mark.parametrize("off", ["caching", "looking", "reading"])
def test_who_does_not_look_skips(make: Make, off: str) -> None:
    manager = make(10, enable_prefix_caching=off != "caching")
    serve(manager, ask("a", range(8)))
    request = CacheRequest("b", range(8), skip_reading=off == "reading")
    if off == "looking":
        assert manager.allocate_slots(request, 8) is not None
        manager.commit_step()
    else:
        run(manager, request)
    assert explain(manager, request).tokens == {MissReason.SKIPPED: 8}


def test_in_flight_is_what_another_was_admitted_with(make: Make) -> None:
    manager = make(50)
    first = ask("a", range(20))
    admit(manager, first, 8)
    manager.commit_step()
    second, other = ask("b", [*range(14), 50, 51, 52]), ask("c", range(20), Namespace(salt="eve"))
    run(manager, second)
    run(manager, other)
    assert explain(manager, second).tokens[MissReason.IN_FLIGHT] == 6
    assert MissReason.IN_FLIGHT not in explain(manager, other).tokens
    manager.free(first)
    third = ask("d", range(20))
    run(manager, third)
    assert MissReason.IN_FLIGHT not in explain(manager, third).tokens


# -- counted once, as of the admission ---------------------------------------------------------------


def test_a_request_is_counted_once_whatever_becomes_of_it(make: Make) -> None:
    manager = make(6)
    holder, request = ask("holder", range(100, 112)), ask("a", range(14))
    run(manager, holder)
    hit = manager.get_computed_blocks(request)
    assert manager.allocate_slots(request, 14, hit) is None  # no room: not admitted
    assert manager.explain_misses([request]) == []
    manager.free(holder)
    admit(manager, request)
    manager.rollback_step()
    assert manager.explain_misses([request]) == []
    assert sum(manager.miss_tokens.values()) == holder.num_tokens
    admit(manager, request)
    manager.commit_step()
    first = explain(manager, request)
    assert first.tokens == {MissReason.LAST_TOKEN: 1, MissReason.COLD: 13}
    manager.free(request)  # preempted
    request.append(5)
    run(manager, request)
    assert explain(manager, request) == first
    assert sum(manager.miss_tokens.values()) == holder.num_tokens + 14


def test_an_admission_that_was_explained_and_then_taken_back_does_not_count(make: Make) -> None:
    manager = make(20)
    request = ask("a", range(8))
    admit(manager, request)
    assert explain(manager, request).num_prompt_tokens == 8
    manager.rollback_step()
    assert sum(manager.miss_tokens.values()) == 0
    skipping = CacheRequest("b", range(8), skip_reading=True)
    admit(manager, skipping)
    manager.rollback_step()
    assert sum(manager.miss_tokens.values()) == 0


def test_a_fork_has_no_report_and_may_end_before_its_parent(make: Make) -> None:
    manager = make(20)
    parent = ask("a", range(6))
    run(manager, parent)
    child = ask("b", [*range(6), 7])
    manager.fork(parent, child)
    assert manager.explain_misses([child, parent])[0].request_id == "a"
    manager.free(child)
    manager.free(parent)
    run(manager, ask("c", range(6)))


def test_a_report_is_about_the_admission_whenever_it_is_asked(make: Make) -> None:
    def life(*, at_once: bool) -> list[MissReport]:
        manager = make(30)
        requests, reports = [], []
        for number in range(30):
            draw = random.Random(number)
            prompt = [*draw.choice(([], [1], [2])), *TEXT[: draw.randrange(1, 100)]]
            request = ask(f"{number}", prompt, Namespace(salt=draw.choice([None, "eve"])))
            manager.begin_step(float(number))
            serve(manager, request)
            requests.append(request)
            if at_once:
                reports.append(explain(manager, request))
        return reports or manager.explain_misses(requests)

    assert life(at_once=True) == life(at_once=False)


def test_prompts_without_a_first_token_wait_and_hold_up_nobody_who_has_one(make: Make) -> None:
    manager = make(50)
    first, second = ask("a", range(8)), ask("b", range(50, 58))
    admit(manager, first, 4)
    manager.commit_step()
    manager.explain_misses()
    assert sum(manager.miss_tokens.values()) == 0  # its first token was not sent
    run(manager, second)
    assert explain(manager, second).tokens[MissReason.COLD] == 7
    third = ask("c", range(70, 78))
    admit(manager, third, 4)
    manager.commit_step()
    manager.explain_misses()
    counted = sum(manager.miss_tokens.values())
    manager.free(third)  # it will never have one
    manager.explain_misses()
    assert sum(manager.miss_tokens.values()) == counted + 8


# -- what it costs -----------------------------------------------------------------------------------


def test_a_hit_is_not_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = make_manager(100, 4)
    serve(manager, ask("a", TEXT))
    manager.explain_misses()
    for name in ("explain", "store"):
        monkeypatch.setattr(Memory, name, lambda *_: pytest.fail("a hit was looked at"))
    request = ask("b", TEXT)
    serve(manager, request)
    assert explain(manager, request).tokens == {MissReason.LAST_TOKEN: 1}


def test_as_much_is_looked_up_whatever_other_namespaces_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    inside = Memory._inside
    monkeypatch.setattr(Memory, "_inside", lambda *args: looked.append(1) or inside(*args))
    for salt in (None, "eve"):
        manager = make_manager(100, 4)
        serve(manager, ask("a", TEXT, Namespace(salt=salt)))
        looked.clear()
        told(manager, [*TEXT, 1, 2], Namespace(salt="tom"))
        assert len(looked) == 6  # three, for each of the two requests


@pytest.mark.parametrize(("index", "count"), [("radix", 10_000), ("hash", 2_000)])
def test_tables_stay_within_their_bounds(index: str, count: int) -> None:
    manager = KVCacheManager(CacheConfig(num_blocks=64, block_size=4, index=index))  # type: ignore[arg-type]
    largest: dict[str, int] = {}
    for number in range(count):
        salt = f"tenant {number}" if number % 3 else None
        prompt = [number, number + 1, *range(number % 20)]
        request = CacheRequest(f"{number}", prompt, namespace=Namespace(salt=salt))
        run(manager, request)
        if number < count // 4 and number % 3 == 0:  # later, nobody asks
            manager.explain_misses([request])
        manager.free(request)
        if number % 100 == 0:
            sizes = log_of(manager).sizes()
            assert all(size <= bound for size, bound in sizes.values()), sizes
            largest = {name: max(size, largest.get(name, 0)) for name, (size, _) in sizes.items()}
    assert largest["ghosts"] == 64
    assert largest["rows"] > 40
    manager.explain_misses()
    assert len(log_of(manager)._outcomes) <= 1
    assert sum(manager.miss_tokens.values()) + manager.stats.hits == manager.stats.queries


@pytest.mark.parametrize("index", ["radix", "hash"])
def test_no_row_is_lost_to_equal_hashes(index: str) -> None:
    manager = KVCacheManager(CacheConfig(num_blocks=20, block_size=4, index=index))  # type: ignore[arg-type]
    memory = log_of(manager)._memory
    memory._factors[:] = 0  # all texts of a namespace have the same hash
    for number in range(60):
        serve(manager, ask(f"{number}", range(100 * number, 100 * number + 42)))
        manager.explain_misses()
    sizes = memory.sizes()
    used = [sizes[name][0] for name in ("rows", "ghosts", "unused rows")]
    assert sum(used) == sizes["unused rows"][1]
    assert used[1] <= 20
    manager.check()


def test_many_siblings_are_not_all_compared() -> None:
    manager = KVCacheManager(CacheConfig(2_000, 4))
    for number in range(300):
        serve(manager, ask(f"{number}", [1, number, 0, 0, 0], Namespace(salt="tom")))
    assert told(manager, [1, 299, 0, 7, 7], Namespace(salt="eve")) == {"isolated": 3, "cold": 1}
    assert told(manager, [1, 0, 0, 7, 7], Namespace(salt="bob")) == {"isolated": 1, "cold": 3}


def test_reasons_are_the_same_in_every_process() -> None:
    program = (
        "import random\n"
        "from headstart.cache import *\n"
        "manager, draw = KVCacheManager(CacheConfig(20, 4)), random.Random(1)\n"
        "for n in range(60):\n"
        "    tokens = [draw.randrange(3) for _ in range(2)] + list(range(draw.randrange(60)))\n"
        "    space = Namespace(salt=draw.choice([None, 'a', 'b']))\n"
        "    request = CacheRequest(str(n), tokens, namespace=space)\n"
        "    hit = manager.get_computed_blocks(request)\n"
        "    manager.allocate_slots(request, request.num_tokens - hit.num_tokens, hit)\n"
        "    manager.commit_step()\n"
        "    manager.free(request)\n"
        "    print(manager.explain_misses([request]))\n"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0].count(b"diverged") > 3


def test_without_explanations_nothing_is_kept(make: Make) -> None:
    manager = make(10, explain_misses=False)
    request = ask("a", range(8))
    serve(manager, request)
    assert manager.explain_misses([request]) == []
    assert manager.miss_tokens == {}


def test_law_i12_is_proved() -> None:
    manager = make_manager(10)
    request = ask("a", range(8))
    serve(manager, request)
    explain(manager, request)
    log_of(manager).tokens[MissReason.COLD] -= 1
    with pytest.raises(CacheError, match="law I12: 8 prompt tokens, 0 hit"):
        manager.check()


def test_a_reset_forgets_ghosts(make: Make) -> None:
    manager = make(25)
    serve(manager, ask("a", TEXT))
    serve(manager, ask("b", range(100)))
    assert manager.reset_prefix_cache()
    assert told(manager, TEXT) == {"cold": 99}


def test_a_prompt_may_be_longer_than_the_pool(make: Make) -> None:
    manager = make(3)
    request = ask("a", range(100))
    admit(manager, request, 8)
    manager.commit_step()
    assert explain(manager, request).tokens == {MissReason.LAST_TOKEN: 1, MissReason.COLD: 99}


# -- images and embeddings --------------------------------------------------------------------------


@pytest.mark.parametrize("index", ["radix", "hash"])
def test_another_image_is_another_text(index: str) -> None:
    manager = make_manager(200, 4, index=index)
    prompt = [*TEXT[:2], *[99] * 41, *TEXT[2:]]

    def report(image: str) -> dict[MissReason, int]:
        request = CacheRequest("r", prompt, media=[MediaSpan(image * 32, 2, 41)])
        serve(manager, request)
        return explain(manager, request).tokens

    assert set(report("a")) == {MissReason.COLD, MissReason.LAST_TOKEN}
    again = report("b")  # the words behind the image are known, the image is not
    assert again[MissReason.DIVERGED] >= 32
    assert again[MissReason.COLD] >= 40
    assert MissReason.COLD not in report("a")


def test_a_part_of_an_image_is_not_isolated() -> None:
    manager = make_manager(8, 2, index="radix")
    image = MediaSpan("cafe" * 4, 1, 8)
    half = CacheRequest("half", [7, *[9] * 8, 8], media=[image])
    admit(manager, half, 6)  # three blocks: the image ends in the fifth
    manager.commit_step()
    manager.free(half)
    again = CacheRequest("again", [7, *[9] * 8, 8], media=[image])
    assert serve(manager, again).num_tokens == 1
    report = explain(manager, again)
    assert report.tokens == {MissReason.UNALIGNED: 5, MissReason.COLD: 3, MissReason.LAST_TOKEN: 1}
