"""Logs of OpenAI requests: bodies as they are, batch files, and what servers and proxies wrap around them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from headstart.errors import RequestError
from headstart.lab.traces.draft import Draft
from headstart.lab.traces.fields import count_of, first_of, salt_of, text_of, told
from headstart.lab.traces.source import Source
from headstart.lab.traces.times import time_of
from headstart.lab.traces.tokenising import Pending, tokenised

WRAPPERS = ("body", "request", "request_body", "proxy_server_request", "kwargs")
"""Fields in which logs keep the request, as an object or as JSON in a string; one may hold the next."""

PROMPTS = ("messages", "prompt")
"""The fields that make an object a request's body."""

_LEFT_OUT: tuple[object, ...] = ({}, [], "", "{}", "[]")
"""What proxies write in place of messages that they keep in a wrapped request, or not at all."""

_TIMES = ("timestamp", "arrival_time", "start_time", "startTime", "created", "created_at", "time")
_SESSIONS = ("session_id", "conversation_id", "chat_id", "user")
_OUTPUT_COUNTS = ("completion_tokens", "output_tokens", "num_output_tokens")
_PROMPT_COUNTS = ("prompt_tokens", "input_tokens")
_PARAMETERS = ("model_parameters", "optional_params")
_ANSWERS = ("response", "response_body", "output", "completion")


def read_openai(source: Source) -> Iterator[Draft]:
    """The requests of a file."""
    return tokenised(_pending(source), source)


def _pending(source: Source) -> Iterator[Pending]:
    decode = msgspec.json.Decoder().decode
    for line, data in source.records:
        try:
            found = list(_requests(line, decode(data)))
        except (msgspec.DecodeError, RecursionError) as error:
            source.skip(line, told(error))
        except (ValueError, RequestError) as error:
            source.skip(line, str(error))
        else:
            yield from found


def _requests(line: int, record: Any) -> Iterator[Pending]:
    layers = _layers(record)
    if layers is None:
        raise ValueError("there is no request with messages or a prompt in it")
    outward = layers[::-1]
    draft = Draft(
        line,
        b"",
        0,
        time=time_of(first_of(_TIMES, *layers)),
        salt=salt_of(first_of(["cache_salt"], *outward)),
        model=text_of(first_of(["model"], *outward)),
        session=text_of(first_of(_SESSIONS, *layers)),
        body=_whole(layers),
    )
    prompts = _prompts(draft.body or {})
    if prompts is not None:  # what was answered and counted is of all of them together
        for prompt in prompts:
            yield Pending(replace(draft, body={**(draft.body or {}), "prompt": prompt}))
        return
    answer = _answer(layers)
    usage = first_of(["usage"], answer, *layers)
    counted: Mapping[str, Any] = usage if isinstance(usage, Mapping) else {}
    draft.num_output_tokens = count_of(first_of(_OUTPUT_COUNTS, counted, *layers))
    draft.num_counted_tokens = count_of(first_of(_PROMPT_COUNTS, counted, *layers))
    yield Pending(draft, _text(answer))


def _layers(record: Any, depth: int = 0) -> list[Mapping[str, Any]] | None:
    """The record, what it wraps, and so on, to the body itself; None if there is none."""
    if isinstance(record, str):
        record = _unpacked(record)
    if not isinstance(record, Mapping) or depth > len(WRAPPERS):
        return None
    prompts = [record[name] for name in PROMPTS if record.get(name) is not None]
    if any(prompt not in _LEFT_OUT for prompt in prompts):
        return [record]
    for name in WRAPPERS:
        found = _layers(record.get(name), depth + 1)
        if found is not None:
            return [record, *found]
    return [record] if prompts else None


def _whole(layers: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The body, with messages that a log keeps as JSON unpacked, and tools that LiteLLM keeps elsewhere."""
    body = layers[-1]
    messages = body.get("messages")
    if messages is None:
        return {name: value for name, value in body.items() if name != "messages"}
    if isinstance(messages, str):
        messages = msgspec.json.decode(messages)
    if isinstance(messages, list) and isinstance(body.get("system"), str | list):  # as Anthropic's bodies
        messages = [{"role": "system", "content": body["system"]}, *messages]
    if messages is not body["messages"]:
        body = {**body, "messages": messages}
    if body.get("tools") is None:
        parameters = first_of(_PARAMETERS, *layers)
        tools = parameters.get("tools") if isinstance(parameters, Mapping) else None
        if tools is not None:
            body = {**body, "tools": tools}
    return body


def _prompts(body: Mapping[str, Any]) -> list[Any] | None:
    """The prompts of a completion that has several, each of which is a request; None for one."""
    prompts = body.get("prompt")
    if "messages" in body or not isinstance(prompts, list) or not prompts or isinstance(prompts[0], int):
        return None
    return prompts


def _answer(layers: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    """What was answered, as OpenAI's response has it; empty if the log does not tell."""
    answer = first_of(_ANSWERS, *layers)
    if isinstance(answer, str):
        answer = _unpacked(answer) or {"choices": [{"text": answer}]}
    if isinstance(answer, Mapping) and isinstance(answer.get("body"), Mapping):
        answer = answer["body"]
    if isinstance(answer, Mapping):
        return answer
    return layers[0] if "choices" in layers[0] else {}


def _unpacked(text: str) -> Mapping[str, Any] | None:
    """The object that a string holds as JSON; None if it holds none."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return None


def _text(answer: Mapping[str, Any]) -> str | None:
    """The first choice's text, without reasoning and tool calls."""
    match answer.get("choices"):
        case [{"message": {"content": str(text)}}, *_] | [{"text": str(text)}, *_]:
            return text or None
    return None
