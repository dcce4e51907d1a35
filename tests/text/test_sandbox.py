"""Single expressions that no clock interrupts: they are refused before they take memory or minutes."""

from __future__ import annotations

from datetime import UTC, datetime

import jinja2
import pytest

from headstart.text.sandbox import FAULTS, Sandbox


def rendered(text: str) -> str:
    sandbox = Sandbox(lambda: datetime(2026, 12, 1, tzinfo=UTC))
    sandbox.allow(5.0)
    return sandbox.template(text).render()


@pytest.mark.parametrize(
    "text",
    [
        "{{ '%0999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '{:0999999999d}'.format(1) }}",
        "{{ '{:{}}'.format(1, 999999999) }}",
        "{{ 'x'.ljust(999999999) }}",
        "{{ 'x'.center(width=999999999) }}",
        "{{ 'x'|center(999999999) }}",
        "{{ lipsum(n=100000) }}",
        "{{ ('ab' * 8000000)|list|sort }}",
        "{{ [1]|tojson(indent=60000) }}",
    ],
)
def test_what_would_be_huge_is_refused(text: str) -> None:
    with pytest.raises((jinja2.TemplateError, *FAULTS)):
        rendered(text)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("{{ '%s: %5d' % ('a', 7) }}", "a:     7"),
        ("{{ '**12345** %s' % 'b' }}", "**12345** b"),
        ("{{ '12345 {} {:>4}'.format('a', 7) }}", "12345 a    7"),
        ("{{ '123456'.ljust(8) }}|", "123456  |"),
        ("{{ 7 % 4 }}", "3"),
        ("{{ [1]|tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ '-' * 5 }}", "-----"),
    ],
)
def test_what_templates_do_is_done(text: str, result: str) -> None:
    assert rendered(text) == result
