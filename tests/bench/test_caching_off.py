import pytest

from bench.caching_off import OFF, ON, Verdict, markdown
from headstart.lab.load.machine import Machine
from headstart.lab.load.report import Report, Setup
from headstart.lab.load.scenarios import Kind, Round, Scenario, Workload
from headstart.lab.load.timing import Timing, Usage

MACHINE = Machine("Abacus 3", 2, 16, "Linux x86_64", {})


def report(scenario: Scenario, kind: Kind, *rounds: tuple[float, float]) -> Report:
    """Each round is one stream: when its first and its second and last token came."""
    setup = Setup(scenario, "http://fake", "fake", Workload(output_tokens=2), 1, MACHINE)
    numbered = enumerate([(99.0, 99.0), *rounds])
    return Report.of(
        setup, [Round(kind, number, (Timing(0.0, times, 1211, 2, Usage()),)) for number, times in numbered]
    )


def verdict(off_first: float = 1.0, off_end: float = 4.0, unshared: float = 2.0) -> Verdict:
    on, off = report(Scenario.SHARED_PREFIX, "warm", (0.2, 2.0)), (off_first, off_end)
    return Verdict.of(
        {ON: on, OFF: report(Scenario.SHARED_PREFIX, "warm", off)},
        {
            # The machine gets slower all the time, which is nobody's fault.
            ON: report(Scenario.UNSHARED, "unshared", (1, 2.0), (1, 4.0), (1, 8.0)),
            OFF: report(Scenario.UNSHARED, "unshared", (1, unshared), (1, 4.0), (1, 8.0)),
        },
    )


def test_rounds_are_compared_with_the_one_beside_them() -> None:
    found = verdict(unshared=4.0)
    assert found.throughput == pytest.approx(2.0)
    assert found.first_token == pytest.approx(0.2)
    assert found.unshared == pytest.approx(1.0)
    assert found.unshared_spread == pytest.approx((0.5, 1.0))
    assert found.reached


def test_each_goal_counts() -> None:
    assert verdict().reached
    assert not verdict(off_end=3.9).reached
    assert not verdict(off_first=0.6).reached


def test_a_cost_where_nothing_is_shared_is_a_miss() -> None:
    found = Verdict(throughput=3.0, first_token=0.1, unshared=1.03, unshared_spread=(1.0, 1.1))
    assert not found.reached
    assert "take 1.030 of the time (goal: 1.02; single rounds 1.000 to 1.100)" in str(found)


def test_all_rows_are_shown() -> None:
    shared = {name: report(Scenario.SHARED_PREFIX, "warm", (1, 2)) for name in (ON, OFF)}
    unshared = {name: report(Scenario.UNSHARED, "unshared", (1, 2)) for name in (ON, OFF)}
    lines = markdown(shared, unshared).splitlines()
    names = [line.split(" | ")[0] for line in lines[2:6]]
    assert names == [f"| {name}, {kind}" for kind in ("warm", "unshared") for name in (ON, OFF)]
