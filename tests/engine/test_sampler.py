from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from headstart.engine.request import SamplingParams, ScheduledRow
from headstart.engine.sampler import NO_CHOICE, Sampler, adjust
from tests.tiny_llama import GREEDY, row

# Quantiles of chi-square at 1 - 1e-4, by degrees of freedom.
CHI_SQUARE = {3: 21.1, 4: 23.5, 9: 33.7, 11: 37.4}
SKEWED = torch.tensor([2.0, -1.0, 0.5, 3.0, 0.0, 1.5, -2.0, 2.5, 1.0, -0.5])


def row_of(
    params: SamplingParams, *, name: str = "r", position: int = 0, counts: dict[int, int] | None = None
) -> ScheduledRow:
    return row(name, [1], [0], params=params, num_output_tokens=position, token_counts=counts)


def draws(logits: Tensor, params: SamplingParams, count: int) -> Tensor:
    """``count`` tokens of one request, at its output positions 0 and up."""
    rows = [row_of(params, position=position) for position in range(count)]
    return torch.tensor(Sampler(0).sample(logits.expand(count, -1), rows))


def chi_square(tokens: Tensor, expected: Tensor) -> float:
    """Of token counts against probabilities; infinite if a token that cannot be was drawn."""
    counts = torch.bincount(tokens, minlength=len(expected)).double()
    can_be = expected > 0
    if counts[~can_be].sum() > 0:
        return float("inf")
    expected = expected[can_be].double() * len(tokens)
    return float(((counts[can_be] - expected) ** 2 / expected).sum())


def test_greedy_is_the_largest() -> None:
    logits = torch.randn(5, 300)
    tokens = Sampler(0).sample(logits, [row_of(GREEDY)] * 5)
    assert tokens == logits.argmax(-1).tolist()


def test_no_rows() -> None:
    assert Sampler(0).sample(torch.zeros(0, 10), []) == []


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_follow_the_distribution(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=1)
    tokens = draws(SKEWED, params, 20_000)
    assert chi_square(tokens, (SKEWED / temperature).softmax(0)) < CHI_SQUARE[9]


def test_so_they_do_without_a_seed_of_their_own() -> None:
    tokens = draws(SKEWED, SamplingParams(), 20_000)
    assert chi_square(tokens, SKEWED.softmax(0)) < CHI_SQUARE[9]


def test_one_position_of_many_requests_follows_the_distribution() -> None:
    rows = [row_of(SamplingParams(), name=f"request-{i}") for i in range(20_000)]
    tokens = torch.tensor(Sampler(0).sample(SKEWED.expand(20_000, -1), rows))
    assert chi_square(tokens, SKEWED.softmax(0)) < CHI_SQUARE[9]


def test_top_k_leaves_the_k_largest_in_proportion() -> None:
    tokens = draws(SKEWED, SamplingParams(top_k=4, seed=1), 20_000)
    kept = torch.zeros(10)
    kept[[3, 7, 0, 5]] = SKEWED[[3, 7, 0, 5]].softmax(0)
    assert chi_square(tokens, kept) < CHI_SQUARE[3]


def test_top_p_leaves_the_fewest_that_make_it_up_in_proportion() -> None:
    # The four largest hold 0.872 of the mass, five 0.926.
    tokens = draws(SKEWED, SamplingParams(top_p=0.9, seed=1), 20_000)
    kept = torch.zeros(10)
    kept[[3, 7, 0, 5, 8]] = SKEWED[[3, 7, 0, 5, 8]].softmax(0)
    assert chi_square(tokens, kept) < CHI_SQUARE[4]


def test_top_p_is_a_share_of_what_top_k_left() -> None:
    # Three hold 0.898 of the four largest's mass, but only 0.784 of the mass of all.
    tokens = draws(SKEWED, SamplingParams(top_k=4, top_p=0.85, seed=1), 3000)
    assert set(tokens.tolist()) == {3, 7, 0}


def test_temperature_comes_before_top_p() -> None:
    cold = draws(SKEWED, SamplingParams(temperature=0.2, top_p=0.85, seed=1), 3000)
    hot = draws(SKEWED, SamplingParams(temperature=5.0, top_p=0.85, seed=1), 3000)
    assert set(cold.tolist()) == {3}
    assert len(set(hot.tolist())) == 8


@pytest.mark.parametrize("params", [SamplingParams(top_k=1, seed=3), SamplingParams(top_p=1e-9, seed=3)])
def test_the_narrowest_choice_is_greedy(params: SamplingParams) -> None:
    assert set(draws(SKEWED, params, 200).tolist()) == {3}


