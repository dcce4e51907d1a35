from __future__ import annotations

from headstart.cache import MissReason, MissReport
from headstart.server.explanations import Explanations


def report(name: str, **tokens: int) -> MissReport:
    reasons = {MissReason(reason): count for reason, count in tokens.items()}
    return MissReport(name, sum(tokens.values()), 0, reasons)


def test_prompts_are_found_by_request_and_number() -> None:
    known = Explanations()
    known.expect(None, "cmpl-a", 0)
    known.expect(None, "cmpl-a", 1)
    known.told(report("cmpl-a-1", cold=3))
    known.told(report("cmpl-a-0#2", cold=5))  # the first choices left, and a later one told for all
    found = known.find(None, "cmpl-a")
    assert found is not None
    assert found.prompts == {0: report("cmpl-a-0#2", cold=5), 1: report("cmpl-a-1", cold=3)}


def test_each_tenant_finds_its_own_alone() -> None:
    known = Explanations()
    known.expect("tom", "a", 0)
    known.expect(None, "b", 0)
    assert known.find("tom", "a") is not None
    assert known.find("eve", "a") is known.find(None, "a") is known.find("tom", "b") is None


def test_what_others_hold_is_not_even_kept() -> None:
    known = Explanations()
    known.expect("tom", "a", 0)
    known.told(report("a-0", isolated=7, cold=1))
    found = known.find("tom", "a")
    assert found is not None
    assert found.prompts[0] == report("a-0", cold=8)


def test_reports_that_nobody_expects_are_dropped() -> None:
    known = Explanations()
    known.expect(None, "a", 0)
    for name in ("b-0", "a-1", "a-x", "a", "", "#", "a-0-0"):
        known.told(report(name, cold=1))
    found = known.find(None, "a")
    assert found is not None
    assert found.prompts == {0: None}


def test_the_oldest_requests_go_first_and_prompts_are_what_counts() -> None:
    known = Explanations(most=4)
    for number in range(3):
        known.expect(None, "many", number)
    known.expect(None, "b", 0)
    assert known.find(None, "many") is not None
    known.expect(None, "c", 0)
    assert known.find(None, "many") is None
    for number in range(9):  # a single request is never cut in pieces
        known.expect(None, "huge", number)
    assert [known.find(None, name) is not None for name in ("b", "c", "huge")] == [False, False, True]
