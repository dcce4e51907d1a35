from __future__ import annotations

import pytest

from headstart.engine.request import SamplingParams, ScheduledRow, StepPlan
from headstart.errors import ConfigError
from headstart.lab.replay.costs import PRESET, CostModel

COSTS = CostModel(step=10.0, prefill_token=1.0, decode_row=3.0, attended_token=0.5)


def row(start: int, count: int, num_output_tokens: int = 0) -> ScheduledRow:
    return ScheduledRow("r", [7] * count, start, [], True, SamplingParams(), num_output_tokens)


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [
        ([], 0.0),
        ([row(0, 1)], 10 + 1),
        ([row(0, 3)], 10 + 3 + 0.5 * (0 + 1 + 2)),
        ([row(4, 2)], 10 + 2 + 0.5 * (4 + 5)),
        ([row(6, 1, num_output_tokens=1)], 10 + 3 + 0.5 * 6),
        ([row(6, 1, num_output_tokens=1)] * 2, 10 + 2 * (3 + 0.5 * 6)),
        ([row(6, 1, num_output_tokens=1), row(4, 2)], 10 + 3 + 0.5 * 6 + 2 + 0.5 * (4 + 5)),
        ([row(0, 3, num_output_tokens=2)], 10 + 3 + 0.5 * (0 + 1 + 2)),  # back from a preemption
    ],
)
def test_what_a_step_costs(rows: list[ScheduledRow], seconds: float) -> None:
    assert COSTS.step_seconds(StepPlan(tuple(rows))) == seconds


def test_parts_of_a_prompt_add_up_to_the_whole() -> None:
    assert COSTS.prefill_seconds(0, 5) + COSTS.prefill_seconds(5, 9) == COSTS.prefill_seconds(0, 9)


def test_what_is_not_named_is_as_preset() -> None:
    assert CostModel.parse("") == PRESET
    assert CostModel.parse(" step = 0.5 , decode_row=1e-3,") == CostModel(step=0.5, decode_row=0.001)


@pytest.mark.parametrize("costs", [PRESET, COSTS])
def test_it_is_printed_as_it_is_parsed(costs: CostModel) -> None:
    assert CostModel.parse(str(costs)) == costs


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("steps=1", "constants are step, prefill_token, decode_row, attended_token, not 'steps'"),
        ("step", "step must be a number of seconds, not ''"),
        ("step=fast", "step must be a number of seconds, not 'fast'"),
        ("step=-1", "step must be a number of seconds of at least 0, not -1"),
        ("step=nan", "step must be a number of seconds of at least 0, not nan"),
        ("step=inf", "at least 0, not inf"),
        ("step=1,step=2", "step is given twice"),
    ],
)
def test_what_is_no_cost_model_is_a_sentence(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        CostModel.parse(text)


def test_every_constant_is_in_the_sentences() -> None:
    told = " ".join(PRESET.describe())
    assert "29 ms" in told
    assert "0.42 ms" in told
    assert "1.2 ms" in told
    assert "the embedded model" in told
    assert "step=0.029,prefill_token=0.00042,decode_row=0.0012,attended_token=0" in told
    own = CostModel(attended_token=3e-7).describe()
    assert "0.3 µs for each token that a computed token attends to" in own[0]
    assert len(own) == 1
