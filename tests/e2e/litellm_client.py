"""Asks a server through litellm, whole and streamed, and prints what it saw as JSON.

A program of its own: litellm imports half of the world, with warnings, and must not look for prices online.
"""

from __future__ import annotations

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

URL, MODEL = sys.argv[1:]
litellm.telemetry = False


def usage_of(reply: object) -> list[int]:
    """Prompt, cached, completion."""
    usage = reply.usage  # type: ignore[attr-defined]
    return [usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens or 0, usage.completion_tokens]


common = {
    "model": f"openai/{MODEL}",
    "api_base": f"{URL}/v1",
    "api_key": "none",
    "messages": [{"role": "user", "content": "When does station 7 close, and when does it open again?"}],
    "temperature": 0,
    "max_tokens": 8,
    "extra_body": {"cache_salt": "litellm"},
}
told = []
for _ in range(2):
    reply = litellm.completion(**common)
    told.append({"text": reply.choices[0].message.content, "usage": usage_of(reply)})
text = ""
for chunk in litellm.completion(**common, stream=True, stream_options={"include_usage": True}):
    text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
    last = chunk
told.append({"text": text, "usage": usage_of(last)})
sys.stdout.write(json.dumps(told) + "\n")