def test_top_k_beyond_the_vocabulary_is_no_limit() -> None:
    tokens = draws(SKEWED, SamplingParams(top_k=50, seed=1), 20_000)
    assert chi_square(tokens, SKEWED.softmax(0)) < CHI_SQUARE[9]


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(top_p=0.9, seed=1), 2700),
        (SamplingParams(top_k=2000, seed=1), 2000),
        (SamplingParams(top_k=2000, top_p=0.75, seed=1), 1500),
        (SamplingParams(top_k=1024, seed=1), 1024),
    ],
)
def test_a_flat_distribution_wider_than_the_first_candidates(params: SamplingParams, kept: int) -> None:
    logits = torch.linspace(1e-6, 0, 3000)  # falling, but nearly flat
    order = torch.randperm(3000, generator=torch.Generator().manual_seed(0))
    tokens = draws(logits[order], params, 3000)
    ranks = order[tokens]
    assert ranks.max() < kept + 2
    assert ranks.max() > 0.99 * kept
    twelfths = (ranks * 12 // (kept + 2)).clamp(max=11)
    assert chi_square(twelfths, torch.full((12,), 1 / 12)) < CHI_SQUARE[11]


def mixed_batch() -> tuple[Tensor, list[ScheduledRow]]:
    """Every kind of row, one with a nucleus wider than the first candidates; logits with ties."""
    kinds: Sequence[SamplingParams] = [
        GREEDY,
        SamplingParams(seed=5),
        SamplingParams(seed=5, temperature=0.3, top_k=7),
        SamplingParams(seed=6, top_p=0.9),
        SamplingParams(seed=6, top_k=50, top_p=0.4),
        SamplingParams(),
        SamplingParams(seed=8, temperature=50.0, top_p=0.95),
        SamplingParams(seed=9, min_p=0.2),
        SamplingParams(seed=9, min_p=0.01, top_p=0.9),
    ]
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(4 * len(kinds), 2000, generator=generator) * 3).bfloat16().float()
    rows = [row_of(kinds[i % len(kinds)], name=f"r{i}", position=i // 3) for i in range(len(logits))]
    return logits, rows


def test_a_row_is_chosen_as_if_it_were_alone() -> None:
    logits, rows = mixed_batch()
    together = Sampler(0).sample(logits, rows)
    alone = [Sampler(0).sample(logits[i : i + 1], rows[i : i + 1])[0] for i in range(len(rows))]
    assert together == alone
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1)).tolist()
    shuffled = Sampler(0).sample(logits[order], [rows[i] for i in order])
    assert shuffled == [together[i] for i in order]


def test_a_seed_and_a_position_fix_the_token() -> None:
    logits = torch.zeros(1, 1000)

    def token(seed: int | None, *, name: str = "r", position: int = 0, engine: int = 0) -> int | None:
        rows = [row_of(SamplingParams(seed=seed), name=name, position=position)]
        return Sampler(engine).sample(logits, rows)[0]

    assert token(1) == token(1, name="other", engine=9)
    assert token(1) != token(2)
    assert token(1) != token(1, position=1)
    assert token(-1) != token(1)
    assert token(None) == token(None)
    assert token(None) != token(None, name="other")
    assert token(None) != token(None, engine=1)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_row_without_a_choice_fails_alone(bad: float) -> None:
    logits, rows = mixed_batch()
    good = Sampler(0).sample(logits, rows)
    for i in range(7):
        broken = logits.clone()
        broken[i, 17] = bad
        tokens = Sampler(0).sample(broken, rows)
        assert tokens[i] is None
        assert [t for j, t in enumerate(tokens) if j != i] == [t for j, t in enumerate(good) if j != i]


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(), SamplingParams(top_k=3)])
def test_all_tokens_forbidden_is_no_choice(params: SamplingParams) -> None:
    assert Sampler(0).sample(torch.full((1, 9), -torch.inf), [row_of(params)]) == [None]


@pytest.mark.parametrize("params", [SamplingParams(seed=1), SamplingParams(seed=1, top_p=0.99)])
def test_forbidden_tokens_are_never_drawn(params: SamplingParams) -> None:
    logits = torch.zeros(10)
    logits[[0, 4, 9]] = -torch.inf
    assert set(draws(logits, params, 2000).tolist()) <= {1, 2, 3, 5, 6, 7, 8}


def test_a_tiny_temperature_does_not_overflow() -> None:
    params = SamplingParams(temperature=1e-30, seed=1)
    assert draws(SKEWED * 1e6, params, 10).tolist() == [3] * 10


def test_the_last_number_before_one_still_draws_a_possible_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sampler, "_number", lambda self, row: (2**24 - 1) / 2**24)
    for seed in range(50):
        logits = torch.randn(1000, generator=torch.Generator().manual_seed(seed))
        logits[-100:] = -torch.inf
        for params in (SamplingParams(), SamplingParams(top_k=900), SamplingParams(top_p=0.99)):
            (token,) = Sampler(0).sample(logits[None], [row_of(params)])
            assert token is not None
            assert logits[token] > -torch.inf


