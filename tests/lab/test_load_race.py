import asyncio

from headstart.lab.load.peers import Peer
from headstart.lab.load.race import GREETING_TOKENS, Event, Figure, comparison, race
from headstart.lab.load.scenarios import Scenario, Workload
from tests.fake_openai import FakeServer, num_shared, serving

EVENT = Event(Scenario.FIRST_TOKEN, Workload(prompt_tokens=40, shared_tokens=30, repeats=1))


def test_peers_take_turns_with_the_same_prompts() -> None:
    one, other = FakeServer(), FakeServer()
    with serving(one) as one_url, serving(other) as other_url:
        peers = [Peer("one", one_url), Peer("other", other_url)]

        async def hold() -> list[tuple[str, int, str]]:
            rounds = race(EVENT, peers, range(1000), seed=1)
            return [(peer.name, each.repeat, each.kind) async for peer, each in rounds]

        turns = asyncio.run(hold())
    assert turns == [
        (name, repeat, kind) for repeat in (0, 1) for name in ("one", "other") for kind in ("cold", "warm")
    ]
    assert len(turns) == EVENT.num_rounds(2)
    prompts = [body["prompt"] for body in one.received]
    assert prompts == [body["prompt"] for body in other.received]
    greetings = [prompt for prompt in prompts if len(prompt) == GREETING_TOKENS]
    assert len(greetings) == 2
    measured = [prompt for prompt in prompts if prompt not in greetings]
    assert max(num_shared(greeting, prompt) for greeting in greetings for prompt in measured) == 0


def test_a_comparison_divides_the_first_by_the_others() -> None:
    figures = [
        Figure("tokens/s", {"ours": 3000.0, "a": 1500.4, "b": None}),
        Figure("ms", {"ours": 12.34, "a": 49.36, "b": 0.0}),
    ]
    assert comparison(figures).splitlines() == [
        "|  | ours | a | b | ours / a | ours / b |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        "| tokens/s | 3,000 | 1,500 | n/a | 2.00 | n/a |",
        "| ms | 12.3 | 49.4 | 0.0 | 0.25 | n/a |",
    ]
