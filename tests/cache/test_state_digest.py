from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from headstart.cache import Namespace
from headstart.cache.keys import SHARED
from tests.cache.checked import CheckedManager, Make, ask, cached, decode, run, serve

ROOT = Path(__file__).parents[2]
PROGRAM = """
import random, sys
from headstart.cache import CacheConfig, KVCacheManager
from tests.recorded import live_at_the_door
for index in ("radix", "hash"):
    manager = KVCacheManager(CacheConfig(10, 3, index=index))
    live_at_the_door(manager, random.Random(7), 300)
    print(manager.state_digest())
"""


def test_every_change_shows_and_a_look_does_not(make: Make) -> None:
    manager = make(20)
    request = ask("a", range(10))
    seen = [manager.state_digest()]

    def changed() -> bool:
        seen.append(manager.state_digest())
        return seen[-1] not in seen[:-1]

    hit = manager.get_computed_blocks(request)
    assert manager.state_digest() == seen[0]
    manager.allocate_slots(request, 10, hit)
    assert changed()
    manager.commit_step()
    assert changed()
    child = ask("b", range(11))
    manager.fork(request, child)
    assert changed()
    manager.allocate_slots(child, 1)  # copied on write
    assert changed()
    manager.commit_step()
    assert changed()
    decode(manager, request, [7])
    assert changed()
    manager.begin_step(3.5)
    assert changed()
    manager.free(child)
    assert changed()
    manager.free(request)
    assert changed()
    assert cached(manager, range(10)) > 0
    assert manager.state_digest() == seen[-1]
    manager.reset_prefix_cache()
    assert changed()


def test_a_rollback_brings_the_digest_back(make: Make) -> None:
    manager = make(20)
    run(manager, ask("a", range(10)))
    before = manager.state_digest()
    request = ask("b", [*range(8), 77, 78, 79])
    manager.allocate_slots(request, 3, manager.get_computed_blocks(request))
    assert manager.state_digest() != before
    manager.rollback_step()
    assert manager.state_digest() == before


def after(make: Make, *prompts: tuple[list[int], Namespace]) -> CheckedManager:
    manager = make(20)
    for number, (tokens, namespace) in enumerate(prompts):
        serve(manager, ask(f"r{number}", tokens, namespace))
    return manager


def test_what_salts_are_called_does_not_matter_but_which_are_equal_does(make: Make) -> None:
    tokens = list(range(9))
    a, b, c = (Namespace(salt=salt) for salt in "abc")
    digest = after(make, (tokens, a), (tokens, b), (tokens, a)).state_digest()
    assert digest == after(make, (tokens, c), (tokens, a), (tokens, c)).state_digest()
    assert digest != after(make, (tokens, a), (tokens, b), (tokens, b)).state_digest()
    assert digest != after(make, (tokens, a), (tokens, a), (tokens, a)).state_digest()


def test_what_goes_next_matters(make: Make) -> None:
    first, second = list(range(8)), list(range(50, 58))
    one = after(make, (first, SHARED), (second, SHARED), (first, SHARED))
    other = after(make, (first, SHARED), (second, SHARED), (second, SHARED))
    assert one.free_block_ids() != other.free_block_ids()
    assert one.state_digest() != other.state_digest()


def test_it_is_the_same_in_every_process() -> None:
    told = set()
    for seed in ("1", "2", "random"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        told.add(done.stdout)
    (digests,) = told
    assert len(set(digests.split())) == 2


def test_evictions_are_counted(make: Make) -> None:
    manager = make(4, 4)
    serve(manager, ask("a", range(16)))
    assert manager.num_evicted_blocks == 0
    serve(manager, ask("b", range(100, 108)))
    assert manager.num_evicted_blocks == 2