def test_numbers_are_spread_evenly() -> None:
    rows = [row_of(SamplingParams(seed=i), position=j) for i in range(100) for j in range(100)]
    numbers = [Sampler(0)._number(row) for row in rows]
    tenths = Counter(int(number * 10) for number in numbers)
    assert chi_square(torch.tensor(list(tenths.elements())), torch.full((10,), 0.1)) < CHI_SQUARE[9]
    assert all(0.0 <= number < 1.0 for number in numbers)
    assert len(set(numbers)) > 9990


@pytest.mark.parametrize("top_p", [1e-300, 1e-46, 1e-10])
def test_a_top_p_too_small_for_float32_leaves_the_likeliest(top_p: float) -> None:
    logits = torch.tensor([[0.0, 5.0, 1.0], [2.0, 1.0, 0.0]])
    params = SamplingParams(temperature=1.0, top_p=top_p)
    assert Sampler(0).sample(logits, [row_of(params), row_of(params)]) == [1, 0]


# -- min_p, biases, penalties --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(min_p=0.2, seed=1), [3, 7, 0, 5]),  # e^-0.5, e^-1 and e^-1.5 of the likeliest
        (SamplingParams(min_p=0.2, temperature=0.5, seed=1), [3, 7]),  # the temperature comes first
        (SamplingParams(min_p=0.2, top_k=3, seed=1), [3, 7, 0]),
        (SamplingParams(min_p=0.2, top_p=0.8, seed=1), [3, 7, 0]),  # a share of what min_p left
        (SamplingParams(min_p=1.0, seed=1), [3]),
    ],
)
def test_min_p_leaves_the_tokens_near_the_likeliest(params: SamplingParams, kept: list[int]) -> None:
    expected = torch.zeros(10)
    expected[kept] = (SKEWED[kept] / params.temperature).softmax(0)
    assert chi_square(draws(SKEWED, params, 20_000), expected) < CHI_SQUARE[9]


COUNTS = {0: 0, 1: 0, 3: 1, 7: 4}  # 0 and 1 stand in the prompt alone


@pytest.mark.parametrize(
    ("params", "changed"),
    [
        (SamplingParams(repetition_penalty=2.0), {0: 1.0, 1: -2.0, 3: 1.5, 7: 1.25}),
        (SamplingParams(repetition_penalty=0.5), {0: 4.0, 1: -0.5, 3: 6.0, 7: 5.0}),
        (SamplingParams(presence_penalty=1.5), {3: 1.5, 7: 1.0}),
        (SamplingParams(frequency_penalty=-0.5), {3: 3.5, 7: 4.5}),
        (
            SamplingParams(repetition_penalty=2.0, presence_penalty=1.0, frequency_penalty=0.25),
            {0: 1.0, 1: -2.0, 3: 0.25, 7: -0.75},
        ),
        (SamplingParams(logit_bias={2: 1.5, 9: -100}), {2: 2.0, 9: -100.5}),
        (SamplingParams(logit_bias={3: -4}, repetition_penalty=2.0), {0: 1.0, 1: -2.0, 3: -2.0, 7: 1.25}),
        (SamplingParams(min_tokens=3, stop_token_ids=(4, 8, 4000)), {4: -torch.inf, 8: -torch.inf}),
    ],
)
def test_logits_change_by_the_definition_and_in_the_rows_that_ask_alone(
    params: SamplingParams, changed: dict[int, float]
) -> None:
    expected = SKEWED.clone()
    for token, value in changed.items():
        expected[token] = value
    logits = SKEWED.repeat(3, 1)
    counts = COUNTS if params.penalizes else None
    rows = [row_of(SamplingParams(stop_token_ids=(4,))), row_of(params, position=2, counts=counts)]
    assert adjust(logits, [*rows, row_of(GREEDY)]) == {}
    torch.testing.assert_close(logits, torch.stack([SKEWED, expected, SKEWED]))


def test_a_stop_token_is_possible_from_min_tokens_on() -> None:
    params = SamplingParams(temperature=0.0, min_tokens=2, stop_token_ids=(3,))
    rows = [row_of(params, name=str(position), position=position) for position in range(4)]
    result = Sampler(0).choose(SKEWED.repeat(4, 1), rows)
    assert result.sampled == {"0": 7, "1": 7, "2": 3, "3": 3}


def test_adjusted_rows_are_chosen_as_if_they_were_alone() -> None:
    plain, rows = mixed_batch()
    counts = {5: 0, 17: 3, 1999: 1}
    asking = [
        row_of(SamplingParams(seed=1, repetition_penalty=1.3), name="x", counts=counts),
        row_of(SamplingParams(seed=2, logit_bias={7: 9.0}, top_k=5), name="y"),
    ]
    rows = [asking[0], *rows, asking[1]]
    logits = torch.cat([plain[:1], plain, plain[1:2]])
    together = Sampler(0).choose(logits.clone(), rows)
    for i, one in enumerate(rows):
        alone = Sampler(0).choose(logits[i : i + 1].clone(), [one])
        assert alone.sampled[one.request_id] == together.sampled[one.request_id]


