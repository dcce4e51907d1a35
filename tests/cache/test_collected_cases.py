"""docs/catalogue.md, the collected cases: small inputs on which others went wrong."""

from __future__ import annotations

import pytest

from headstart.cache import CacheRequest
from tests.cache.checked import Make, admit, ask, cached, reach, run, serve


@pytest.mark.parametrize("length", [3, 4, 5, 9])
def test_case_41_prompt_logprobs_twice(make: Make, length: int) -> None:
    manager = make(16)
    for name in ("cold", "warm"):
        scored = CacheRequest(name, range(length), skip_reading=True)
        hit = admit(manager, scored)
        assert (hit.num_tokens, hit.copy) == (0, None)
        manager.commit_step()
        manager.free(scored)
    assert cached(manager, range(length + 1)) == reach(manager, length, length + 1)
    assert manager.stats.queries == manager.stats.hits == 0  # case 42


def test_case_58_where_prompts_part_nothing_of_the_other_is_left(make: Make) -> None:
    manager = make(8)
    serve(manager, ask("long", range(1, 13)))
    parting = ask("parting", [1, 2, 3, 4, 5, 6, 50])
    hit = run(manager, parting)
    assert hit.num_tokens == reach(manager, 6, 7)
    assert manager.block_table("parting")[0] == 0
    assert manager.block_table("parting")[1] not in (1, 2)  # 5 and 6 in a block of its own
    manager.free(parting)
    assert cached(manager, [1, 2, 3, 4, 5, 6, 50, 8]) == reach(manager, 7, 8)
    assert cached(manager, range(1, 14)) == 12


@pytest.mark.parametrize("more_hits", [False, True])
def test_case_67_hits_and_computed_tokens_are_the_prompt(make: Make, more_hits: bool) -> None:
    manager = make(16)
    victim = ask("victim", range(16))
    hit = manager.get_computed_blocks(victim)
    assert manager.allocate_slots(victim, 6, hit) is not None
    manager.commit_step()
    manager.free(victim)  # preempted in the middle of its prompt
    if more_hits:
        serve(manager, ask("other", range(12)))
    found = manager.get_computed_blocks(victim).num_tokens
    assert found == reach(manager, 12 if more_hits else 6, 16)
    assert manager.allocate_slots(victim, 16 - found, manager.get_computed_blocks(victim)) is not None
    assert (manager.stats.preempted_queries, manager.stats.preempted_hits) == (16, found)
    assert 0 <= manager.stats.hits <= manager.stats.queries
