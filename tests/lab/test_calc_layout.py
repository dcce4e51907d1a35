from __future__ import annotations

import pytest

from headstart.lab.calc.layout import BAD, GOOD, Part, cacheable, hit_rate, num_tokens


def test_both_orders_have_the_same_parts() -> None:
    assert BAD != GOOD
    assert sorted(BAD, key=str) == sorted(GOOD, key=str)
    assert num_tokens(BAD) == 5_000


def test_nothing_hits_behind_a_clock() -> None:
    assert hit_rate(BAD) == hit_rate(BAD, steps=128) == 0.0


def test_the_good_order_by_hand() -> None:
    # 4,500 tokens are everybody's, and 350 more each customer's; the very first request finds nothing
    customers, requests = 20, 200
    tokens = (customers - 1) * 4_500 + (requests - customers) * 4_850
    assert hit_rate(GOOD) == pytest.approx(tokens / (requests * 5_000))
    in_blocks = (customers - 1) * 4_480 + (requests - customers) * 4_736
    assert hit_rate(GOOD, steps=128) == pytest.approx(in_blocks / (requests * 5_000))


def test_what_would_be_marked() -> None:
    assert cacheable(GOOD) == 4_850 / 5_000
    assert cacheable(BAD) == 4_874 / 5_000  # the clock is inside
    assert cacheable((Part("question", 10, "request"),)) == 0.0
