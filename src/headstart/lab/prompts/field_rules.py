"""Fields of a request that decide who shares with whom, or whether anything is looked up at all."""

from __future__ import annotations

from collections.abc import Iterator

from headstart.lab.prompts.body import Body
from headstart.lab.prompts.problem import Severity, Sharing, Spot
from headstart.lab.prompts.variables import find_variables

WORTH_A_KEY = 1024
"""Tokens of shared beginning from which OpenAI caches, and from which the key is worth its line."""

_MANY = 3  # bodies that must all differ before it is no accident


def salts_and_keys(body: Body, sharing: Sharing) -> Iterator[Spot]:
    """A salt or a key that looks made for one request."""
    for field, (rule, mild, _) in _FIELDS.items():
        value = body.fields.get(field)
        if isinstance(value, str) and _looks_generated(value):
            what = f"{field} looks made for this one request, or conversation: {_EFFECTS[rule]}"
            lost = sharing.num_now if rule == "HS401" else None
            yield Spot(rule, mild, (field,), 0, what, _FIXES[rule], value, lost)
    if "prompt_cache_key" not in body.fields and body.ruler.unit == "tokens" and sharing.num_now >= WORTH_A_KEY:
        yield Spot(
            "HS402",
            Severity.INFO,
            (),
            0,
            "no prompt_cache_key, which providers route by, so that requests that begin alike meet",
            "set prompt_cache_key to the name and version of the prompt",
        )


def _looks_generated(value: str) -> bool:
    return any(found.certain or found.end - found.start == len(value) for found in find_variables(value))


# A tenant's name may be a UUID, and a conversation's is a fine key: one body is no proof, many are.
_FIELDS = {
    "cache_salt": ("HS401", Severity.WARNING, Severity.ERROR),
    "prompt_cache_key": ("HS403", Severity.INFO, Severity.WARNING),
}
_EFFECTS = {
    "HS401": "requests with different salts share nothing",
    "HS403": "requests that begin alike are routed apart",
}
_FIXES = {
    "HS401": "one salt for each tenant whose prompts must not be told to others, or none",
    "HS403": "one key for each prompt, or for each prompt and user: not for each request",
}


def uncached(body: Body, sharing: Sharing) -> Iterator[Spot]:
    """Options with which engines do not look into the cache."""
    echoed = body.fields.get("echo") is True and body.fields.get("logprobs") is not None
    name = "prompt_logprobs" if body.fields.get("prompt_logprobs") is not None else "echo"
    if name == "prompt_logprobs" or echoed:
        yield Spot(
            "HS404",
            Severity.WARNING,
            (name,),
            0,
            f"{name}{' with logprobs' if echoed else ''} wants the prompt's log-probabilities, which have to be "
            "computed: nothing is looked up in the cache",
            "leave it out where nobody reads them",
            None,
            sharing.num_now,
        )


def salts_across(bodies: list[Body]) -> Iterator[tuple[int, Spot]]:
    """A salt or a key that is another one in each body of a file."""
    for field, (rule, _, severity) in _FIELDS.items():
        values = [body.fields.get(field) for body in bodies]
        texts = [value for value in values if isinstance(value, str)]
        if len(texts) >= _MANY and len(set(texts)) == len(texts):
            what = f"{field} is another one in each of {len(texts)} bodies: {_EFFECTS[rule]}"
            yield values.index(texts[0]), Spot(rule, severity, (field,), 0, what, _FIXES[rule], texts[0])
