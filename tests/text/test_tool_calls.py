"""The contract of every form of tool calls, and what is peculiar to each."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.text.tool_calls import FORMAT_NAMES, CallPart, Parsed, Tool, detect, format_named

Call = tuple[str, dict[str, Any]]
STRINGS = {"type": "string"}
TOOLS = [
    Tool("get_weather", {"type": "object", "properties": {"city": STRINGS, "days": {"type": "integer"}}}),
    Tool("search", {"type": "object", "properties": {"query": STRINGS, "filter": {"type": "object"}}}),
    Tool("now"),
]


@dataclass
class Said:
    """What came of a text: for people, and calls, each with its name and the text of its arguments."""

    text: str = ""
    calls: list[list[str]] = field(default_factory=list)
    num_complete: int = 0

    def add(self, parsed: Parsed) -> None:
        self.text += parsed.text
        for part in parsed.calls:
            self.add_part(part)
        self.num_complete = parsed.num_complete

    def add_part(self, part: CallPart) -> None:
        if part.name is None:
            self.calls[part.number][1] += part.arguments
        else:
            assert part.number == len(self.calls)
            self.calls.append([part.name, part.arguments])

    @property
    def parsed(self) -> list[Call]:
        return [(name, json.loads(arguments)) for name, arguments in self.calls]


def read(form: str, pieces: Sequence[str], *, several: bool = True, hidden: Sequence[str] = ()) -> Said:
    parser = format_named(form).parser(TOOLS, hidden, several=several)
    said = Said()
    for piece in pieces:
        said.add(parser.push(piece))
    said.add(parser.finish())
    return said


def hermes(calls: Sequence[Call]) -> str:
    return "\n".join(f"<tool_call>\n{as_json(call, 'arguments')}\n</tool_call>" for call in calls)


def smollm(calls: Sequence[Call]) -> str:
    return "<tool_call>[{}]</tool_call>".format(",\n".join(as_json(call, "arguments") for call in calls))


def llama(calls: Sequence[Call]) -> str:
    return "<|python_tag|>" + "; ".join(as_json(call, "parameters") for call in calls)


def mistral(calls: Sequence[Call]) -> str:
    return "[TOOL_CALLS][{}]".format(", ".join(as_json(call, "arguments") for call in calls))


def mistral_named(calls: Sequence[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments)}" for name, arguments in calls)


def mistral_bare(calls: Sequence[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{name}{json.dumps(arguments)}" for name, arguments in calls)


def qwen_coder(calls: Sequence[Call]) -> str:
    written = []
    for name, arguments in calls:
        values = "".join(
            f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
            for key, value in arguments.items()
        )
        written.append(f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>")
    return "\n".join(written)


def as_json(call: Call, arguments: str) -> str:
    return json.dumps({"name": call[0], arguments: call[1]}, ensure_ascii=False)


@dataclass(frozen=True)
class Written:
    """A form, and how a model that was trained on it writes calls."""

    form: str
    write: Callable[[Sequence[Call]], str]


WAYS = [
    Written("hermes", hermes),
    Written("hermes", smollm),
    Written("llama3_json", llama),
    Written("mistral", mistral),
    Written("mistral", mistral_named),
    Written("mistral", mistral_bare),
    Written("qwen3_coder", qwen_coder),
]
CALLS: list[Call] = [
    ("get_weather", {"city": "Zürich 🌧️", "days": 3}),
    ("search", {"query": 'say "hi" \\ and\tgo', "filter": {"a": [1, {"b": None}], "c": {}}}),
    ("now", {}),
    ("search", {"query": "</tool_call> }{ ][ <tool_call> [TOOL_CALLS] <|python_tag|> ; \n done"}),
    ("unknown.tool", {"query": "x"}),
]
# Without a marker at each call, Llama's form tells calls from JSON by the names of the tools.
KNOWN_CALLS = CALLS[:-1]
BITS = [
    *(
        "<tool_call>",
        "</tool_call>",
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<function=now>",
        "</function>",
    ),
    *(
        "<parameter=city>",
        "</parameter>",
        '{"name": "now", "arguments": {',
        '{"name": "now", "parameters": {',
    ),
    *('"Q": 1', "QQ", '"Q', "\n", ";", "{", "}", "[", "]", ",", " ", "<"),
]
way_of = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.write.__name__)


def calls_for(way: Written) -> list[Call]:
    return KNOWN_CALLS if way.form == "llama3_json" else CALLS


@way_of
def test_round_trip(way: Written) -> None:
    for calls in ([call] for call in calls_for(way)):
        said = read(way.form, [way.write(calls)])
        assert (said.text, said.parsed, said.num_complete) == ("", calls, 1)
    said = read(way.form, [way.write(calls_for(way))])
    assert (said.text, said.parsed) == ("", calls_for(way))


@way_of
@given(data=st.data())
def test_every_split_gives_the_same(way: Written, data: st.DataObject) -> None:
    text = f"Let me see.\n{way.write(calls_for(way))}\nThat is {{all}} <b>."
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12).map(sorted))
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(way.form, pieces) == read(way.form, [text])
    assert read(way.form, [text]).parsed == calls_for(way)


@way_of
def test_character_by_character_and_at_every_single_cut(way: Written) -> None:
    text = f"Well: {way.write(calls_for(way)[:2])} So."
    whole = read(way.form, [text])
    assert read(way.form, list(text)) == whole
    for cut in range(len(text)):
        assert read(way.form, [text[:cut], text[cut:]]) == whole


@way_of
def test_text_before_between_and_after(way: Written) -> None:
    one, other = way.write(CALLS[:1]), way.write(CALLS[1:2])
    said = read(way.form, [f"First,\n\n{one}\nthen {other} and done. \n"])
    assert said.parsed == CALLS[:2]
    assert said.text == "First,\nthen and done. \n"
    only = read(way.form, [f"\n{one}\n\n{other}\n"])
    assert (only.text, only.parsed) == ("", CALLS[:2])


@way_of
@given(st.text(alphabet=st.sampled_from('<>[]{}/|;="\\\n abTOLC_nametoolcalfupyhrgs'), max_size=60))
def test_what_is_no_call_is_text_to_the_letter(way: Written, text: str) -> None:
    said = read(way.form, [text])
    if not said.calls and "[]" not in text:
        assert said.text == text


@way_of
def test_a_call_cut_short_is_told_as_far_as_it_goes(way: Written) -> None:
    text = way.write(CALLS[:1])
    for length in range(len(text)):
        said = read(way.form, [text[:length]])
        assert len(said.calls) <= 1
        if said.calls:
            assert said.calls[0][0] == CALLS[0][0]
        else:
            assert said.text == text[:length]
    assert read(way.form, [text[:-20]]).num_complete <= 1


@way_of
def test_arguments_are_told_as_they_come(way: Written) -> None:
    parser = format_named(way.form).parser(TOOLS)
    city = "a very long name of a city"
    text = way.write([("get_weather", {"city": city})])
    seen = Said()
    seen.add(parser.push(text[: text.index(city) + 12]))
    assert seen.calls[0][0] == "get_weather"
    assert seen.calls[0][1].endswith(city[:12])
    assert seen.num_complete == 0


@way_of
def test_the_first_part_of_a_call_is_its_name_alone(way: Written) -> None:
    parsed = format_named(way.form).parser(TOOLS).push(way.write(CALLS[:1]))
    first, *others = parsed.calls
    assert first == CallPart(0, "get_weather", "")
    assert all(part.name is None and part.arguments for part in others)


@way_of
def test_one_call_only(way: Written) -> None:
    text = f"One: {way.write(calls_for(way))} and more"
    for pieces in ([text], list(text)):
        said = read(way.form, pieces, several=False)
        assert (said.text, said.parsed, said.num_complete) == ("One:", CALLS[:1], 1)


@pytest.mark.parametrize("form", FORMAT_NAMES)
@given(st.data())
def test_nothing_of_words_is_lost(form: str, data: st.DataObject) -> None:
    """Whatever mixture of markers and broken JSON: every letter of words is in the text or in arguments."""
    text = "".join(data.draw(st.lists(st.sampled_from(BITS), max_size=15)))
    said = read(form, [text])
    told = said.text + "".join(name + arguments for name, arguments in said.calls)
    assert told.count("Q") == text.count("Q")
    assert read(form, list(text)) == said


# -- each form's own -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"nam": "now"}</tool_call>',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "now", "arguments": 3}</tool_call>',
        '<tool_call>{"name": "now", "arguments": "no json"}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {"a": }}</tool_call>',
        '<tool_call>{"name": "\\ud83d", "arguments": {}}</tool_call>',
        "<tool_call>now()</tool_call>",
        "<tool_call>",
        "a < b <tool_cal",
        "</tool_call>",
    ],
)
def test_hermes_broken_json_is_text(text: str) -> None:
    assert read("hermes", [text]) == Said(text)
    assert read("hermes", [text + "!", hermes(CALLS[:1])]).parsed == CALLS[:1]


def test_hermes_models_forget_brackets() -> None:
    forgot_one = read("hermes", ['<tool_call>{"name": "now", "arguments": {"a": 1}</tool_call> ok'])
    assert (forgot_one.text, forgot_one.calls) == (" ok", [["now", '{"a": 1}']])
    forgot_two = read("hermes", ['<tool_call>{"name": "now", "arguments": {"a": {"b": 1}</tool_call> ok'])
    assert (forgot_two.text, forgot_two.calls) == (" ok", [["now", '{"a": {"b": 1}']])
    forgot_tag = read("hermes", ['<tool_call>{"name": "now", "arguments": {}}'])
    assert (forgot_tag.text, forgot_tag.calls) == ("", [["now", "{}"]])


def test_hermes_other_ways_to_give_arguments() -> None:
    for arguments in ('"{\\"a\\": 1}"', '{"a": 1}'):
        said = read("hermes", [f'<tool_call>{{"arguments": {arguments}, "name": "now"}}</tool_call>'])
        assert said.calls == [["now", '{"a": 1}']]
    for nothing in ('{"name": "now"}', '{"name": "now", "arguments": null}', '{"id": "7", "name": "now"}'):
        assert read("hermes", [f"<tool_call>{nothing}</tool_call>"]).calls == [["now", "{}"]]
    assert read("hermes", ["<tool_call>[]</tool_call>"]) == Said()  # SmolLM2's word for no call


def test_raw_line_breaks_in_strings_become_json() -> None:
    said = read("hermes", ['<tool_call>{"name": "search", "arguments": {"query": "a\nb\t"}}</tool_call>'])
    assert said.parsed == [("search", {"query": "a\nb\t"})]


def test_llama_without_its_tag() -> None:
    said = read("llama3_json", ['{"name": "now", "parameters": {}}; {"name": "now", "parameters": {"a": 1}}'])
    assert (said.text, said.parsed) == ("", [("now", {}), ("now", {"a": 1})])
    for text in ('{"name": "Ann", "parameters": {}}', '{"name": "now"}', '{"a": {"name": "now"}}', "a; {b}"):
        assert read("llama3_json", [text]) == Said(text)


def test_mistral_ids_are_read_over() -> None:
    said = read("mistral", ['[TOOL_CALLS]now[CALL_ID]a1b2c3d4e[ARGS]{"a": 1}'])
    assert (said.text, said.calls) == ("", [["now", '{"a": 1}']])


def test_qwen_coder_takes_types_from_the_schema() -> None:
    text = (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\n42\n</parameter>\n<parameter=days>\n 42\n"
        "</parameter>\n<parameter=else>\nNaN \\n\n\n</parameter>\n</function>\n</tool_call>"
    )
    assert read("qwen3_coder", [text]).parsed == [
        ("get_weather", {"city": "42", "days": 42, "else": "NaN \\n\n"})
    ]
    assert read("qwen3_coder", [hermes(CALLS)]).parsed == CALLS  # as a call that was asked for is written


def test_special_tokens_that_begin_no_call_are_not_shown() -> None:
    said = read("mistral", ["[TOOL_CALLS] is what I would write"], hidden=["[TOOL_CALLS]"])
    assert said == Said(" is what I would write")
    said = read("llama3_json", ["<|python_tag|>print(1)"], hidden=["<|python_tag|>"])
    assert said == Said("print(1)")


@pytest.mark.parametrize("bit", ["<tool_call>{", '<tool_call>{"id": "', "[TOOL_CALLS][{"])
@pytest.mark.parametrize("form", FORMAT_NAMES)
def test_long_nonsense_is_read_once(form: str, bit: str) -> None:
    text = bit * 4000
    parser = format_named(form).parser(TOOLS)
    chars = parser._chars
    count, read_next = [0], chars.next

    def counted() -> Any:
        count[0] += 1
        return read_next()

    chars.next = counted  # type: ignore[method-assign]
    said = parser.push(text).text + parser.finish().text
    assert said == text
    assert count[0] < 5 * len(text)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ('{{ "<tool_call>\\n" }}{{ tool_call | tojson }}', "hermes"),
        ("<tool_call><function=", "qwen3_coder"),
        ('{{ "[TOOL_CALLS] [" }}', "mistral"),
        ('{{ "<|python_tag|>" }}', "llama3_json"),
        ('{{ \'{"name": "\' + name + \'", "parameters": \' }}', "llama3_json"),
    ],
)
def test_a_template_says_its_form(source: str, name: str) -> None:
    found = detect(source)
    assert found is not None
    assert found.name == name


def test_a_template_with_another_form() -> None:
    assert detect("{{ tools }}<|tool▁calls▁begin|>") is None
