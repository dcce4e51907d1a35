"""Templates and tools, and messages that are left open."""

from __future__ import annotations

from typing import Any

import pytest

from headstart.errors import RequestError
from headstart.text import ChatTemplate, IncrementalDecoder, RequestTemplates, TextStream

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMMING = CHATML.replace("message.content }}", "message.content | trim }}")
BEGUN = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "I am "}]


@pytest.mark.parametrize(
    ("source", "knows"),
    [
        (CHATML, False),
        ("{% if tools %}{{ tools | tojson }}{% endif %}", True),
        ("{% if not tools is defined %}{% set tools = none %}{% endif %}{{ tools }}", True),
        ("{% for tools in messages %}{{ tools.content }}{% endfor %}", False),
        ("{# tools #}{{ 'tools' }}{{ messages[0].tools }}", False),
    ],
)
def test_whether_a_template_knows_tools(source: str, knows: bool) -> None:
    template = ChatTemplate(source)
    assert template.knows_tools is knows
    assert (template.tool_format is None) is knows
    if not knows:
        assert template.tool_format is not None
        assert template.tool_format.name == "hermes"


def test_the_template_for_tools_is_the_one_that_is_asked() -> None:
    template = ChatTemplate({"default": CHATML, "tool_use": "{{ tools }}[TOOL_CALLS]"})
    assert template.knows_tools
    assert template.tool_format is not None
    assert template.tool_format.name == "mistral"


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ('{"b": 1, "a": [2]}', '{"b": 1, "a": [2]}'),
        ("", "{}"),
        ({"a": 1}, '{"a": 1}'),
        ("not json", '"not json"'),
        ("[1]", '"[1]"'),
        ("9" * 5000, f'"{"9" * 5000}"'),
    ],
)
def test_arguments_are_objects_where_they_can_be(arguments: Any, written: str) -> None:
    template = ChatTemplate("{{ tools }}{{ messages[0].tool_calls[0].function.arguments | tojson }}")
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    assert template.render([message]) == f"None{written}"
    assert call["function"]["arguments"] == arguments, "render changed what it was given"


@pytest.mark.parametrize("calls", [[{}], [3], [{"function": "f"}], "calls", 7, {"a": 1}])
def test_calls_of_another_form_are_no_reason_to_fail(calls: Any) -> None:
    message = {"role": "assistant", "content": "x", "tool_calls": calls}
    assert "x" in ChatTemplate(CHATML).render(
        [message, {"role": "tool", "content": None}], tools=[{"odd": 1}]
    )


@pytest.mark.parametrize("source", [CHATML, TRIMMING], ids=["as it is", "trimmed"])
@pytest.mark.parametrize("content", ["I am", "I am ", " a\nb \n", "<|im_end|>"])
def test_a_message_left_open_is_as_in_transformers(source: str, content: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [*BEGUN[:1], {"role": "assistant", "content": content}]
    ((theirs, *_), _) = render_jinja_template([messages], chat_template=source, continue_final_message=True)
    ours = ChatTemplate(source).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert ours == theirs
    assert ChatTemplate(source).render(messages, add_generation_prompt=False).startswith(ours)


@pytest.mark.parametrize(
    ("source", "content"),
    [(CHATML, ""), ("{{ messages[0].content }}", "I am"), ("{{ messages[-1].content | upper }}", "I am")],
)
def test_what_cannot_be_left_open(source: str, content: str) -> None:
    messages = [*BEGUN[:1], {"role": "assistant", "content": content}]
    with pytest.raises(RequestError, match="continued"):
        ChatTemplate(source).render(messages, continue_final_message=True)


def test_request_templates_are_compiled_once() -> None:
    templates = RequestTemplates()
    named = {"eos_token": "</s>"}
    assert templates.get("{{ eos_token }}", named) is templates.get("{{ eos_token }}", dict(named))
    assert templates.get("{{ eos_token }}", named).render([]) == "</s>"
    assert templates.get("{{ eos_token }}", {"eos_token": "!"}).render([]) == "!"
    first = templates.get("0", named)
    for number in range(20):
        templates.get(str(number), named)
    assert templates.get("0", named) is not first


def test_special_tokens_that_are_to_be_seen(families: Any) -> None:
    tokenizer = families["byte_level"].ours
    ids = tokenizer.special_ids(["<s>", "<end→>", "<tool>", "nothing"])
    assert set(ids) == {"<s>", "<end→>"}
    text = [ids["<s>"], *tokenizer.encode("a", add_special_tokens=False), ids["<end→>"]]
    visible = [ids["<end→>"]]
    assert IncrementalDecoder(tokenizer, visible=visible).push(text) == "a<end→>"
    assert TextStream(tokenizer, (), visible=visible).push(text) == "a<end→>"
    assert IncrementalDecoder(tokenizer).push(text) == "a"
