"""Whatever the installed ``openai`` client can send for text is declared: served, harmless or refused."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from openai.resources.chat.completions import Completions as ChatCompletions
from openai.resources.completions import Completions
from openai.types.chat import ChatCompletionStreamOptionsParam

from headstart.server.protocol import ChatRequest, CompletionRequest, StreamOptions

CLIENTS_OWN = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}


@pytest.mark.parametrize(
    ("create", "body"), [(ChatCompletions.create, ChatRequest), (Completions.create, CompletionRequest)]
)
def test_every_parameter_is_declared(create: Any, body: Any) -> None:
    parameters = set(inspect.signature(create).parameters) - CLIENTS_OWN
    assert "model" in parameters
    assert parameters - set(body.model_fields) == set()


def test_every_stream_option_is_declared() -> None:
    assert set(ChatCompletionStreamOptionsParam.__annotations__) <= set(StreamOptions.model_fields)
