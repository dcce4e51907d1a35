"""Tools in chats: what the model is told, held to and heard to say, over the fake engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from headstart.config import ServerConfig
from headstart.server.app import build_app
from headstart.server.choice import PLAINLY, Piece
from headstart.server.expected_calls import ExpectedCalls
from headstart.text import ChatTemplate
from headstart.text.tool_calls import Tool
from headstart.text.tool_calls.mistral import Mistral

URL = "/v1/chat/completions"
QUESTION = [{"role": "user", "content": "Weather?"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "now"}},
]
TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
TWO = f'Let me see.\n{CALL}\n<tool_call>{{"name": "now", "arguments": {{}}}}</tool_call>'


@pytest.fixture
def client(engine: Any) -> Iterator[TestClient]:
    with TestClient(build_app(engine, engine.tokenizer, ChatTemplate(TEMPLATE))) as http:
        yield http


def choice_of(client: TestClient, **fields: Any) -> dict[str, Any]:
    response = client.post(URL, json={"messages": QUESTION, "tools": TOOLS, **fields})
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    return dict(choice)


def deltas_of(client: TestClient, **fields: Any) -> list[dict[str, Any]]:
    """The choices of a stream's chunks."""
    body = {"messages": QUESTION, "tools": TOOLS, "stream": True, **fields}
    events = client.post(URL, json=body).text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: "))["choices"][0] for event in events[:-2]]


