from __future__ import annotations

import json
from typing import Any

import pytest

from headstart.lab.explain.parts import (
    LineOrder,
    MessageOrder,
    Part,
    Spacing,
    Switches,
    ToolKeys,
    ToolOrder,
    texts,
    with_texts,
)

Body = dict[str, Any]
LINES = ["- never lie to anyone", "- always be short", "- do not shout at people"]


def chat(*contents: str, **more: Any) -> Body:
    return {"messages": [{"role": "user", "content": content} for content in contents], **more}


def tool(name: str, **more: Any) -> Body:
    return {"type": "function", "function": {"name": name, **more}}


def settled(part: type[Part], *bodies: Body) -> list[Any]:
    one = part(bodies)  # type: ignore[call-arg]
    return [one.settle(body) for body in bodies]


def test_tools_get_their_first_order() -> None:
    a, b, c = tool("a"), tool("b"), tool("c")
    first, second, other = settled(
        ToolOrder, chat("1", tools=[b, a]), chat("2", tools=[a, b]), chat("3", tools=[c, a])
    )
    assert first["tools"] == second["tools"] == [b, a]
    assert second["messages"] == chat("2")["messages"]
    assert other["tools"] == [c, a]


def test_tools_that_come_twice_stay_twice() -> None:
    a, b = tool("a"), tool("b")
    _, second = settled(ToolOrder, chat("1", tools=[a, b, a]), chat("2", tools=[a, a, b]))
    assert second["tools"] == [a, b, a]


def test_keys_of_tools_get_their_first_order() -> None:
    _, second = settled(
        ToolKeys,
        chat("1", tools=[tool("a", x=1, y={"p": 1, "q": 2})]),
        chat("2", tools=[tool("a", y={"q": 2, "p": 1}, x=1)]),
    )
    assert json.dumps(second["tools"]) == json.dumps([tool("a", x=1, y={"p": 1, "q": 2})])


def test_messages_that_many_requests_have_get_their_first_order() -> None:
    bodies = [chat("one", "two", f"ask {n}") for n in range(3)] + [chat("two", "one", "ask more")]
    assert [message["content"] for message in settled(MessageOrder, *bodies)[3]["messages"]] == [
        "one",
        "two",
        "ask more",
    ]


def test_messages_of_one_talk_stay_where_they_are() -> None:
    bodies = [chat("one", "two", "ask"), chat("two", "one", "ask")]
    assert settled(MessageOrder, *bodies) == bodies


def test_lines_get_their_first_order_around_what_differs() -> None:
    bodies = [chat("\n".join([*LINES, f"It is {n} o'clock"])) for n in range(3)]
    mixed = chat("\n".join([LINES[2], "It is 9 o'clock", LINES[0], LINES[1]]))
    assert texts(settled(LineOrder, *bodies, mixed)[3]) == [
        "\n".join([LINES[0], "It is 9 o'clock", *LINES[1:]])
    ]


def test_keys_of_json_in_a_line_get_their_first_order() -> None:
    one, other = json.dumps({"city": "Rome", "zip": 187}), json.dumps({"zip": 187, "city": "Rome"})
    assert texts(settled(LineOrder, *[chat(one)] * 3, chat(other))[3]) == [one]


def test_lines_that_few_have_stay_where_they_are() -> None:
    bodies = [chat("\n".join(LINES)), chat("\n".join(reversed(LINES)))]
    assert settled(LineOrder, *bodies) == bodies


@pytest.mark.parametrize("other", ["a b\n\nc", "a  b c ", "a b\r\nc", "a\tb c"])
def test_white_space_becomes_what_it_was_first(other: str) -> None:
    first, second = settled(Spacing, chat("a b c"), chat(other))
    assert texts(second) == texts(first) == ["a b c"]


def test_white_space_of_lines_does_too_where_the_rest_differs() -> None:
    _, second = settled(Spacing, chat("a b\nmore 1"), chat("a  b\nmore 2"))
    assert texts(second) == ["a b\nmore 2"]


def test_switches_become_what_most_requests_have() -> None:
    def body(**switches: Any) -> Body:
        return chat("x", chat_template_kwargs={"same": 1, **switches})

    found = settled(Switches, body(think=True), body(think=True), body(think=False), body())
    assert [each["chat_template_kwargs"] for each in found] == [{"same": 1, "think": True}] * 4


def test_a_switch_that_few_requests_have_goes() -> None:
    bodies = [chat("x"), chat("x"), chat("x", chat_template_kwargs={"think": True})]
    assert settled(Switches, *bodies)[2]["chat_template_kwargs"] == {}


@pytest.mark.parametrize("part", [ToolOrder, ToolKeys, MessageOrder, LineOrder, Spacing, Switches])
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": "none"},
        {"messages": [None, {"role": "user"}, {"content": 3}]},
        {"messages": [], "tools": "none", "chat_template_kwargs": []},
        {"prompt": [1, 2, 3]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}, "x"]}]},
    ],
)
def test_bodies_of_any_shape_are_left_alone(part: type[Part], body: Body) -> None:
    assert settled(part, body, body, body) == [body] * 3


def test_all_texts_are_changed_and_nothing_else() -> None:
    body = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]},
            {"role": "assistant", "content": None},
            {"role": "user", "content": "b"},
        ],
        "n": 1,
    }
    assert texts(body) == ["a", "b"]
    assert texts(with_texts(body, str.upper)) == ["A", "B"]
    assert with_texts(body, str) is body
    assert with_texts({"prompt": "a"}, str.upper) == {"prompt": "A"}
