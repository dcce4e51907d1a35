import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from headstart.lab.load.machine import Machine
from headstart.lab.load.report import Report, Setup
from headstart.lab.load.scenarios import Kind, Round, Scenario, Workload
from headstart.lab.load.timing import Timing, Usage

LOAD = Workload(output_tokens=3)
MACHINE = Machine("Abacus 3", 2, 16, "Linux x86_64", {"Python": "3.11.7", "headstart": "0.1.0"})


def timing(first: float, *, cached: int | None, tokens: int = 3) -> Timing:
    arrivals = tuple(100 + first + 0.05 * index for index in range(tokens))
    return Timing(100.0, arrivals, 1211, tokens, Usage(1211, cached, tokens))


def report(scenario: Scenario, *rounds: tuple[Kind, list[Timing]]) -> Report:
    setup = Setup(scenario, "http://127.0.0.1:8000", "smollm2", LOAD, 42, MACHINE)
    warmup = Round(rounds[0][0], 0, (timing(9, cached=0),))
    measured = [Round(kind, 1, tuple(timings)) for kind, timings in rounds]
    made = Report.of(setup, [warmup, *measured])
    assert made.date.tzinfo is UTC
    return Report(
        setup,
        datetime(2026, 11, 30, tzinfo=UTC),
        made.groups,
        made.warm_over_cold,
        made.warnings,
        made.rounds,
    )


FIRST_TOKEN = report(
    Scenario.FIRST_TOKEN, ("cold", [timing(1.0, cached=0)]), ("warm", [timing(0.1234, cached=1200)])
)
DECODE = report(Scenario.DECODE, ("decode", [timing(1.0, cached=None), timing(2.0, cached=None)]))
SHARED = report(
    Scenario.SHARED_PREFIX,
    ("cold", [timing(1.0, cached=0), timing(1.5, cached=1200)]),
    ("warm", [timing(0.2, cached=1200), timing(0.3, cached=1200)]),
)


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def test_first_token_in_markdown() -> None:
    assert lines(FIRST_TOKEN.markdown()) == [
        "|  | first token ms | p95 | prompt tokens | cached tokens |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| cold | 1,000.0 | 1,000.0 | 1,211 | 0 |",
        "| warm | 123.4 | 123.4 | 1,211 | 1,200 |",
        f"Medians; first token, warm / cold: 0.123. smollm2, {LOAD}; {MACHINE}; 2026-11-30.",
    ]


def test_decode_in_markdown() -> None:
    # The streams decode from 1.0 to 1.1 s and from 2.0 to 2.1 s.
    assert "| decode | n/a | 20.0 | 50.0 | 50.0 | 50.0 | 1,500.0 | 3 |" in lines(DECODE.markdown())
    assert "warm / cold" not in DECODE.markdown()


def test_shared_prefix_in_markdown() -> None:
    text = lines(SHARED.markdown())
    assert "| cold | 1,250.0 | 1,475.0 | 1.60 | 3.8 | 1,211 | 0 to 1,200 |" in text
    assert "| warm | 250.0 | 295.0 | 0.40 | 15.0 | 1,211 | 1,200 |" in text
    assert "warm / cold: 0.200" in text[-1]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("made", [FIRST_TOKEN, DECODE, SHARED], ids=str)
def test_the_table_fits(made: Report, width: int) -> None:
    out = io.StringIO()
    Console(file=out, width=width).print(made.table())
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text, "a figure was cut"
    words = " ".join(text.split())
    for shown in ("smollm2 at http://127.0.0.1:8000", "Abacus 3, 2 cores", "seed 42"):
        assert shown in words


def test_unknown_counts_are_said_to_be_unknown() -> None:
    silent = Timing(0.0, (1.0,), 1211, 1, Usage())
    text = report(Scenario.FIRST_TOKEN, ("cold", [silent]), ("warm", [silent])).markdown()
    assert "| cold | 1,000.0 | 1,000.0 | n/a | n/a |" in text


def shape(value: Any) -> Any:
    """A JSON value with each leaf replaced by its type's name, and lists by their first element's shape."""
    match value:
        case dict():
            return {name: shape(item) for name, item in value.items()}
        case list():
            return [shape(item) for item in value[:1]]
    return type(value).__name__


def test_json_has_the_shape_that_programs_rely_on() -> None:
    fields = json.loads(json.dumps(FIRST_TOKEN.fields()))
    golden = Path(__file__).with_name("load_report_shape.json")
    assert shape(fields) == json.loads(golden.read_text())
    assert fields["date"] == "2026-11-30T00:00:00+00:00"
    assert fields["warm_over_cold"] == pytest.approx(0.1234)
    assert fields["groups"]["warm"]["ttft_ms"]["median"] == pytest.approx(123.4)
    assert [each["warmup"] for each in fields["rounds"]] == [True, False, False]
    assert fields["rounds"][2]["requests"][0]["total_ms"] == pytest.approx(223.4)