def accumulated(choices: list[dict[str, Any]]) -> dict[str, Any]:
    """A stream put together as clients do it."""
    message: dict[str, Any] = {"content": None, "tool_calls": []}
    for choice in choices:
        delta = choice["delta"]
        if delta.get("content") is not None:
            message["content"] = (message["content"] or "") + delta["content"]
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(message["tool_calls"])
                assert (call["type"], call["function"]["arguments"]) == ("function", "")
                message["tool_calls"].append({"name": call["function"]["name"], "arguments": ""})
            else:
                assert set(call) == {"index", "function"}
                message["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
    return {**message, "finish_reason": choices[-1]["finish_reason"]}


def as_accumulated(choice: dict[str, Any]) -> dict[str, Any]:
    message = choice["message"]
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return {"content": message["content"], "tool_calls": calls, "finish_reason": choice["finish_reason"]}


def prompt_of(engine: Any) -> str:
    text: str = engine.tokenizer.decode(engine.submitted[-1][0])
    return text


def error_of(client: TestClient, **fields: Any) -> dict[str, Any]:
    response = client.post(URL, json={"messages": QUESTION, "tools": TOOLS, **fields})
    assert response.status_code == 400, response.text
    return dict(response.json()["error"])


# -- calls in an answer ------------------------------------------------------------------------------


def test_a_call_has_openais_shape(client: TestClient, engine: Any) -> None:
    engine.answer = CALL
    choice = choice_of(client)
    (call,) = choice["message"].pop("tool_calls")
    assert call.pop("id").startswith("call_")
    assert call == {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    assert choice["message"] == {"role": "assistant", "content": None, "refusal": None}
    assert choice["finish_reason"] == "tool_calls"


def test_text_and_several_calls(client: TestClient, engine: Any) -> None:
    engine.answer = TWO
    message = choice_of(client)["message"]
    assert message["content"] == "Let me see."
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["weather", "now"]
    assert len({call["id"] for call in message["tool_calls"]}) == 2


def test_the_stream_of_a_call(client: TestClient, engine: Any) -> None:
    engine.answer = CALL
    first, begin, *middle, last = [choice["delta"] for choice in deltas_of(client)]
    assert first == {"role": "assistant", "content": None}
    assert begin["tool_calls"][0].pop("id").startswith("call_")
    assert begin == {
        "tool_calls": [{"index": 0, "type": "function", "function": {"name": "weather", "arguments": ""}}]
    }
    assert [delta["tool_calls"][0]["function"]["arguments"] for delta in middle] == list('{"city": "Rome"}')
    assert last == {}
    assert deltas_of(client)[-1]["finish_reason"] == "tool_calls"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    answer=st.lists(st.sampled_from([CALL, TWO, " ", "\n", "a < b", "<tool_", "Ü", CALL[:40]]), max_size=4)
)
def test_a_stream_and_a_whole_answer_say_the_same(client: TestClient, engine: Any, answer: list[str]) -> None:
    engine.answer = "".join(answer)
    whole = as_accumulated(choice_of(client))
    streamed = accumulated(deltas_of(client))
    assert {**streamed, "content": streamed["content"] or ""} == {**whole, "content": whole["content"] or ""}


def test_text_that_might_begin_a_call_is_held_back_and_released(client: TestClient, engine: Any) -> None:
    engine.answer = "x <tool_box> y"
    texts = [choice["delta"]["content"] for choice in deltas_of(client)[1:-1]]
    assert texts == ["x", " <tool_b", *"ox>", " y"]
    assert choice_of(client)["message"]["content"] == engine.answer


def test_a_call_cut_short(client: TestClient, engine: Any) -> None:
    engine.answer = CALL
    choice = choice_of(client, max_tokens=len(CALL) - 17)
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Ro'


def test_one_call_at_a_time_ends_the_answer(client: TestClient, engine: Any) -> None:
    engine.answer = f"{TWO} and so on"
    choice = choice_of(client, parallel_tool_calls=False)
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["weather"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Let me see.", "tool_calls")
    assert len(engine.aborted) == 1  # the engine would have gone on
    streamed = accumulated(deltas_of(client, parallel_tool_calls=False))
    assert streamed == as_accumulated(choice)


def test_each_choice_has_its_own_calls(client: TestClient, engine: Any) -> None:
    engine.answer, engine.others = CALL, ("none needed", TWO)
    response = client.post(URL, json={"messages": QUESTION, "tools": TOOLS, "n": 3})
    reasons = [choice["finish_reason"] for choice in response.json()["choices"]]
    assert reasons == ["tool_calls", "stop", "tool_calls"]
    counts = [len(choice["message"].get("tool_calls", ())) for choice in response.json()["choices"]]
    assert counts == [1, 0, 2]


def test_without_tools_and_with_choice_none_all_is_text(client: TestClient, engine: Any) -> None:
    engine.answer = CALL
    assert choice_of(client, tools=None)["message"]["content"] == CALL
    choice = choice_of(client, tool_choice="none")
    assert (choice["message"]["content"], choice["finish_reason"]) == (CALL, "stop")
    assert "<tools>" in prompt_of(engine)  # so that the prompt begins as the other turns' do


def test_logprobs_and_usage_count_every_token(client: TestClient, engine: Any) -> None:
    engine.answer = CALL
    choice = choice_of(client, logprobs=True)
    assert "".join(token["token"] for token in choice["logprobs"]["content"]) == CALL
    streamed = deltas_of(client, logprobs=True)
    tokens = [token for choice in streamed for token in (choice["logprobs"] or {}).get("content", ())]
    assert "".join(token["token"] for token in tokens) == CALL


# -- what the model is told --------------------------------------------------------------------------


def test_templates_get_tools_as_they_came_and_arguments_as_objects(client: TestClient, engine: Any) -> None:
    tools = [{"function": {"parameters": CITY, "x-own": 1, "name": "weather"}, "type": "function"}]
    function = {"name": "weather", "arguments": '{"city":"Rome"}'}
    messages = [
        *QUESTION,
        {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "a", "content": "21 degrees"},
    ]
    choice_of(client, messages=messages, tools=tools)
    assert prompt_of(engine) == (
        f"<tools>{json.dumps(tools)}</tools>[user]Weather?[assistant]"
        '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>[tool]21 degrees[assistant]'
    )


def test_a_template_that_knows_no_tools(engine: Any) -> None:
    template = ChatTemplate("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]")
    function = {"name": "weather", "arguments": '{"city":"Rome"}'}
    messages = [
        {"role": "system", "content": "Be brief."},
        *QUESTION,
        {
            "role": "assistant",
            "content": "Well.",
            "tool_calls": [{"id": i, "type": "function", "function": function} for i in "ab"],
        },
        {"role": "tool", "tool_call_id": "a", "content": "21"},
        {"role": "tool", "tool_call_id": "b", "content": "22"},
    ]
    engine.answer = CALL
    with TestClient(build_app(engine, engine.tokenizer, template)) as client:
        assert choice_of(client, messages=messages)["finish_reason"] == "tool_calls"
        prompt = prompt_of(engine)
        choice_of(client, messages=messages[:2])
        assert prompt.startswith(prompt_of(engine))
    written = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    assert prompt.startswith("[system]Be brief.\n\nYou can call")
    assert f"<tools>\n{json.dumps(TOOLS[0])}\n{json.dumps(TOOLS[1])}\n</tools>" in prompt
    assert prompt.endswith(
        f"[user]Weather?[assistant]Well.\n{written}\n{written}[user]<tool_response>\n21\n</tool_response>\n"
        "<tool_response>\n22\n</tool_response>[assistant]"
    )


def test_the_older_form(client: TestClient, engine: Any) -> None:
    engine.answer = CALL
    functions = [tool["function"] for tool in TOOLS]
    choice = choice_of(client, tools=None, functions=functions)
    called = {"name": "weather", "arguments": '{"city": "Rome"}'}
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "function_call": called,
    }
    assert choice["finish_reason"] == "function_call"
    streamed = [choice["delta"] for choice in deltas_of(client, tools=None, functions=functions)]
    parts = [delta["function_call"] for delta in streamed if "function_call" in delta]
    assert parts[0] == {"name": "weather", "arguments": ""}
    assert "".join(part["arguments"] for part in parts) == called["arguments"]
    messages = [
        *QUESTION,
        {"role": "assistant", "content": None, "function_call": called},
        {"role": "function", "name": "weather", "content": "21"},
    ]
    choice_of(client, messages=messages, tools=None, functions=functions, function_call="none")
    assert prompt_of(engine).endswith(f"[user]Weather?[assistant]{CALL}[tool]21[assistant]")


# -- calls that must be made ---------------------------------------------------------------------------


def grammar_of(client: TestClient, engine: Any, **fields: Any) -> str:
    engine.answer = CALL
    choice_of(client, **fields)
    wanted = engine.submitted[-1][1].structured_outputs
    assert wanted is not None
    assert wanted.origin == "tools"
    grammar: str = wanted.grammar
    return grammar


def test_required_calls_are_a_grammar_of_all_tools(client: TestClient, engine: Any) -> None:
    grammar = grammar_of(client, engine, tool_choice="required")
    assert '{\\"name\\": \\"weather\\"' in grammar
    assert '{\\"name\\": \\"now\\"' in grammar
    assert '"start: ' not in grammar
    assert grammar.startswith('start: tagged ("\\n" tagged)*\n')
    alone = grammar_of(client, engine, tool_choice="required", parallel_tool_calls=False)
    assert alone.startswith("start: tagged\n")


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": {"type": "function", "function": {"name": "now"}}},
        {
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "now"}}],
                },
            }
        },
        {"tools": None, "functions": [tool["function"] for tool in TOOLS], "function_call": {"name": "now"}},
    ],
)
def test_a_named_tool_is_the_only_one_in_the_grammar(client: TestClient, engine: Any, fields: Any) -> None:
    grammar = grammar_of(client, engine, **fields)
    assert '\\"now\\"' in grammar
    assert "weather" not in grammar
    assert "weather" in prompt_of(engine)  # and yet the prompt is the same
    assert grammar.startswith("start: tagged\n")


