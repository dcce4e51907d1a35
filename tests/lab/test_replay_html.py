"""The page itself: whole, safe, alone, and with its figures in it."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from headstart.cache.reasons import MissReason
from headstart.lab.replay.html import render
from headstart.lab.replay.outcome import OPTIMAL, Outcome, ReplayReport, Served, Setting
from headstart.lab.traces.trace import Trace
from tests.replayed import report_of, trace_of, unbounded_at

VOID = {"meta", "input", "br", "link", "img"}
LETTERS = random.Random(5)
DOCUMENTS = [[LETTERS.randrange(1000) for _ in range(LETTERS.randrange(8, 90))] for _ in range(20)]
PROMPTS = [[*LETTERS.choice(DOCUMENTS), *LETTERS.choices(range(1000), k=9)] for _ in range(150)]
TRACE = trace_of(PROMPTS)
SETTINGS = [Setting(policy, "hash", 8, blocks) for policy in ("lru", "lfu") for blocks in (32, 64, 128)]


class Page(HTMLParser):
    """A page's elements; raises if they do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.targets: list[str] = []
        self.words: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href"):
                self.targets.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def table(self, header: str) -> list[list[str]]:
        """The rows of the first table that has a column of this name."""
        return next([[" ".join(c.split()) for c in r] for r in t[1:]] for t in self.tables if header in t[0])


@pytest.fixture(scope="module")
def report() -> ReplayReport:
    found = report_of(TRACE, [*SETTINGS, Setting("lru", "hash", 8)])
    best = [Outcome(Setting(OPTIMAL, "hash", 8, 64), found.outcomes[2].served)]
    return replace(found, outcomes=found.outcomes + best)


@pytest.fixture(scope="module")
def page(report: ReplayReport) -> Page:
    return Page(render(report, TRACE))


def test_it_is_whole_and_needs_no_network(report: ReplayReport, page: Page) -> None:
    text = render(report, TRACE)
    assert text.startswith("<!doctype html>")
    assert "://" not in text
    assert not re.search(r"@import|url\(|<link|<img|<iframe|fetch\(|XMLHttp", text)
    assert all(target.startswith("#") for target in page.targets)
    assert len(page.ids) == len(set(page.ids))
    assert {target[1:] for target in page.targets} <= set(page.ids)


def test_every_chart_is_there_in_both_widths_with_its_figures(page: Page, report: ReplayReport) -> None:
    for key in ("curve", "stack0", "stack5", "prefix", "reuse", "lengths"):
        assert {f"{key}-{width}-{part}" for width in "wn" for part in "td"} <= set(page.ids), key
    rows = page.table("capacity, blocks")
    assert ["LFU", "32"] in [row[:2] for row in rows]
    lru = next(one for one in report.outcomes if one.setting == SETTINGS[1])
    assert ["LRU", "64", f"{100 * lru.rates.token_hit_rate:.1f} %"] in rows
    assert sum(int(row[1]) for row in page.table("shared tokens")) == 150
    assert page.table("blocks needed to keep it")[-1][0] == "first use"
    assert sum(int(row[1]) for row in page.table("p90")) == 150
    assert sum(int(row[1].replace(",", "")) for row in page.table("hit")) == TRACE.num_prompt_tokens


def test_the_table_has_every_outcome(page: Page, report: ReplayReport) -> None:
    rows = page.table("full hits")
    assert len(rows) == len(report.outcomes) == 8
    assert [row[0] for row in rows] == ["LRU", "LRU", "LRU", "LFU", "LFU", "LFU", "LRU", "optimum"]
    for row, outcome in zip(rows, report.outcomes, strict=True):
        rates = outcome.rates
        four = (
            rates.token_hit_rate,
            rates.request_full_hit_rate,
            rates.request_any_hit_rate,
            rates.block_hit_rate,
        )
        assert row[4:8] == [f"{100 * rate:.1f} %" for rate in four]
    assert rows[6][1:4] == ["never evicts", "never evicts", "—"]
    assert "All with index hash, block size 8." in page.text


def test_headline_definitions_and_notes_are_in_it(page: Page) -> None:
    assert "At 64 blocks of 8 tokens LRU hits" in page.text
    for words in ("Token rate", "Hit tokens of all prompt tokens, as vLLM counts.", "The cold start is in."):
        assert words in page.text
    assert "This is a note." in page.text
    assert "(N \N{MINUS SIGN} U) / N" in page.text


def test_definitions_are_there_without_being_given(report: ReplayReport) -> None:
    text = Page(render(replace(report, definitions=[], num_warmup=50), TRACE)).text
    for words in ("Token rate", "Full hits", "Any hit", "Block rate", "first 50 requests fill the cache"):
        assert words in text


def test_names_are_escaped() -> None:
    evil = '<script>alert("1")</script>&amp;\'.jsonl'
    trace = trace_of(PROMPTS[:30], name=evil)
    # Two files, so that file names stand in the table of prefixes too.
    trace.requests.append(replace(trace.requests[0], file="<b>other</b>"))
    found = report_of(trace, [Setting("lru", "hash", 8, 64)])
    text = render(replace(found, notes=["<i>note</i>"], definitions=["<u>word</u>: <u>x</u>"]), trace)
    assert "alert(&#34;1&#34;)" in text
    for raw in ("<script>alert", "<i>note", "<u>", "<b>other"):
        assert raw not in text
    page = Page(text)
    assert page.tags.count("script") == 1
    assert evil in page.text


