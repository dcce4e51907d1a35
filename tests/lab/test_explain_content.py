"""Faulty logs, each with the same traffic without its fault: what is found, and at what price."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from dataclasses import replace

import pytest

from headstart.lab.explain.content import find_content
from headstart.lab.explain.explain import explain
from headstart.lab.explain.finding import Explanation, FindingKind
from headstart.lab.explain.retokenise import Retokeniser
from headstart.lab.replay.outcome import Rates, Setting
from headstart.lab.replay.replay import replay
from headstart.lab.traces.texts import PromptReader
from headstart.lab.traces.trace import Trace, TraceFormat, TraceRequest
from headstart.model.source import ModelFiles
from headstart.text import ChatTemplate, Tokenizer
from tests import faulty_logs
from tests.faulty_logs import Body, FaultyLog, Writer, chat, varied

TEMPLATE = """\
{% if enable_thinking is defined and enable_thinking %}<|im_start|>system
Think aloud.<|im_end|>
{% endif %}
{% if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
FAULTS = (
    faulty_logs.clock,
    faulty_logs.uuids,
    faulty_logs.request_ids,
    faulty_logs.user_names,
    faulty_logs.counters,
    faulty_logs.question_first,
    faulty_logs.shuffled_lines,
    faulty_logs.shuffled_examples,
    faulty_logs.shuffled_keys,
    faulty_logs.shuffled_tools,
    faulty_logs.spacing,
    faulty_logs.switches,
    faulty_logs.dropped_reasoning,
)


@pytest.fixture(scope="module")
def reader(smollm2: ModelFiles) -> PromptReader:
    """With a template that writes tools in front, and turns thinking on there."""
    return PromptReader(Tokenizer.from_directory(smollm2.tokenizer_dir), ChatTemplate(TEMPLATE))


def trace_of(bodies: list[Body], reader: PromptReader) -> Trace:
    requests = []
    retokeniser = Retokeniser(reader)  # as the reader, and faster
    for line, body in enumerate(bodies, 1):
        tokens = retokeniser.tokens(body)
        requests.append(
            TraceRequest(tokens.tobytes(), len(tokens), body=body, line=line, file="requests.jsonl")
        )
    return Trace("requests.jsonl", TraceFormat.OPENAI, requests)


def explained(bodies: list[Body], reader: PromptReader, **options: bool) -> Explanation:
    return explain(trace_of(bodies, reader), Setting(), reader, **options)


def hits(bodies: list[Body], reader: PromptReader) -> int:
    return replay(trace_of(bodies, reader), Setting()).rates.num_hit_tokens


def num_computed(rates: Rates) -> int:
    return rates.num_prompt_tokens - rates.num_hit_tokens


def faults_in(explanation: Explanation) -> list[FindingKind]:
    return [finding.kind for finding in explanation.findings if finding.kind.is_fault]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("make", FAULTS, ids=lambda make: make.__name__)
def test_the_fault_is_found_and_costs_what_was_put_in(
    make: Callable[[int], FaultyLog], seed: int, reader: PromptReader
) -> None:
    log = make(seed)
    explanation = explained(log.bodies, reader)
    healed = replay(trace_of(log.healed, reader), Setting()).rates
    injected = num_computed(explanation.rates) - num_computed(healed)
    dearest, *others = [finding for finding in explanation.findings if finding.kind.is_fault]
    assert dearest.kind is log.kind
    assert dearest.num_tokens_lost == pytest.approx(injected, rel=0.05)
    assert dearest.share_lost == pytest.approx(dearest.num_tokens_lost / explanation.rates.num_prompt_tokens)
    assert sum(other.num_tokens_lost for other in others) < 0.05 * injected
    after = dearest.token_hit_rate_after
    assert after is not None
    assert after == pytest.approx(healed.token_hit_rate, abs=0.06)
    assert after > explanation.rates.token_hit_rate + 0.15


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("make", [faulty_logs.clean, faulty_logs.clean_talks], ids=["questions", "talks"])
def test_clean_traffic_has_no_finding(
    make: Callable[[int], list[Body]], seed: int, reader: PromptReader
) -> None:
    trace = trace_of(make(seed), reader)
    assert find_content(trace, replay(trace, Setting()), reader) == []


def test_apps_with_prompts_of_their_own_are_clean(reader: PromptReader) -> None:
    writer = Writer(5)
    systems = [writer.prose(25) for _ in range(4)]
    tools = [writer.tools(3), None, None, writer.tools(2)]
    bodies = []
    for _ in range(80):
        app = writer.random.randrange(4)
        body = chat(systems[app], writer.question())
        bodies.append(body if tools[app] is None else {**body, "tools": tools[app]})
    trace = trace_of(bodies, reader)
    assert find_content(trace, replay(trace, Setting()), reader) == []


def test_equal_questions_after_different_histories_are_no_fault(reader: PromptReader) -> None:
    """Short texts that come back by chance are not stable text."""
    writer = Writer(6)
    system, common = writer.prose(30), [writer.question() for _ in range(5)]
    bodies = [
        chat(
            system,
            writer.question(),
            writer.prose(3),
            "Thanks! And then?",
            writer.prose(2),
            writer.choice(common),
        )
        if writer.random.random() < 0.5
        else chat(system, writer.choice(common))
        for _ in range(80)
    ]
    trace = trace_of(bodies, reader)
    found = find_content(trace, replay(trace, Setting()), reader)
    assert sum(candidate.finding.share_lost for candidate in found) < 0.03


def test_a_clock_in_talks_costs_their_histories_too(reader: PromptReader) -> None:
    talks = faulty_logs.clean_talks(3)
    bodies, healed = [], []
    for number, body in enumerate(talks):
        system, *turns = body["messages"]
        clock = f"Current time: 2026-03-05 10:{number % 60:02}:{number * 7 % 60:02} UTC\n"
        bodies.append({**body, "messages": [{**system, "content": clock + system["content"]}, *turns]})
        healed.append(body)
    injected = hits(healed, reader) - hits(bodies, reader)
    dearest = explained(bodies, reader).findings[0]
    assert dearest.kind is FindingKind.CLOCK
    assert dearest.num_tokens_lost == pytest.approx(injected, rel=0.05)


def test_of_two_variables_each_is_charged_what_is_behind_it(reader: PromptReader) -> None:
    writer = Writer(4)
    head, middle, tail = writer.prose(2), writer.prose(20), writer.prose(30)
    ids = random.Random(4)
    bodies = [
        chat(
            f"{head}\nCurrent time: 2026-03-05 10:{number:02}:30\n{middle}\n"
            f"Session id: {ids.getrandbits(64):016x}\n{tail}",
            writer.question(),
        )
        for number in range(50)
    ]
    second, first = explained(bodies, reader).findings[:2]
    assert (first.kind, second.kind) == (FindingKind.CLOCK, FindingKind.REQUEST_ID)
    assert first.num_tokens_lost == pytest.approx(49 * len(reader.tokens(middle)), rel=0.06)
    assert second.num_tokens_lost == pytest.approx(49 * len(reader.tokens(tail)), rel=0.06)
    assert "only once what stands in front of it (clock at token" in second.fix
    assert "only once" not in first.fix
    # The second one's rate is that of both fixes.
    assert second.token_hit_rate_after is not None
    assert first.token_hit_rate_after is not None
    assert second.token_hit_rate_after > first.token_hit_rate_after + 0.2


def test_what_hides_a_dear_fault_is_told_though_it_is_cheap(reader: PromptReader) -> None:
    """A clock right in front of shuffled lines: mending one of them alone brings nothing."""
    writer = Writer(8)
    rules, tail = writer.lines(12), writer.prose(20)
    bodies = [
        chat(
            "\n".join([f"Current time: 2026-03-05 10:{n:02}:30", *writer.random.sample(rules, 12), tail]),
            writer.question(),
        )
        for n in range(50)
    ]
    found = explained(bodies, reader)
    assert faults_in(found) == [FindingKind.SHUFFLED, FindingKind.CLOCK]
    assert "(clock at token" in found.findings[0].fix
    assert (found.findings[0].token_hit_rate_after or 0) > 0.8


def test_one_variable_in_front_of_two_prompts_is_one_finding(reader: PromptReader) -> None:
    writer = Writer(9)
    apps = [writer.prose(25), writer.prose(20)]
    bodies = [
        chat(f"Current time: 2026-03-05 10:{n:02}:30\n{writer.choice(apps)}", writer.question())
        for n in range(60)
    ]
    assert faults_in(explained(bodies, reader)) == [FindingKind.CLOCK]


def test_the_finding_says_where_and_how_often(reader: PromptReader) -> None:
    log = varied(1, FindingKind.CLOCK, lambda _, number: f"Today is 2026-03-{1 + number // 2:02}.")
    [finding] = [each for each in explained(log.bodies, reader).findings if each.kind is FindingKind.CLOCK]
    position = finding.evidence[0].position
    assert f"at token {position:,} of the prompt (in the system message)" in finding.what
    assert "differs in 50% of 60 requests" in finding.what
    before = reader.text(reader.body_tokens(log.bodies[0])[:position])
    assert before.endswith("Today is 2026-03-")
    assert [evidence.line for evidence in finding.evidence] == [1, 3]


def test_completions_and_token_ids_are_explained_too(reader: PromptReader) -> None:
    writer = Writer(2)
    stable = writer.prose(30)
    bodies: list[Body] = [
        {"prompt": f"Current time: 2026-03-05 10:{n:02}:30\n{stable}\n{writer.question()}"} for n in range(40)
    ]
    trace = trace_of(bodies, reader)
    assert faults_in(explain(trace, Setting(), reader)) == [FindingKind.CLOCK]
    bare = replace(trace, requests=[replace(request, body=None) for request in trace.requests])
    assert faults_in(explain(bare, Setting(), reader)) == [FindingKind.CLOCK]
    nameless = explain(bare, Setting())
    assert faults_in(nameless) == [FindingKind.OTHER_VARIABLE]
    assert all(evidence.text is None for finding in nameless.findings for evidence in finding.evidence)
    assert any("no text" in note for note in nameless.notes)


def test_date_lines_of_templates_are_drift(reader: PromptReader) -> None:
    writer = Writer(3)
    stable = writer.prose(30)
    head = "Cutting Knowledge Date: December 2023\nToday Date:"
    bodies: list[Body] = [
        {"prompt": f"{head} {1 + n} Mar 2026\n\n{stable}\n{writer.question()}"} for n in range(28)
    ]
    assert faults_in(explained(bodies, reader)) == [FindingKind.DRIFT]


@pytest.mark.parametrize("index", ["radix", "hash"])
@pytest.mark.parametrize("capacity", [None, 400])
def test_settings_do_not_change_what_is_found(index: str, capacity: int | None, reader: PromptReader) -> None:
    trace = trace_of(faulty_logs.clock(1).bodies, reader)
    found = explain(trace, Setting(prefix_index=index, capacity_blocks=capacity), reader)
    assert found.findings[0].kind is FindingKind.CLOCK
    assert (found.findings[0].token_hit_rate_after or 0) > found.rates.token_hit_rate + 0.7


def test_a_warm_up_does_not_count(reader: PromptReader) -> None:
    trace = trace_of(faulty_logs.clock(1).bodies, reader)
    whole = explain(trace, Setting(), reader).findings[0]
    half = explain(trace, Setting(), reader, warmup=30).findings[0]
    assert half.num_requests == 30
    assert half.num_tokens_lost == pytest.approx(whole.num_tokens_lost * 30 / 59, rel=0.01)
    assert half.share_lost <= 1


def test_hash_ids_have_no_text_and_it_is_said(reader: PromptReader) -> None:
    requests = [TraceRequest(array("i", [number, 1000, 1001]).tobytes(), 1500) for number in range(20)]
    trace = Trace("ids.jsonl", TraceFormat.MOONCAKE, requests, tokens_per_symbol=512)
    setting = Setting(block_size=512)
    assert find_content(trace, replay(trace, setting), reader) == []
    assert any("hash ids of 512 tokens" in note for note in explain(trace, setting, reader).notes)


def test_pieces_in_ever_other_company_are_told(reader: PromptReader) -> None:
    writer = Writer(7)
    documents = [writer.prose(15) for _ in range(30)]
    bodies = [
        chat(writer.prose(1), "\n\n".join([*writer.random.sample(documents, 4), writer.question()]))
        for _ in range(60)
    ]
    assert any("behind another beginning" in note for note in explained(bodies, reader).notes)


def test_privacy_leaves_no_text_of_prompts(reader: PromptReader) -> None:
    for make in (faulty_logs.user_names, faulty_logs.spacing, faulty_logs.dropped_reasoning):
        bodies = faulty_logs.disguised(make(3).bodies)
        told = repr(explained(bodies, reader, privacy=True))
        shown = repr(explained(bodies, reader))
        pieces = {
            text[at : at + 8]
            for body in bodies
            for text in faulty_logs.words_of(body)
            for at in range(len(text) - 7)
        }
        assert not [piece for piece in pieces if piece in told], make.__name__
        assert any(piece in shown for piece in pieces)


# -- answers ---------------------------------------------------------------------------------------


def talk_with_answers(
    reader: PromptReader, spell: Callable[[str], list[int]], returned: Callable[[str], str], thought: str = ""
) -> Trace:
    """Two turns each: the first's answer is recorded as ``spell`` generates it, the second has it as text."""
    writer = Writer(11)
    system = writer.prose(20)
    requests, later = [], []
    for talk in range(20):
        question, answer = writer.question(), thought + writer.prose(12)
        first = reader.body_tokens(chat(system, question))
        requests.append(
            TraceRequest(
                first.tobytes(),
                len(first),
                output=array("i", spell(answer + "<|im_end|>")).tobytes(),
                line=talk,
            )
        )
        second = reader.body_tokens(chat(system, question, returned(answer), writer.question()))
        later.append(TraceRequest(second.tobytes(), len(second), line=100 + talk))
    return Trace("answers.jsonl", TraceFormat.TOKENS, requests + later)


def test_answers_that_come_back_as_generated_are_clean(reader: PromptReader) -> None:
    trace = talk_with_answers(reader, lambda text: list(reader.tokens(text)), lambda text: text)
    outcome = replay(trace, Setting())
    assert find_content(trace, outcome, reader) == []


def test_answers_in_other_tokens_are_retokenised(reader: PromptReader) -> None:
    def spell(text: str) -> list[int]:
        """The first words letter by letter, as a sampler may choose."""
        letters = [token for letter in text[:24] for token in reader.tokens(letter)]
        return [*letters, *reader.tokens(text[24:])]

    trace = talk_with_answers(reader, spell, lambda text: text)
    found = explain(trace, Setting(), reader)
    [finding] = [finding for finding in found.findings if finding.kind is FindingKind.RETOKENISED]
    as_generated = talk_with_answers(reader, lambda text: list(reader.tokens(text)), lambda text: text)
    injected = num_computed(found.rates) - num_computed(replay(as_generated, Setting()).rates)
    assert finding.num_tokens_lost == pytest.approx(injected, rel=0.05)
    assert finding.num_requests == 20
    assert (finding.token_hit_rate_after or 0) > found.rates.token_hit_rate + 0.1


def test_answers_that_come_back_without_their_thoughts(reader: PromptReader) -> None:
    trace = talk_with_answers(
        reader,
        lambda text: list(reader.tokens(text)),
        lambda text: text.partition("</think>\n\n")[2],
        thought="<think>\nSo the reader would like to know, and will be told.\n</think>\n\n",
    )
    found = explain(trace, Setting(), reader)
    [finding] = [finding for finding in found.findings if finding.kind is FindingKind.REASONING_DROPPED]
    assert finding.num_requests == 20
    # The thoughts are in no prompt, so nobody computes them again: what is lost is what was said behind them.
    said = sum(
        trace.requests[20 + talk].num_prompt_tokens - trace.requests[talk].num_prompt_tokens
        for talk in range(20)
    )
    assert 0.5 * said < finding.num_tokens_lost < said
    assert (finding.token_hit_rate_after or 0) > found.rates.token_hit_rate + 0.1