def test_auto_and_none_hold_the_model_to_nothing(client: TestClient, engine: Any) -> None:
    for choice in (None, "auto", "none"):
        choice_of(client, tool_choice=choice)
        assert engine.submitted[-1][1].structured_outputs is None


# -- what is refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": None, "tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "there are no tools"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "nope"}}},
            "tool_choice",
            "names 'nope', which is not among the tools",
        ),
        ({"tool_choice": "sometimes"}, "tool_choice", 'must be "none", "auto", "required"'),
        ({"functions": [{"name": "now"}]}, "functions", "the older form of tools"),
        ({"tools": [{"type": "function"}]}, "tools", '{"type": "function"'),
        ({"tools": [{"type": "web_search"}]}, "tools", '{"type": "function"'),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools", "letters, digits"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": 3}}}]}
            | {"tool_choice": "required"},
            "tools",
            "tools",
        ),
        (
            {"messages": [*QUESTION, {"role": "assistant", "tool_calls": [{"id": "1"}]}]},
            "messages[1].tool_calls",
            "JSON as a string",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(client: TestClient, fields: Any, param: str, words: str) -> None:
    error = error_of(client, **fields)
    assert error["param"] == param
    assert words in error["message"]


def test_a_template_with_a_form_of_its_own_is_refused_until_told(engine: Any) -> None:
    template = ChatTemplate("{{ tools }}{{ messages[0].content }}")
    with TestClient(build_app(engine, engine.tokenizer, template)) as client:
        error = error_of(client)
        assert (error["param"], error["code"]) == ("tools", "unsupported_tool_format")
        assert "--tool-call-parser" in error["message"]
        assert choice_of(client, tool_choice="none")["finish_reason"] == "stop"
    config = ServerConfig(tool_call_parser="hermes")
    with TestClient(build_app(engine, engine.tokenizer, template, config)) as client:
        engine.answer = CALL
        assert choice_of(client)["finish_reason"] == "tool_calls"


def test_mistrals_ids_have_nine_letters_and_digits(engine: Any) -> None:
    template = ChatTemplate('{{ tools }}{{ messages[0].content }}{{ "[TOOL_CALLS]" }}')
    engine.answer = '[TOOL_CALLS][{"name": "now", "arguments": {}}]'
    with TestClient(build_app(engine, engine.tokenizer, template)) as client:
        (call,) = choice_of(client)["message"]["tool_calls"]
    assert len(call["id"]) == 9
    assert call["id"].isalnum()


def test_a_marker_that_is_a_special_token_is_seen_and_not_shown() -> None:
    named = Mistral()
    expected = ExpectedCalls(named, [Tool("now")], {"[TOOL_CALLS]": 7})
    assert expected.telling(PLAINLY).visible == {7}
    grammar = named.grammar([Tool("now")], expected._spell, several=False)
    assert grammar.startswith('start: <[7]> "[" call "]"')
    assert expected.reader().take(Piece(0, "[TOOL_CALLS] no", "stop")).text == " no"
    shown = ExpectedCalls(named, [Tool("now")], {"[TOOL_CALLS]": 7}, hides_markers=False).reader()
    assert shown.take(Piece(0, "[TOOL_CALLS] no", "stop")).text == "[TOOL_CALLS] no"
