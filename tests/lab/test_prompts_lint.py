"""Each rule finds its bad example, at its place, and leaves its good one alone."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.errors import LintError
from headstart.lab.prompts.lint import Linter
from headstart.lab.prompts.problem import LintReport, Severity
from headstart.lab.prompts.rules import RULES
from headstart.lab.traces.texts import PromptReader
from headstart.model.source import ModelFiles
from headstart.text import Tokenizer

RULE_TEXT = "You are the assistant of a library and answer in short sentences. Never guess. " * 8
UUID = "9f1c2d3e-4b5a-4678-9abc-def012345678"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def body(system: str = RULE_TEXT, user: Any = "Where are the maps?", **fields: Any) -> str:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return json.dumps({"messages": messages, **fields})


def tool(name: str, description: str = "Does it.") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {}}}


def swapped(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"description": "Does it.", "name": name, "parameters": {}}}


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
_NAMES = ["messages", "role", "content", "prompt", "tools", "function", "name", "type", "text", "body"]
CASES: dict[str, list[tuple[str, str]]] = {
    "HS001": [
        (body(f"Now: 2026-12-01 12:20:52. {RULE_TEXT}"), body(RULE_TEXT, "Hi. Now: 2026-12-01 12:20:52")),
        (body(f"Today is Tuesday. {RULE_TEXT}"), body(f"{RULE_TEXT} Today is Tuesday.")),
        (f"Today is {{date}}.\n{RULE_TEXT}", f"{RULE_TEXT}\nToday is {{date}}."),
        (f"{{{{ now() }}}} {RULE_TEXT}", f"{RULE_TEXT} {{{{ now() }}}}"),
        (f"{{datetime.now():%d.%m.%Y}} {RULE_TEXT}", f"{RULE_TEXT} {{datetime.now():%d.%m.%Y}}"),
        (f"{{start:%d.%m.%Y}} {RULE_TEXT}", f"{RULE_TEXT} {{start:%d.%m.%Y}}"),
        (json.dumps({"prompt": f"Today is Tuesday. {RULE_TEXT}"}), json.dumps({"prompt": RULE_TEXT})),
    ],
    "HS002": [
        (body(f"Trace {UUID}. {RULE_TEXT}"), body(metadata={"trace": UUID})),
        (f"${{uuid4()}} {RULE_TEXT}", f"{RULE_TEXT} ${{uuid4()}}"),
    ],
    "HS003": [
        (body(tools=[tool("add", "Request id: req_8f3k2j1h9x")]), body(tools=[tool("add")])),
        (f"{{request_id}} {RULE_TEXT}", f"{RULE_TEXT} {{request_id}}"),
        (f"{{{{session.id}}}} {RULE_TEXT}", f"{RULE_TEXT} {{{{session.id}}}}"),
    ],
    "HS004": [
        (body(f"This is turn 4 of 10. {RULE_TEXT}"), body(f"{RULE_TEXT} This is turn 4 of 10.")),
        (f"Turn %(turn)s. {RULE_TEXT}", f"{RULE_TEXT} Turn %(turn)s."),
    ],
    "HS005": [
        (body(f"The user's name is Ada Lovelace. {RULE_TEXT}"), body("The bot's name is Ada. " + RULE_TEXT)),
        (f"Hello {{{{ user.name }}}}! {RULE_TEXT}", f"I am {{{{ assistant_name }}}}! {RULE_TEXT}"),
        (f"Hello {{firstName}}! {RULE_TEXT}", f"{RULE_TEXT} Hello {{firstName}}!"),
    ],
    "HS006": [
        (body(f"Key A8fK2mQ9zL4xR7tB1c. {RULE_TEXT}"), body(f"Key getUserByIdV2AndName3. {RULE_TEXT}")),
        (f"Question: {{question}}\n{RULE_TEXT}", f"{RULE_TEXT}\nQuestion: {{question}}"),
        (f"{{whatever}} {RULE_TEXT}", f"{RULE_TEXT} {{whatever}}"),
    ],
    "HS101": [
        (body(tools=[tool("search"), tool("add")]), body(tools=[tool("add"), tool("search")])),
        (
            f"{body(tools=[tool('a'), tool('b')])}\n{body(tools=[tool('b'), tool('a')])}\n",
            f"{body(tools=[tool('a'), tool('b')])}\n{body(tools=[tool('a'), tool('b')])}\n",
        ),
    ],
    "HS102": [
        (body(tools=[tool("add"), swapped("search")]), body(tools=[tool("add"), tool("search")])),
        (f"{body(tools=[tool('a')])}\n{body(tools=[swapped('a')])}", f"{body(tools=[tool('a')])}\n" * 2),
    ],
    "HS103": [
        (body(f'{{"zone": 1, "area": 2}} {RULE_TEXT}'), body(f'{{"area": 2, "zone": 1}} {RULE_TEXT}')),
        (body(f'{{"area":1, "zone": 2}} {RULE_TEXT}'), body(f'{{"area":1,"zone":2}} {RULE_TEXT}')),
    ],
    "HS104": [
        (
            f"{{% for k, v in facts.items() %}}{{{{ k }}}}{{% endfor %}}\n{RULE_TEXT}",
            f"{{% for k, v in facts | dictsort %}}{{{{ k }}}}{{% endfor %}}\n{RULE_TEXT}",
        )
    ],
    "HS201": [
        (body(f"Be kind.  \n{RULE_TEXT.strip()}"), body(f"Be kind.\n{RULE_TEXT.strip()}")),
        (body(f"Be  kind.\n{RULE_TEXT.strip()}"), body(f"  Be kind.  Be short.\n{RULE_TEXT.strip()}")),
        (body("Be kind.\n\n\n\n\nBe short."), body("Be kind.\n\nBe short.")),
    ],
    "HS202": [
        (body(f"Be kind.\r\nBe short.\n{RULE_TEXT}"), body(f"Be kind.\nBe short.\n{RULE_TEXT}")),
        (f"Be kind.\r\n{RULE_TEXT}\r\n", f"Be kind.\n{RULE_TEXT}\n"),
    ],
    "HS203": [
        (body(f"Be\u200b kind. {RULE_TEXT}"), body(f"Be kind \U0001f469\u200d\U0001f467. {RULE_TEXT}")),
        (body(f"Be\u00a0kind. {RULE_TEXT}"), body(f"Gentil\u00a0: oui. {RULE_TEXT}")),
        (f"\ufeff{RULE_TEXT}", RULE_TEXT),
    ],
    "HS204": [(body(f"Cafe\u0301. {RULE_TEXT}"), body(f"Caf\u00e9. {RULE_TEXT}"))],
    "HS301": [
        (
            body(f"It is Tuesday. {RULE_TEXT}\nExamples:\nmaps: second floor"),
            body(f"{RULE_TEXT}\nExamples:\nmaps: second floor\nIt is Tuesday."),
        ),
        (f"{RULE_TEXT} {{date}} {{examples}} {RULE_TEXT}", f"{RULE_TEXT} {{examples}} {{date}}"),
    ],
    "HS302": [
        (
            body(user=f"Context:\n{'The maps moved. ' * 20}\nAnswer from the context alone: {'where? ' * 9}"),
            body(
                user=f"Answer from the context alone.\nContext:\n{'The maps moved. ' * 20}\nWhere are they?"
            ),
        ),
        (f"{{context}}\n{RULE_TEXT}", f"{RULE_TEXT}\n{{context}}"),
        (
            f"{{% for d in documents %}}{{{{ d.text }}}}{{% endfor %}}\n{RULE_TEXT}",
            f"{RULE_TEXT}\n{{% for d in documents %}}{{{{ d.text }}}}{{% endfor %}}",
        ),
    ],
    "HS303": [
        (
            body(user=[IMAGE, {"type": "text", "text": RULE_TEXT}]),
            body(user=[IMAGE, {"type": "text", "text": "What is it?"}]),
        ),
        (body(f"data:image/png;base64,iVBORw0KGgo= {RULE_TEXT}"), body(user="data:x/y;base64,iVBORw")),
    ],
    "HS304": [
        (body(f"It is Tuesday. {RULE_TEXT}"), body(f"{RULE_TEXT} It is Tuesday.")),
        (body("Be kind.", "Where are the maps, and where the globes? " * 4), body()),
    ],
    "HS401": [
        (body(cache_salt=UUID), body(cache_salt="tenant-7")),
        (
            "\n".join(body(cache_salt=f"{n}") for n in range(3)),
            "\n".join(body(cache_salt=f"{n}") for n in (1, 2, 1)),
        ),
    ],
    "HS402": [
        (body(RULE_TEXT * 16), body(RULE_TEXT * 16, prompt_cache_key="library-v3")),
        (body(RULE_TEXT * 16), body()),
    ],
    "HS403": [
        (body(prompt_cache_key=UUID), body(prompt_cache_key="library-v3")),
        ("\n".join(body(prompt_cache_key=f"{n}") for n in range(3)), f"{body(prompt_cache_key='1')}\n" * 3),
    ],
    "HS404": [
        (body(prompt_logprobs=1), body(logprobs=True)),
        (
            json.dumps({"prompt": RULE_TEXT, "echo": True, "logprobs": 1}),
            json.dumps({"prompt": RULE_TEXT, "echo": True}),
        ),
    ],
    "HS501": [
        ("{{ strftime_now('%d %b %Y') }}" + CHATML, CHATML),
        (CHATML + "{{ strftime_now('%d') }}", "{% set unused = strftime_now('%d') %}" + CHATML),
    ],
    "HS502": [
        (
            "{% if enable_thinking %}/think{% endif %}" + CHATML,
            CHATML + "{% if enable_thinking %}<think>{% endif %}",
        ),
        ("Reasoning: {{ reasoning_effort or 'low' }}\n" + CHATML, CHATML),
    ],
    "HS503": [
        (CHATML.replace("m.content", "m.content.split('</think>')[-1]"), CHATML),
        (
            CHATML.replace(
                "assistant\n{%", "assistant\n{% if enable_thinking is false %}<think></think>{% endif %}{%"
            ),
            CHATML.replace("assistant\n{%", "assistant\n{% if enable_thinking is false %}{% endif %}{%"),
        ),
    ],
    "HS504": [
        (
            CHATML.replace(
                "<|im_start|>", "{% if loop.last and tools %}{{ tools | tojson }}{% endif %}<|im_start|>", 1
            ),
            "{% if tools %}{{ tools | tojson }}{% endif %}" + CHATML,
        ),
        ("{{ messages | length }}" + CHATML, CHATML),
    ],
}


@pytest.fixture(scope="module")
def reader(smollm2: ModelFiles) -> PromptReader:
    return PromptReader(Tokenizer.from_directory(smollm2.tokenizer_dir))


@pytest.fixture(scope="module")
def lint(reader: PromptReader) -> Callable[[str], LintReport]:
    return lambda text: Linter(reader).lint("file", text)


def test_every_rule_has_its_examples() -> None:
    assert set(CASES) == set(RULES)


@pytest.mark.parametrize(
    ("rule", "bad", "good"), [(rule, bad, good) for rule, pairs in CASES.items() for bad, good in pairs]
)
def test_the_bad_one_is_found_and_the_good_one_is_not(
    rule: str, bad: str, good: str, lint: Callable[[str], LintReport]
) -> None:
    found = [problem for problem in lint(bad).problems if problem.rule == rule]
    assert len(found) == 1
    assert found[0].severity.rank <= RULES[rule].severity.rank
    assert rule not in [problem.rule for problem in lint(good).problems]


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_reported_with_its_worst_severity_somewhere(
    rule: str, lint: Callable[[str], LintReport]
) -> None:
    severities = [p.severity for bad, _ in CASES[rule] for p in lint(bad).problems if p.rule == rule]
    assert RULES[rule].severity in severities


def test_a_clean_body_has_no_problems(lint: Callable[[str], LintReport]) -> None:
    clean = body(RULE_TEXT.strip(), tools=[tool("add"), tool("search")], prompt_cache_key="library-v3")
    report = lint(clean)
    assert report.problems == []
    assert report.kind == "body"
    [shared] = report.sharing
    assert shared.first_variable is None
    assert shared.num_now == shared.num_after
    assert 0 < shared.num_now < shared.num_total


def test_what_is_lost_is_counted_in_tokens(reader: PromptReader) -> None:
    system = f"{RULE_TEXT}Now: 2026-12-01 12:20:52. {RULE_TEXT}"
    report = Linter(reader).lint("file", body(system))
    [problem] = [problem for problem in report.problems if problem.rule == "HS001"]
    [shared] = report.sharing
    count = len(reader.tokens(RULE_TEXT))
    assert report.unit == "tokens"
    assert count < problem.position < count + 15  # type: ignore[operator]
    assert count < problem.num_lost < count + 15  # type: ignore[operator]
    assert shared.first_variable == shared.num_now == problem.position
    # All but the clock itself, and the last message.
    assert 2 * count < shared.num_after < shared.num_total


def test_a_chats_only_message_is_a_prompt_by_itself() -> None:
    content = f"It is Tuesday. {RULE_TEXT}".strip()
    text = json.dumps({"messages": [{"role": "user", "content": content}]})
    [problem] = Linter().lint("file", text).problems
    assert (problem.rule, problem.severity) == ("HS001", Severity.WARNING)
    assert problem.what == "a date or time in the prompt"
    short = json.dumps({"messages": [{"role": "user", "content": "It is Tuesday. What is open?"}]})
    assert Linter().lint("file", short).problems == []


def test_what_varies_at_the_heads_end_is_no_problem_and_not_shared() -> None:
    text = body(f"{RULE_TEXT}It is Tuesday.")
    report = Linter().lint("file", text)
    assert report.problems == []
    [shared] = report.sharing
    assert shared.num_now == shared.num_after == len("<|im_start|>system\n") + len(RULE_TEXT + "It is ")


def test_the_worst_of_several_is_told() -> None:
    text = body(f"Founding day: 2019-05-17. {RULE_TEXT}Now: 2026-12-01 12:20:52. {RULE_TEXT.strip()}")
    [problem] = Linter().lint("file", text).problems
    assert (problem.severity, problem.excerpt) == (Severity.WARNING, "2026-12-01 12:20:52")
    assert problem.what == "a date or time in the system prompt, and 1 more in the same text"


def test_without_a_tokenizer_characters_are_counted() -> None:
    report = Linter().lint("file", body(f"Now: 2026-12-01 12:20:52. {RULE_TEXT}"))
    [problem] = [problem for problem in report.problems if problem.rule == "HS001"]
    assert report.unit == "characters"
    assert problem.num_lost is not None
    assert len(RULE_TEXT) <= problem.num_lost < len(RULE_TEXT) + 40


def test_a_place_is_exact_also_behind_escapes() -> None:
    text = (
        '{\n  "messages": [\n    {"role": "system", "content": "Caf\\u00e9 \\ud83d\\ude00\\n\\"x\\" Trace '
        + UUID
    )
    text += f' {RULE_TEXT}"}},\n    {{"role": "user", "content": "Hi"}}\n  ]\n}}'
    [problem] = [problem for problem in Linter().lint("file", text).problems if problem.rule == "HS002"]
    line = text.splitlines()[problem.line - 1]
    assert line[problem.column - 1 :].startswith(UUID)
    assert problem.part == "messages[0].content"
    assert problem.excerpt == UUID


def test_places_in_the_lines_of_a_batch() -> None:
    lines = [
        json.dumps({"custom_id": "1", "method": "POST", "body": json.loads(body())}),
        "",
        json.dumps({"request": json.loads(body(f"Trace {UUID} {RULE_TEXT}"))}),
        body(f"Trace {UUID} {RULE_TEXT}"),
    ]
    report = Linter().lint("file", "\n".join(lines))
    assert report.kind == "bodies"
    assert len(report.sharing) == 3
    [problem] = [problem for problem in report.problems if problem.rule == "HS002"]
    assert (problem.line, problem.num_bodies) == (3, 2)
    assert lines[2][problem.column - 1 :].startswith(UUID)


def test_a_byte_order_mark_before_json_is_no_fault() -> None:
    assert Linter().lint("body.json", "\ufeff" + body(RULE_TEXT.strip())).problems == []


def test_earlier_turns_may_hold_what_they_like_and_it_is_mentioned() -> None:
    messages = [
        {"role": "system", "content": RULE_TEXT},
        {"role": "user", "content": f"My trace is {UUID}."},
        {"role": "assistant", "content": "Thank you."},
        {"role": "user", "content": f"And {UUID}? {RULE_TEXT}"},
    ]
    problems = Linter().lint("file", json.dumps({"messages": messages})).problems
    assert [(p.rule, p.severity, p.part) for p in problems if p.rule == "HS002"] == [
        ("HS002", Severity.INFO, "messages[1].content")
    ]


def test_with_a_template_the_prompt_is_the_models_own(smollm2: ModelFiles) -> None:
    reader = PromptReader.from_model(smollm2.name)
    text = body(f"Trace {UUID} {RULE_TEXT}", tools=[tool("add", f"Span {UUID}")])
    report = Linter(reader, with_template=True).lint("file", text)
    by_part = {p.part: p for p in report.problems if p.rule == "HS002"}
    # This model is told of its tools behind the system prompt: all of them are lost with what varies in that,
    # and so little comes after them that a span there is not worth a word.
    assert set(by_part) == {"messages[0].content"}
    without = {p.part: p for p in Linter(reader).lint("file", text).problems if p.rule == "HS002"}
    lost = without["messages[0].content"].num_lost
    assert lost is not None
    assert (by_part["messages[0].content"].num_lost or 0) > lost
    assert report.sharing[0].num_total == len(reader.body_tokens(json.loads(text)))


def test_the_chat_template_of_a_tokenizer_config() -> None:
    template = f"{{{{ strftime_now('%d') }}}}{CHATML}"
    config = json.dumps({"bos_token": "<s>", "chat_template": template}, indent=1)
    report = Linter().lint("tokenizer_config.json", config)
    [problem] = report.problems
    assert (report.kind, problem.rule, problem.line) == ("chat template", "HS501", 3)
    assert config.splitlines()[2][problem.column - 1 :].startswith("strftime_now")
    several = [{"name": "rag", "template": "x"}, {"name": "default", "template": template}]
    [problem] = Linter().lint("file", json.dumps({"chat_template": several}, indent=1)).problems
    assert (problem.rule, problem.line) == ("HS501", 9)


def test_a_template_without_a_system_role_is_tried_without() -> None:
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    assert [
        p.rule for p in Linter().lint("file", f"{refusing}{{{{ strftime_now('%d') }}}}{CHATML}").problems
    ] == ["HS501"]
    with pytest.raises(LintError, match="never"):
        Linter().lint("file", f"{{{{ raise_exception('never') }}}}{CHATML}")


def test_in_a_jinja_template_single_braces_are_text() -> None:
    assert (
        Linter()
        .lint("file", f'Answer as {{"a": {{date}}}}. {{# note #}} {RULE_TEXT} {{{{ question }}}}')
        .problems
        == []
    )


@pytest.mark.parametrize(
    ("name", "text", "kind", "why"),
    [
        ("a.json", "", None, "is empty"),
        ("a.json", "{", None, "is not JSON"),
        ("a.json", "[]", None, "is not JSON"),
        ("a.json", '{"model": "x"}', None, "messages, or a prompt"),
        ("a.json", '{"messages": []}', None, "at least one message"),
        ("a.json", '{"messages": [7]}', None, r"messages\[0\] must be an object"),
        ("a.json", '{"messages": [{"role": "user", "content": "x"}], "tools": [1]}', None, "tools must be"),
        ("a.json", '{"prompt": [1, 2]}', None, "a prompt that is a text"),
        ("a.jsonl", f"{body()}\n{{}}\n", None, "a.jsonl:2: "),
        ("a.jsonl", f"{body()}\nnonsense\n", None, "is not JSON.*: line 2: "),
        ("a.txt", "plain text", "body", "is not JSON"),
        ("a.jinja", "{% for m in messages %}", "template", None),
        ("deep.json", "[" * 100_000, None, "is not JSON"),
    ],
)
def test_what_cannot_be_checked(name: str, text: str, kind: Any, why: str | None) -> None:
    if why is None:
        Linter().lint(name, text, kind)
        return
    with pytest.raises(LintError, match=why):
        Linter().lint(name, text, kind)


LETTERS = st.sampled_from("ab 1:-{}%#'\\\n\u200b\u0301\ud800") | st.characters()
texts = st.text(LETTERS, max_size=30)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(_NAMES), anything), st.integers(0, 1))
def test_whatever_a_body_holds_it_is_checked_or_refused(fields: dict[str, Any], nested: int) -> None:
    message = {"role": "user", **fields}
    text = json.dumps([fields, {"messages": [message, message], **fields}][nested])
    with contextlib.suppress(LintError):
        for problem in Linter().lint("file", text).problems:
            assert problem.line == 1
            assert 1 <= problem.column <= len(text)


@settings(max_examples=150)
@given(st.lists(st.sampled_from(["{", "}", "{{", "}}", "{%", "%}", "for x in ", "messages", " ", "now()"])))
def test_whatever_a_template_holds_it_is_checked_or_refused(pieces: list[str]) -> None:
    with contextlib.suppress(LintError):
        Linter().lint("file", "".join(pieces), "template")


@pytest.mark.parametrize(
    "unit", [" ", "{% ", "{{ a ", "{# ", "<% ", "${ ", "{a ", "{% for x in ", "\n", "e\u0301", '{"a":']
)
def test_hostile_texts_take_linear_time(unit: str) -> None:
    # Not timed: what backtracks would run into the limit for one test.
    text = unit * (10_000 // len(unit))
    Linter().lint("file", f"x{text}x", "template")
    Linter().lint("file", body(f"x{text}x"))


def test_the_documentation_of_a_rule_has_both_sides() -> None:
    for rule in RULES.values():
        text = rule.documentation()
        assert text.startswith(f"{rule.id}: {rule.title} ({rule.severity})\n")
        assert f"Bad:   {rule.bad}" in text
        assert f"Good:  {rule.good}" in text
