import pytest

from headstart.lab.prompts.layout import (
    Layout,
    Segment,
    measure,
    split_system_prompt,
    trace_of,
    typical_prompt,
)
from headstart.lab.replay.outcome import Setting


@pytest.mark.parametrize("index", ["radix", "hash"])
def test_a_variable_at_500_costs_what_is_behind_it(index: str) -> None:
    bad, good = split_system_prompt()
    setting = Setting(prefix_index=index, block_size=4)  # 500 tokens are whole blocks of 4
    assert (measure(bad, setting).num_hit, measure(bad, setting).num_lost) == (500, 524)
    assert (measure(good, setting).num_hit, measure(good, setting).num_lost) == (1024, 0)


def test_with_whole_blocks_the_begun_one_is_lost_as_well() -> None:
    bad, _ = split_system_prompt()
    assert measure(bad, Setting(prefix_index="hash", block_size=16)).num_lost == 524 + 500 % 16
    assert measure(bad, Setting(prefix_index="hash", block_size=512)).num_lost == 1024


def test_both_layouts_are_the_same_prompt_in_another_order() -> None:
    bad, good = typical_prompt()
    assert sorted(bad.segments, key=str) == sorted(good.segments, key=str)
    assert measure(bad).num_hit == 0
    assert measure(good).num_hit == good.num_stable_tokens == measure(bad).num_lost
    assert measure(good).token_hit_rate == good.num_stable_tokens / good.num_tokens


def test_what_varies_is_never_the_same_twice_and_the_rest_always() -> None:
    layout = Layout("x", (Segment("a", 3), Segment("b", 2, varies=True), Segment("c", 4)))
    first, second = (request.symbols for request in trace_of(layout, 2).requests)
    words = [[run[at : at + 4] for at in range(0, len(run), 4)] for run in (first, second)]
    assert [a == b for a, b in zip(*words, strict=True)] == [True] * 3 + [False] * 2 + [True] * 4
    assert len(set(words[0] + words[1])) == 7 + 2 * 2
