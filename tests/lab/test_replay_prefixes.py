"""The tree of prefixes, reuse distances and what prefixes are worth, against naive counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.cache import Namespace
from headstart.errors import ConfigError
from headstart.lab.replay.outcome import Setting
from headstart.lab.replay.prefixes import PrefixTree, ReuseDistances, valuable_prefixes
from headstart.lab.replay.replay import replay
from tests.replayed import outcome_of, trace_of

PROMPTS = st.lists(st.lists(st.integers(0, 2), max_size=9), max_size=25)


def naive_distances(prompts: list[list[int]], size: int) -> tuple[list[int], int]:
    """The stack itself: the most recently used block first, and a search for each look-up."""
    stack: list[tuple[int, ...]] = []
    distances, first_uses = [], 0
    for prompt in prompts:
        blocks = [tuple(prompt[:end]) for end in range(size, len(prompt) + 1, size)]
        for block in blocks[: max(0, len(prompt) - 1) // size]:
            if block in stack:
                distances.append(stack.index(block))
            else:
                first_uses += 1
        for block in reversed(blocks):
            if block in stack:
                stack.remove(block)
            stack.insert(0, block)
    return distances, first_uses


@given(PROMPTS, st.sampled_from([1, 2, 3]))
def test_reuse_distances_are_those_of_an_lru_stack(prompts: list[list[int]], size: int) -> None:
    reuse = ReuseDistances.of(PrefixTree.of(trace_of(prompts), size))
    distances, first_uses = naive_distances(prompts, size)
    assert sorted(reuse.distances.tolist()) == sorted(distances)
    assert reuse.num_first_uses == first_uses
    assert reuse.num_uses == len(distances) + first_uses


def test_reuse_distances_by_hand() -> None:
    # Blocks of one: A B | C D | A B x.  Between, C and D were used; A is younger than B, which continues it.
    reuse = ReuseDistances.of(PrefixTree.of(trace_of([[1, 2, 0], [3, 4, 0], [1, 2, 9]]), 1))
    assert reuse.distances.tolist() == [5 - 1, 3]  # before B came: C, D, D's end, A.  Before A: all but A
    assert reuse.num_first_uses == 4
    assert reuse.share_below(3) == 0
    assert reuse.share_below(4) == pytest.approx(1 / 6)
    assert reuse.share_below(5) == pytest.approx(2 / 6)


@given(PROMPTS, st.sampled_from([10, 12, 16]))
def test_the_share_below_a_capacity_is_what_lru_hits(prompts: list[list[int]], capacity: int) -> None:
    """Each prompt ends with a token of its own: it must be computed, and no second copy takes a slot."""
    trace = trace_of([[*prompt, 100 + number] for number, prompt in enumerate(prompts)])
    reuse = ReuseDistances.of(PrefixTree.of(trace, 1))
    outcome = replay(trace, Setting("lru", "hash", 1, capacity))
    assert sum(one.num_hit_tokens for one in outcome.served) == sum(reuse.distances < capacity)


@given(PROMPTS, st.sampled_from([1, 2]))
def test_shared_tokens_are_the_longest_beginning_in_common(prompts: list[list[int]], size: int) -> None:
    tree = PrefixTree.of(trace_of(prompts), size)
    for number, shared in enumerate(tree.shared_tokens().tolist()):
        prompt = prompts[number]
        blocks = max(0, len(prompt) - 1) // size
        ends = [end * size for end in range(blocks + 1)]
        earlier = prompts[:number]
        assert shared == max(
            end for end in ends if not end or any(one[:end] == prompt[:end] for one in earlier)
        )


@given(PROMPTS)
def test_what_prefixes_save_adds_up_to_all_hits(prompts: list[list[int]]) -> None:
    trace = trace_of([[*prompt, 5] for prompt in prompts])
    outcome = replay(trace, Setting("lru", "hash", 1, 12))
    found = valuable_prefixes(PrefixTree.of(trace, 1), outcome, most=1000)
    assert sum(one.num_tokens_saved for one in found) == outcome.rates.num_hit_tokens
    assert [one.num_tokens_saved for one in found] == sorted(
        (o.num_tokens_saved for o in found), reverse=True
    )
    for one in found:
        assert one.num_uses > one.num_hits > 0  # the first use is never a hit
        assert one.num_tokens_saved == one.num_own_tokens * one.num_hits
        assert trace.requests[one.request].num_symbols >= one.num_tokens


def test_a_system_prompt_and_a_document_behind_it() -> None:
    system, document = [1] * 4, [2] * 4
    prompts = [
        [*system, 10],
        [*system, 11],
        [*system, *document, 12],
        [*system, *document, 13],
        [*system, 14],
    ]
    trace = trace_of(prompts)
    outcome = replay(trace, Setting("lru", "hash", 2, None))
    short, long = valuable_prefixes(PrefixTree.of(trace, 2), outcome)
    assert (short.num_tokens, short.num_own_tokens, short.num_uses, short.num_hits) == (4, 4, 5, 4)
    assert (short.num_tokens_saved, short.request, short.continues) == (16, 0, None)
    assert (long.num_tokens, long.num_own_tokens, long.num_uses, long.num_hits) == (8, 4, 2, 1)
    assert (long.num_tokens_saved, long.request, long.continues) == (4, 2, 0)


def test_prefixes_of_other_namespaces_are_others() -> None:
    trace = trace_of([[1, 2, 3], [1, 2, 3]])
    salted = replace(trace.requests[1], namespace=Namespace(salt="s"))
    tree = PrefixTree.of(replace(trace, requests=[trace.requests[0], salted]), 1)
    assert tree.num_nodes == 6
    assert tree.shared_tokens().tolist() == [0, 0]


def test_hash_ids_count_in_tokens_of_their_blocks() -> None:
    trace = trace_of([[1, 2, 3], [1, 2, 4]], tokens_per_symbol=512)
    tree = PrefixTree.of(trace, 512)
    assert tree.num_nodes == 4
    assert tree.shared_tokens().tolist() == [0, 1024]
    assert PrefixTree.of(trace, 1024).shared_tokens().tolist() == [0, 1024]
    with pytest.raises(ConfigError, match="multiples"):
        PrefixTree.of(trace, 16)


def test_hits_within_a_block_are_counted_up_to_the_last_whole_one() -> None:
    trace = trace_of([[1] * 8, [1] * 8])
    found = valuable_prefixes(PrefixTree.of(trace, 4), outcome_of((8, 0), (8, 7), block_size=4))
    assert [(one.num_tokens, one.num_tokens_saved) for one in found] == [(4, 4)]


def test_nothing_at_all() -> None:
    tree = PrefixTree.of(trace_of([]), 16)
    assert ReuseDistances.of(tree).num_uses == 0
    assert ReuseDistances.of(tree).share_below(10) == 0
    assert tree.shared_tokens().tolist() == []
    assert valuable_prefixes(tree, outcome_of()) == []