def test_an_impossible_adjustment_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    rows = [
        row_of(GREEDY, name="good"),
        row_of(SamplingParams(logit_bias={10: 1.0}), name="bad"),
        row_of(SamplingParams(temperature=0.0, logit_bias={9: 50.0}), name="also good"),
        row_of(SamplingParams(min_tokens=1, stop_token_ids=tuple(range(10))), name="nothing left"),
    ]
    result = Sampler(0).choose(SKEWED.repeat(4, 1), rows)
    assert result.sampled == {"good": 3, "also good": 9}
    assert result.failed == {
        "bad": "the sampling parameters cannot be applied: token id 10 is outside the vocabulary of 10",
        "nothing left": NO_CHOICE,
    }
    assert "request bad" in caplog.text


# -- log-probabilities -----------------------------------------------------------------------------


def test_logprobs_are_of_the_models_own_logits_for_those_who_ask() -> None:
    wild = {"temperature": 3.0, "top_k": 2, "presence_penalty": 2.0, "logit_bias": {1: 100.0}}
    rows = [
        row_of(SamplingParams(logprobs=3, **wild), name="wild", counts=COUNTS),
        row_of(GREEDY, name="plain"),
        row_of(SamplingParams(temperature=0.0, logprobs=0), name="alone"),
        row_of(SamplingParams(logprobs=20, seed=1), name="all"),
    ]
    result = Sampler(0).choose(SKEWED.repeat(4, 1), rows)
    expected = SKEWED.double().log_softmax(0)
    assert set(result.logprobs) == {"wild", "alone", "all"}
    assert result.sampled["wild"] == 1
    for name, told in result.logprobs.items():
        assert told.logprob == pytest.approx(float(expected[result.sampled[name]]), abs=1e-6)
        assert [value for _, value in told.top] == pytest.approx(
            expected.sort(descending=True)[0][: len(told.top)]
        )
    assert [token for token, _ in result.logprobs["wild"].top] == [3, 7, 0]
    assert result.logprobs["alone"].top == ()
    assert len(result.logprobs["all"].top) == 10


def test_a_failed_row_has_no_logprobs_and_spoils_none() -> None:
    logits = SKEWED.repeat(2, 1)
    logits[0, 4] = torch.nan
    params = SamplingParams(temperature=0.0, logprobs=1)
    result = Sampler(0).choose(logits, [row_of(params, name="bad"), row_of(params, name="good")])
    assert set(result.failed) == {"bad"}
    assert set(result.logprobs) == {"good"}
    assert result.logprobs["good"].top[0] == (3, result.logprobs["good"].logprob)


# -- several choices of one prompt ---------------------------------------------------------------


def test_forks_choose_from_the_same_logits_as_if_alone() -> None:
    logits = torch.randn(3, 300)
    forks = tuple((f"f{number}", SamplingParams(seed=number, logprobs=1)) for number in range(8))
    rows = [
        row_of(SamplingParams(seed=1), name="before"),
        replace(row_of(SamplingParams(seed=9, logprobs=0), name="leader"), forks=forks),
        row_of(SamplingParams(), name="behind"),
    ]
    result = Sampler(0).choose(logits.clone(), rows)
    assert result.sampled.keys() == {"before", "leader", "behind", *dict(forks)}
    assert result.logprobs.keys() == {"leader", *dict(forks)}
    assert len({result.sampled[name] for name, _ in forks}) > 3
    for name, params in forks:
        alone = Sampler(0).choose(logits[1:2].clone(), [row_of(params, name=name)])
        assert alone.sampled[name] == result.sampled[name]
        assert alone.logprobs[name] == result.logprobs[name]


def test_forks_are_adjusted_once_each() -> None:
    params = SamplingParams(temperature=0.0, logit_bias={2: 5.0})
    logits = torch.tensor([[0.0, 6.0, 0.0]])  # a bias that is added twice would win
    rows = [replace(row_of(params), forks=(("f", params),))]
    assert Sampler(0).choose(logits, rows).sampled == {"r": 1, "f": 1}


def test_forks_without_a_choice_fail_each_with_the_reason() -> None:
    rows = [replace(row_of(SamplingParams()), forks=(("f", SamplingParams()),))]
    result = Sampler(0).choose(torch.full((1, 5), float("nan")), rows)
    assert (result.sampled, result.failed) == ({}, {"r": NO_CHOICE, "f": NO_CHOICE})
