"""What ``headstart calc cost`` prints for people."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headstart.lab.calc.cost import Bill, Traffic, break_even_rate, break_even_uses, worth_of_ten_points
from headstart.lab.calc.layout import BAD, GOOD, Part, cacheable, num_tokens
from headstart.lab.calc.prices import Price, PriceTable


def show(table: PriceTable, traffic: Traffic, rows: list[tuple[Price, Bill]], console: Console) -> None:
    """Prices and a day's money for each model."""
    console.print(
        f"{traffic.requests_per_day:,} requests a day, {traffic.prompt_tokens:,} prompt tokens of which "
        f"{traffic.hit_rate:.0%} hit, {traffic.output_tokens:,} of output\n"
    )
    shown = _table("model", "input", "cached", "write", "output", "no cache", "with it", "saved", "10 points")
    for price, one in rows:
        write = price.write(traffic.ttl)
        shown.add_row(
            escape(price.model),
            _price(price.input),
            _price(price.cached),
            _price(write) if price.style == "surcharge" else "-",
            _price(price.output),
            _money(one.uncached),
            _money(one.total),
            _money(one.saved),
            _money(worth_of_ten_points(price, traffic)),
        )
    console.print(shown)
    console.print(
        "\nPrices in dollars for a million tokens, money in dollars a day. 10 points: what a hit rate ten "
        "points higher would save."
    )
    _show_break_even(traffic.ttl, [price for price, _ in rows], console)
    _show_uncached(traffic, rows, console)
    _show_dates(table, [price for price, _ in rows], console)


def show_example(
    table: PriceTable,
    found: list[tuple[Price, Bill, Bill]],
    requests_per_day: int,
    output_tokens: int,
    console: Console,
) -> None:
    """Both orders side by side, then what each costs."""
    console.print(
        f"One prompt of {num_tokens(GOOD):,} tokens in two orders; {requests_per_day:,} requests a day, "
        f"{output_tokens:,} tokens of output\n"
    )
    orders = _table("", "bad order", "tokens", "changes with", "good order", "tokens ", "changes with ")
    for number, (first, second) in enumerate(zip(BAD, GOOD, strict=True), 1):
        orders.add_row(str(number), *_part(first), *_part(second))
    console.print(orders)
    shown = _table("model", "bad: hits", "$ a day", "good: hits", "$ a day ", "difference", "no cache")
    for price, bad, good in found:
        shown.add_row(
            escape(price.model),
            f"{bad.hit_rate:.1%}",
            _money(bad.total),
            f"{good.hit_rate:.1%}",
            _money(good.total),
            _money(bad.total - good.total),
            _money(good.uncached),
        )
    console.print()
    console.print(shown)
    console.print(
        "\nHit rates are the cache core's, for 200 requests of 20 customers in turn: in whole blocks of "
        "128 tokens where the provider counts so, else to the token."
    )
    if any(price.style == "surcharge" for price, _, _ in found):
        console.print(
            f"Where writing costs, {cacheable(BAD):.0%} of the bad order and {cacheable(GOOD):.0%} of the "
            "good one are marked for the cache: all but what is new at the end. The bad one pays the "
            "surcharge each time."
        )
    _show_dates(table, [price for price, _, _ in found], console)


def _table(*names: str) -> Table:
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for name in names:
        words = name.strip() in ("model", "bad order", "good order", "changes with")
        shown.add_column(name, justify="left" if words else "right")
    return shown


def _part(part: Part) -> tuple[str, str, str]:
    return part.name, f"{part.num_tokens:,}", "-" if part.varies == "never" else part.varies


def _show_break_even(ttl: str, prices: list[Price], console: Console) -> None:
    seen = set()
    for price in prices:
        if price.style != "surcharge" or price.cached >= price.input:
            continue
        rate, uses = break_even_rate(price, ttl), break_even_uses(price, ttl)
        told = (
            f"A write for {ttl} costs {price.write(ttl) / price.input:g} times the input, a read "
            f"{price.cached / price.input:g} times: it pays from {uses} uses of a prefix within that time, "
            f"or where {rate:.1%} of what is marked hits."
        )
        if told not in seen:
            seen.add(told)
            console.print(told)


def _show_uncached(traffic: Traffic, rows: list[tuple[Price, Bill]], console: Console) -> None:
    for price, one in rows:
        if one.hit_rate < traffic.hit_rate:
            console.print(
                f"{escape(price.model)} does not cache what is shorter than {price.min_tokens:,} tokens: "
                "nothing hits."
            )


def _show_dates(table: PriceTable, prices: list[Price], console: Console) -> None:
    dates = sorted({price.published for price in prices if price.published})
    span = f", published {' to '.join(dict.fromkeys((dates[0], dates[-1])))}" if dates else ""
    console.print(
        f"\n[bold]These prices were put together on {table.collected}{span}. They change: check them before "
        "you rely on this,[/] and give your own with --prices FILE."
    )


def _price(dollars: float) -> str:
    return f"{dollars:.2f}" if round(dollars, 2) == dollars else f"{dollars:g}"


def _money(dollars: float) -> str:
    return f"{dollars:,.2f}"
