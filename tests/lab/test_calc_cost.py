from __future__ import annotations

import pytest

from headstart.errors import ConfigError
from headstart.lab.calc.cost import Traffic, bill, break_even_rate, break_even_uses, worth_of_ten_points
from headstart.lab.calc.prices import Price

DISCOUNT = Price("discount", "discount", input=2.0, cached=0.5, output=8.0, min_tokens=1024)
SURCHARGE = Price("surcharge", "surcharge", 3.0, 0.3, 15.0, write_5m=3.75, write_1h=6.0, min_tokens=1024)


def test_a_discount_by_hand() -> None:
    # 1,000 requests of 10,000 tokens are 10 million: 4 of them read, 6 computed; 0.5 million of output
    one = bill(DISCOUNT, Traffic(1_000, 10_000, 500, 0.4))
    assert (one.read, one.written, one.plain, one.output) == pytest.approx((2.0, 0.0, 12.0, 4.0))
    assert one.total == pytest.approx(18.0)
    assert one.uncached == pytest.approx(24.0)
    assert one.saved == pytest.approx(6.0)


def test_a_surcharge_by_hand() -> None:
    # 4 million read, 4 of the marked 8 written, 2 after the mark
    one = bill(SURCHARGE, Traffic(1_000, 10_000, 0, 0.4, cacheable=0.8))
    assert (one.read, one.written, one.plain) == pytest.approx((1.2, 15.0, 6.0))
    hour = bill(SURCHARGE, Traffic(1_000, 10_000, 0, 0.4, cacheable=0.8, ttl="1h"))
    assert hour.written == pytest.approx(24.0)


def test_without_hits_a_discount_costs_nothing_and_a_surcharge_does() -> None:
    traffic = Traffic(1_000, 10_000, 500, 0.0)
    assert bill(DISCOUNT, traffic).saved == 0
    assert bill(SURCHARGE, traffic).saved == pytest.approx(-0.25 * 30)


@pytest.mark.parametrize(("ttl", "rate", "uses"), [("5m", 0.25 / 1.15, 2), ("1h", 1.0 / 1.9, 3)])
@pytest.mark.parametrize("cacheable", [1.0, 0.6])
def test_break_even(ttl: str, rate: float, uses: int, cacheable: float) -> None:
    found = break_even_rate(SURCHARGE, ttl)
    assert found == pytest.approx(rate)
    even = bill(SURCHARGE, Traffic(1_000, 10_000, 0, found * cacheable, cacheable, ttl))
    assert even.saved == pytest.approx(0, abs=1e-9)
    assert break_even_uses(SURCHARGE, ttl) == uses
    write = SURCHARGE.write(ttl)
    assert write + (uses - 1) * 0.3 < uses * 3.0
    assert write + (uses - 2) * 0.3 >= (uses - 1) * 3.0


def test_writing_for_nothing_pays_from_the_second_use() -> None:
    assert break_even_rate(DISCOUNT, "5m") == 0
    assert break_even_uses(DISCOUNT, "5m") == 2
    assert break_even_uses(Price("flat", "discount", 1.0, 1.0, 1.0), "5m") is None


@pytest.mark.parametrize("price", [DISCOUNT, SURCHARGE])
def test_ten_points(price: Price) -> None:
    less, more = (Traffic(1_000, 10_000, 500, rate) for rate in (0.3, 0.4))
    assert worth_of_ten_points(price, less) == pytest.approx(
        bill(price, less).total - bill(price, more).total
    )


def test_short_prompts_are_not_cached() -> None:
    traffic = Traffic(1_000, 1_000, 0, 0.9)
    for price in (DISCOUNT, SURCHARGE):
        one = bill(price, traffic)
        assert (one.hit_rate, one.saved) == (0.0, 0.0)
    # of 2,000 tokens with half of them marked, 1,000 are too few
    assert bill(SURCHARGE, Traffic(1_000, 2_000, 0, 0.4, cacheable=0.5)).hit_rate == 0
    assert bill(SURCHARGE, Traffic(1_000, 2_048, 0, 0.4, cacheable=0.5)).hit_rate == 0.4


def test_what_cannot_be() -> None:
    with pytest.raises(ConfigError, match=r"a hit rate of 60\.0% is more than the 50\.0% of the prompt"):
        Traffic(1, 1, 1, 0.6, cacheable=0.5)
    with pytest.raises(ConfigError, match="--ttl must be 5m or 1h, not '10m'"):
        Traffic(1, 1, 1, 0.6, ttl="10m")
