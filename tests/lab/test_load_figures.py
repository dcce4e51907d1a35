import pytest

from headstart.lab.load.figures import Group, Spread, doubts, summarise
from headstart.lab.load.scenarios import Kind, Round, Scenario
from headstart.lab.load.timing import Timing, Usage


def timing(
    *arrivals: float,
    sent: float = 0.0,
    tokens: int | None = None,
    cached: int | None = 0,
    counted: int | None = 100,
) -> Timing:
    return Timing(sent, arrivals, 100, 4, Usage(counted, cached, tokens))


def round_of(*timings: Timing, kind: Kind = "decode", repeat: int = 1) -> Round:
    return Round(kind, repeat, timings)


def test_spread() -> None:
    spread = Spread.of([4, 1, 3, 2, 5])
    assert (spread.minimum, spread.median, spread.maximum) == (1, 3, 5)
    assert spread.p95 == pytest.approx(4.8)
    assert spread.p99 == pytest.approx(4.96)
    assert Spread.of(range(101)) == Spread(0, 50, 95, 99, 100)
    assert Spread.of([7.0]) == Spread(7, 7, 7, 7, 7)
    assert Spread.of_known([None, 7.0]) == Spread(7, 7, 7, 7, 7)
    assert Spread.of_known([None]) is None


def test_figures_of_two_rounds_of_two_streams() -> None:
    group = Group.of(
        [
            # 8 tokens in 4 s; 4 of them after 2 s and until 3.5 s, while both decode.
            round_of(timing(1, 2, 3, 4, sent=0), timing(2.0, 2.5, 3.0, 3.5, sent=0.5)),
            # 6 tokens in 2 s; 1 from 11 s to 11.5 s.  The second stream packs 4 tokens in 2 events.
            round_of(timing(10.5, 11.5, sent=10), timing(11, 12, sent=10, tokens=4)),
        ]
    )
    assert (group.rounds, group.requests) == (2, 4)
    assert group.ttft_ms == Spread.of([500, 1000, 1000, 1500])
    assert group.itl_ms == Spread.of([1000, 1000, 1000, 500, 500, 500, 1000, 1000])
    assert group.seconds == Spread.of([2, 4])
    assert group.tokens_per_second == Spread.of([8 / 4, 6 / 2])
    assert group.decode_tokens_per_second == Spread.of([4 / 1.5, 1 / 0.5])
    assert group.stream_tokens_per_second == Spread.of([1, 1, 2, 3])
    assert group.prompt_tokens == Spread.of([100])
    assert group.cached_tokens == Spread.of([0])
    assert group.output_tokens == Spread.of([2, 4, 4, 4])


def test_what_is_not_known_is_none() -> None:
    group = Group.of([round_of(timing(1, cached=None, counted=None))])
    assert group.itl_ms is group.decode_tokens_per_second is group.stream_tokens_per_second is None
    assert group.prompt_tokens is group.cached_tokens is None
    assert group.output_tokens.median == 1


def test_a_warm_up_belongs_to_no_figure() -> None:
    rounds = [
        round_of(timing(9), kind="cold", repeat=0),
        round_of(timing(8), kind="warm", repeat=0),
        round_of(timing(2), kind="cold"),
        round_of(timing(1), kind="warm"),
    ]
    groups = summarise(rounds)
    assert list(groups) == ["cold", "warm"]
    assert groups["cold"].ttft_ms.maximum == 2000
    assert groups["warm"].ttft_ms.maximum == 1000
    assert doubts_of(round_of(timing(9, cached=99), kind="cold", repeat=0)) == ""


def doubts_of(*rounds: Round, scenario: Scenario = Scenario.FIRST_TOKEN, shared_tokens: int = 90) -> str:
    return " ".join(doubts(scenario, rounds, shared_tokens=shared_tokens))


def test_no_doubts() -> None:
    cold, warm = timing(1, 2, 3, 4, cached=2), timing(1, 2, 3, 4, cached=90)
    assert doubts_of(round_of(cold, kind="cold"), round_of(warm, kind="warm")) == ""
    silent = timing(1, 2, 3, 4, cached=None, counted=None)
    assert doubts_of(round_of(silent, kind="cold"), round_of(silent, kind="warm")) == ""


def test_a_prompt_that_the_server_changed() -> None:
    assert "counts 101 prompt tokens where 100 were sent" in doubts_of(round_of(timing(1, counted=101)))


def test_streams_that_ended_early() -> None:
    found = doubts_of(round_of(timing(1, 2), timing(1, 2, 3, 4)))
    assert found == "1 of 2 streams ended before the 4 tokens asked for."


def test_streams_that_never_decode_together() -> None:
    apart = round_of(timing(1, 2, 3, 4), timing(5, 6, 7, 8))
    assert Group.of([apart]).decode_tokens_per_second is None
    said = "In some rounds a stream ended before all had begun: ask for more output tokens."
    assert doubts_of(apart, scenario=Scenario.DECODE) == said
    assert doubts_of(apart, scenario=Scenario.FIRST_TOKEN) == ""
    one = round_of(timing(1, tokens=4))
    assert said not in doubts_of(one, scenario=Scenario.DECODE), "one stream is always alone"


def test_several_tokens_in_an_event() -> None:
    assert "Some events bring more than one token" in doubts_of(round_of(timing(1, 2, tokens=4)))
    assert doubts_of(round_of(timing(1, 2, 3, tokens=4))) == "", "a last token without text brings no event"


@pytest.mark.parametrize("kind", ["cold", "decode"])
def test_a_cold_prompt_that_hit(kind: Kind) -> None:
    hit = round_of(timing(1, 2, 3, 4, cached=50), kind=kind)
    assert "found 50 tokens of a cold prompt in its cache" in doubts_of(hit)


def test_cold_streams_with_one_prefix_hit_each_other() -> None:
    hit = round_of(timing(1, 2, 3, 4, cached=50), kind="cold")
    assert doubts_of(hit, scenario=Scenario.SHARED_PREFIX) == ""


def test_warm_prompts_that_found_nothing() -> None:
    missed = round_of(timing(1, 2, 3, 4, cached=0), kind="warm")
    assert "found nothing of the warm prompts" in doubts_of(missed)
    assert doubts_of(missed, shared_tokens=0) == "", "there was nothing to find"