def test_no_text_of_prompts_unless_asked_for() -> None:
    secret = [ord(letter) for letter in "<b>secret & sound</b> words "]
    trace = trace_of([[*secret, number, number] for number in range(5)])
    found = report_of(trace, [Setting("lru", "hash", 4, 64)])

    def show(ids: object) -> str:
        return "".join(map(chr, ids))  # type: ignore[call-overload]

    assert "secret" not in render(found, trace)
    assert "No text of prompts is in this report." in Page(render(found, trace)).text
    shown = render(found, trace, show_text=show)
    assert "&lt;b&gt;secret &amp; sound&lt;/b&gt; words" in shown
    assert "No text of prompts" not in shown


def test_long_texts_are_cut() -> None:
    trace = trace_of([[1] * 400 + [number] * 2 for number in range(3)])
    shown = render(
        report_of(trace, [Setting("lru", "hash", 4, 400)]), trace, show_text=lambda ids: "abc" * len(ids)
    )
    cells = Page(shown).table("its own part begins")
    assert cells[0][-1] == ("abc" * 32)[:90] + "…"


def test_hash_ids_have_no_text() -> None:
    trace = trace_of([[1, 2, 3]] * 4, tokens_per_symbol=512)
    found = report_of(trace, [Setting("lru", "hash", 512, 8)])
    text = Page(render(found, trace, show_text=lambda _: "nonsense")).text
    assert "nonsense" not in text
    assert "Hash ids: seen in blocks of 512 tokens." in text


def test_one_capacity_makes_bars_and_no_curve() -> None:
    found = report_of(TRACE, [Setting(policy, "hash", 8, 64) for policy in ("lru", "lfu")])
    page = Page(render(found, TRACE))
    assert "bars-w-t" in page.ids
    assert "curve-w-t" not in page.ids
    assert [row[0] for row in page.table("token hit rate")][-2:] == [
        "a cache that never evicts",
        "(N \N{MINUS SIGN} U) / N, blocks",
    ]


def test_another_baseline_can_be_chosen(report: ReplayReport) -> None:
    text = Page(render(report, TRACE, baseline=SETTINGS[5])).text
    assert "At 128 blocks of 8 tokens LFU hits" in text


@pytest.mark.parametrize("prompts", [[], [[1]], [[1, 2, 3]], [[1], [1] * 40, [1] * 40]])
def test_tiny_traces_make_a_page(prompts: list[list[int]]) -> None:
    trace = trace_of(prompts)
    Page(render(report_of(trace, [Setting("lru", "hash", 2, 64), Setting("lru", "hash", 2, 128)]), trace))


def test_all_warm_up_and_optimum_alone(report: ReplayReport) -> None:
    page = Page(render(report_of(TRACE, SETTINGS[:2], warmup=150), TRACE))
    assert "No request was counted" in page.text
    alone = Page(render(replace(report, outcomes=report.outcomes[-1:]), TRACE))
    assert "Nothing was replayed but the optimum" in alone.text


def test_many_settings_of_all_kinds(report: ReplayReport) -> None:
    served = report.outcomes[0].served
    kinds = [
        Setting(policy, index, size, blocks, seqs, replicas, "random")
        for policy in ("lru", "lfu", "fifo", OPTIMAL)
        for index in ("radix", "hash")
        for size in (8, 16)
        for blocks in (64, 128, None)
        for seqs in (None, 8)
        for replicas in (1, 4)
    ]
    many = replace(report, outcomes=[Outcome(one, served) for one in kinds])
    page = Page(render(many, TRACE))
    assert len(page.table("full hits")) == len(kinds)
    assert "LRU, radix, blocks of 8, one at a time, 1 replica" in [
        row[0] for row in page.table("token hit rate")
    ]


def test_a_long_trace_makes_no_long_page() -> None:
    """As many requests and blocks as the largest public trace, in a sweep of 60 settings."""
    choose = random.Random(1)
    prompts = [[choose.randrange(3), *choose.choices(range(90_000), k=14)] for _ in range(12_031)]
    trace = trace_of(prompts, tokens_per_symbol=512)
    served = [
        Served(number, 15 * 512, 512 * (number % 14), 14 * 512, {MissReason.COLD: 512 * (15 - number % 14)})
        for number in range(len(prompts))
    ]
    setting = Setting("lru", "hash", 512, 4096)
    outcomes = [
        Outcome(replace(setting, capacity_blocks=1000 * n), served[:: 10 if n > 9 else 1])
        for n in range(1, 61)
    ]
    long = ReplayReport(trace.name, "mooncake", 512, len(prompts), 0, {512: unbounded_at(0.5, 512)}, outcomes)
    assert len(render(long, trace).encode()) < 1_500_000


def test_served_requests_may_hit_more_than_whole_blocks() -> None:
    """The radix index copies parts of blocks, and the optimum's reasons may be few."""
    trace: Trace = trace_of([[1] * 30, [1] * 30])
    outcome = Outcome(Setting("lru", "radix", 16, 64), [Served(0, 30, 0, 29, {}), Served(1, 30, 29, 29, {})])
    found = ReplayReport("t", "tokens", 1, 2, 0, {16: unbounded_at(0.5)}, [outcome])
    page = Page(render(found, trace))
    assert page.table("tokens saved")[0][:3] == ["1", "16", "55.2 %"]


def test_empty_prompts_make_a_page() -> None:
    trace = trace_of([[], [1] * 40])
    outcome = Outcome(Setting("lru", "radix", 16, 64), [Served(0, 0, 0, 0, {}), Served(1, 40, 0, 39, {})])
    Page(render(ReplayReport("t", "tokens", 1, 2, 0, {}, [outcome]), trace))
    Page(
        render(ReplayReport("t", "tokens", 1, 1, 0, {}, [replace(outcome, served=outcome.served[:1])]), trace)
    )
