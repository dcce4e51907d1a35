"""What providers ask for a million tokens: the built-in table, or a file of the user's own."""

from __future__ import annotations

import datetime as dt
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from headstart.errors import ConfigError

Style = Literal["discount", "surcharge"]
_NUMBERS = ("input", "cached", "output")
_OPTIONAL = ("write_5m", "write_1h")
_TEXTS = ("provider", "source")
_KNOWN = {*_NUMBERS, *_OPTIONAL, *_TEXTS, "style", "min_tokens", "steps", "published"}


@dataclass(frozen=True, slots=True)
class Price:
    """One model's, in dollars for a million tokens.

    ``style`` "discount": cached input is cheaper, writing is free (OpenAI).  "surcharge": what is marked for
    the cache costs ``write_5m`` or ``write_1h`` when it is written (Anthropic).  Prompts shorter than
    ``min_tokens`` are not cached, and hits are multiples of ``steps``.
    """

    model: str
    style: Style
    input: float
    cached: float
    output: float
    write_5m: float | None = None
    write_1h: float | None = None
    min_tokens: int = 0
    steps: int = 1
    provider: str = ""
    published: str = ""
    source: str = ""

    def write(self, ttl: str) -> float:
        """A token written to the cache for ``5m`` or ``1h``."""
        asked = self.write_1h if ttl == "1h" else self.write_5m
        return self.input if asked is None else asked


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Prices by model, and the day on which they were put together."""

    collected: str
    prices: dict[str, Price]

    def named(self, model: str) -> Price:
        """Raises ``ConfigError`` for a model that is not in it."""
        if model not in self.prices:
            raise ConfigError(
                f"there is no price for {model!r}; there is one for {', '.join(self.prices)}; give your own "
                "in a file with --prices"
            )
        return self.prices[model]


def built_in() -> PriceTable:
    """The table that comes with headstart."""
    text = resources.files("headstart.lab.calc").joinpath("prices.toml").read_text(encoding="utf-8")
    return _table(tomllib.loads(text), "prices.toml")


def read_prices(path: Path) -> PriceTable:
    """A user's table.  Raises ``ConfigError`` for what is none, with the key that is wrong."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    return _table(content, str(path))


def _table(content: Mapping[str, Any], where: str) -> PriceTable:
    collected = content.get("collected")
    if not isinstance(collected, dt.date):
        raise ConfigError(f"{where}: collected must be the date of these prices, such as 2026-12-01")
    models = content.get("models")
    if not isinstance(models, Mapping) or not models:
        raise ConfigError(f"{where} has no [models.NAME] with prices")
    prices = {name: _price(name, entry, f"{where}: models.{name}") for name, entry in models.items()}
    return PriceTable(collected.isoformat(), prices)


def _price(name: str, entry: object, where: str) -> Price:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where} must be a table of prices")
    unknown = entry.keys() - _KNOWN
    if unknown:
        raise ConfigError(f"{where} has the unknown key {min(unknown)!r}; known: {', '.join(sorted(_KNOWN))}")
    style = entry.get("style")
    if style not in ("discount", "surcharge"):
        raise ConfigError(f"{where}: style must be discount or surcharge, not {style!r}")
    writes = {key: _dollars(entry, key, where) for key in _OPTIONAL if key in entry}
    if style == "surcharge" and "write_5m" not in writes:
        raise ConfigError(f"{where}: write_5m is missing; style surcharge needs it")
    if style == "discount" and writes:
        raise ConfigError(
            f"{where}: style discount has no {' and '.join(writes)}: writing costs nothing extra"
        )
    return Price(
        model=name,
        style=style,
        input=_dollars(entry, "input", where),
        cached=_dollars(entry, "cached", where),
        output=_dollars(entry, "output", where),
        write_5m=writes.get("write_5m"),
        write_1h=writes.get("write_1h"),
        min_tokens=_whole(entry, "min_tokens", 0, where),
        steps=_whole(entry, "steps", 1, where),
        published=str(entry.get("published", "")),
        **{key: str(entry.get(key, "")) for key in _TEXTS},
    )


def _dollars(entry: Mapping[str, Any], key: str, where: str) -> float:
    value = entry.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e6:
        raise ConfigError(f"{where}: {key} must be dollars for a million tokens, not {value!r}")
    return float(value)


def _whole(entry: Mapping[str, Any], key: str, default: int, where: str) -> int:
    value = entry.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < default:
        raise ConfigError(f"{where}: {key} must be a whole number of at least {default}, not {value!r}")
    return value
