"""``headstart calc cost``: what a hit rate is worth in money."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from headstart.cli.calc.show_cost import show, show_example
from headstart.errors import ConfigError, HeadstartError
from headstart.lab.calc.cost import Bill, Traffic, bill, break_even_rate, break_even_uses
from headstart.lab.calc.layout import BAD, GOOD, Part, cacheable, hit_rate, num_tokens
from headstart.lab.calc.prices import Price, PriceTable, built_in, read_prices

_PROMPT_TOKENS, _HIT_RATE = 5_000, 0.6


def cost(
    models: Annotated[
        list[str] | None,
        typer.Argument(help="Names of the price table.", show_default="all of it"),
    ] = None,
    requests_per_day: Annotated[int, typer.Option(help="Requests of this kind.", min=1)] = 10_000,
    prompt_tokens: Annotated[
        int | None, typer.Option(help="Tokens of each prompt.", min=1, show_default="5000")
    ] = None,
    output_tokens: Annotated[int, typer.Option(help="Tokens of each answer.", min=0)] = 300,
    hit_rate: Annotated[
        float | None,
        typer.Option(
            help="Share of all prompt tokens that is read from the cache.",
            min=0.0,
            max=1.0,
            show_default="0.6",
        ),
    ] = None,
    cacheable: Annotated[
        float | None,
        typer.Option(
            help="Share of the prompt that is marked for the cache (cache_control), where writing costs.",
            min=0.0,
            max=1.0,
            show_default="1: all of it",
        ),
    ] = None,
    ttl: Annotated[str, typer.Option(help="How long a write lasts: 5m or 1h, where writing costs.")] = "5m",
    prices: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Your own prices, in TOML.", show_default="the built-in table"),
    ] = None,
    example: Annotated[
        bool,
        typer.Option(
            "--example",
            help="One prompt in a bad and in a good order, with the hit rates of the cache core: it has its "
            "own prompt tokens and shares.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all of it as JSON, and nothing else.")
    ] = False,
) -> None:
    """Prices for input, cached input and output times a hit rate: dollars per day.

    Knows both ways of charging: a discount on cached input (OpenAI), and a surcharge on
    writing with a larger discount on reading (Anthropic: 1.25 or 2 times, and 0.1 times).
    Prices change: each has the date at which it was published. Check them, and give your own.

    For example:

        headstart calc cost --requests-per-day 50000 --prompt-tokens 6000 --hit-rate 0.8

        headstart calc cost claude-sonnet-4.5 --hit-rate 0.15 --ttl 1h

        headstart calc cost --example
    """
    try:
        table = built_in() if prices is None else read_prices(prices)
        chosen = [table.named(name) for name in models] if models else list(table.prices.values())
        if example:
            if any(one is not None for one in (prompt_tokens, hit_rate, cacheable)):
                raise ConfigError("the example has its own --prompt-tokens, --hit-rate and --cacheable")
            found = [_compare(price, requests_per_day, output_tokens, ttl) for price in chosen]
            if as_json:
                typer.echo(json.dumps(_example_fields(table, found), indent=2))
            else:
                show_example(table, found, requests_per_day, output_tokens, Console(highlight=False))
            return
        traffic = Traffic(
            requests_per_day,
            prompt_tokens or _PROMPT_TOKENS,
            output_tokens,
            _HIT_RATE if hit_rate is None else hit_rate,
            1.0 if cacheable is None else cacheable,
            ttl,
        )
        rows = [(price, bill(price, traffic)) for price in chosen]
        if as_json:
            typer.echo(json.dumps(_fields(table, traffic, rows), indent=2))
        else:
            show(table, traffic, rows, Console(highlight=False))
    except HeadstartError as error:
        typer.echo(f"headstart calc cost: {error}", err=True)
        raise typer.Exit(1) from error


def _compare(price: Price, requests_per_day: int, output_tokens: int, ttl: str) -> tuple[Price, Bill, Bill]:
    """The bills of the bad and of the good order."""

    def of(layout: tuple[Part, ...]) -> Bill:
        rate = hit_rate(layout, steps=price.steps)
        traffic = Traffic(
            requests_per_day, num_tokens(layout), output_tokens, rate, max(rate, cacheable(layout)), ttl
        )
        return bill(price, traffic)

    return price, of(BAD), of(GOOD)


def _fields(table: PriceTable, traffic: Traffic, rows: list[tuple[Price, Bill]]) -> dict[str, Any]:
    return {
        "prices_collected": table.collected,
        "traffic": asdict(traffic),
        "models": [
            {
                "price": asdict(price),
                "per_day": _bill_fields(one),
                "break_even_hit_share": break_even_rate(price, traffic.ttl),
                "break_even_uses": break_even_uses(price, traffic.ttl),
            }
            for price, one in rows
        ],
    }


def _example_fields(table: PriceTable, found: list[tuple[Price, Bill, Bill]]) -> dict[str, Any]:
    return {
        "prices_collected": table.collected,
        "bad_order": [asdict(part) for part in BAD],
        "good_order": [asdict(part) for part in GOOD],
        "models": [
            {
                "price": asdict(price),
                "bad_per_day": _bill_fields(bad),
                "good_per_day": _bill_fields(good),
                "difference_per_day": bad.total - good.total,
            }
            for price, bad, good in found
        ],
    }


def _bill_fields(one: Bill) -> dict[str, Any]:
    return asdict(one) | {"total": one.total, "saved": one.saved}
