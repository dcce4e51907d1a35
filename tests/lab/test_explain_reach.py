from __future__ import annotations

import random
from array import array
from itertools import takewhile

from headstart.cache import Namespace
from headstart.lab.explain.edits import Edit, edited
from headstart.lab.explain.neighbours import neighbours
from headstart.lab.explain.reach import reach
from headstart.lab.replay.outcome import Setting
from headstart.lab.replay.replay import replay
from headstart.lab.traces.trace import Trace, TraceFormat, TraceRequest


def run(values: list[int]) -> bytes:
    return array("i", values).tobytes()


def trace_of(*prompts: list[int]) -> Trace:
    requests = [TraceRequest(run(prompt), len(prompt)) for prompt in prompts]
    return Trace("made", TraceFormat.TOKENS, requests)


def branching(seed: int, count: int = 60) -> list[list[int]]:
    """Prompts that begin with a part of an earlier one."""
    rng = random.Random(seed)
    prompts = [rng.choices(range(1000), k=100)]
    for _ in range(count):
        earlier = rng.choice(prompts)
        prompts.append(
            [*earlier[: rng.randrange(len(earlier))], *rng.choices(range(1000), k=rng.randrange(1, 80))]
        )
    return prompts


def num_common(one: list[int], other: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def test_reach_is_the_longest_beginning_that_was_there() -> None:
    prompts = branching(1)
    for number, (tokens, earlier) in enumerate(reach(trace_of(*prompts))):
        longest = max((num_common(prompts[number], other) for other in prompts[:number]), default=0)
        most = min(longest, len(prompts[number]) - 1)
        assert most - 16 < tokens <= most
        assert earlier is None or earlier < number


def test_reach_is_what_an_unbounded_cache_hits() -> None:
    trace = trace_of(*branching(2))
    found = reach(trace)
    for one in replay(trace, Setting()).served:
        assert found[one.number].num_tokens <= one.num_hit_tokens < found[one.number].num_tokens + 16


def test_namespaces_do_not_reach_each_other() -> None:
    tokens = run(list(range(64)))
    requests = [TraceRequest(tokens, 64, namespace=Namespace(salt=salt)) for salt in ("a", "b", "a")]
    found = reach(Trace("made", TraceFormat.TOKENS, requests))
    assert [one.num_tokens for one in found] == [0, 0, 63]


def test_answers_are_reached_but_for_their_last_token() -> None:
    prompt, answer = list(range(40)), list(range(100, 140))
    first = TraceRequest(run(prompt), 40, output=run(answer))
    second = TraceRequest(run([*prompt, *answer, 7, 8]), 82)
    found = reach(Trace("made", TraceFormat.TOKENS, [first, second]))
    assert found[1] == (79, 0)


def test_what_begins_with_an_edited_prompt_is_edited_too() -> None:
    head, more = list(range(64)), list(range(200, 264))
    trace = trace_of([*head, 1], [*head, *more], [*head, *more, 5, 6])
    new = edited(trace, {1: [Edit(10, 12, run([900, 901, 902]))]})
    changed = [*head[:10], 900, 901, 902, *head[12:]]
    assert [request.symbols for request in new.requests] == [
        run([*head, 1]),
        run([*changed, *more]),
        run([*changed, *more, 5, 6]),
    ]
    assert [request.num_prompt_tokens for request in new.requests] == [65, 129, 131]


def test_the_neighbour_is_what_has_most_in_common_wherever_it_stands() -> None:
    rng = random.Random(3)
    texts = [rng.choices(range(1000), k=300) for _ in range(3)]
    prompts = [[1, *texts[0], *texts[1]], [2, *texts[0]], [3, *texts[2]], [4, 5, *texts[0], *texts[1], 9]]
    assert list(neighbours(map(run, prompts), {3})) == [(3, 0)]
    assert list(neighbours(map(run, prompts), {1, 2})) == [(1, 0)]


def test_any_31_equal_tokens_make_a_neighbour() -> None:
    rng = random.Random(4)
    for _ in range(200):
        shared = rng.choices(range(1000), k=31)
        one, other = (
            [
                *rng.choices(range(1000), k=rng.randrange(40)),
                *shared,
                *rng.choices(range(1000), k=rng.randrange(40)),
            ]
            for _ in range(2)
        )
        assert list(neighbours([run(one), run(other)], {1})) == [(1, 0)]


def test_text_that_repeats_itself_has_neighbours() -> None:
    assert list(neighbours([run([1, 2, 3] * 20), run([9, *[1, 2, 3] * 20])], {1})) == [(1, 0)]
