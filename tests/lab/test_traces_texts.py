from __future__ import annotations

import pytest

from headstart.errors import RequestError
from headstart.lab.traces.texts import PromptReader

QUESTION = {"role": "user", "content": "Why?"}


def test_without_a_template_a_conversation_is_chatml(tiny_reader: PromptReader) -> None:
    plain = PromptReader(tiny_reader.tokenizer)
    body = {"messages": [{"role": "developer", "content": "Be brief."}, QUESTION]}
    assert plain.body_text(body) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert plain.text(plain.body_tokens(body)) == plain.body_text(body)


def test_chatml_tells_calls_of_tools_apart(tiny_reader: PromptReader) -> None:
    plain = PromptReader(tiny_reader.tokenizer)

    def calling(name: str) -> str:
        call = {"id": "1", "type": "function", "function": {"name": name, "arguments": "{}"}}
        answer = {"role": "assistant", "content": None, "tool_calls": [call]}
        return plain.body_text({"messages": [QUESTION, answer]})

    assert calling("look_up") != calling("delete")
    assert "None" not in calling("look_up")


def test_variables_of_the_template_are_an_object(tiny_reader: PromptReader) -> None:
    with pytest.raises(RequestError, match="chat_template_kwargs must be an object"):
        tiny_reader.body_text({"messages": [QUESTION], "chat_template_kwargs": [1]})
