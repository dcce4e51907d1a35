"""Do equal prompts hit, does usage say so, and do callers that must not share not share?

Every prompt that is sent is new: it begins with random words, so nothing that others cached is touched.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from headstart.lab.audit.line import Line, Word
from headstart.lab.audit.target import RefusedError, Target, Usage

_NUM_WORDS = 120
ENOUGH = 0.5
"""Of an equal prompt that must be cached: block boundaries and the last token may cost some."""


def new_prompt() -> str:
    """A text that nobody has sent before: a few hundred tokens."""
    return "Audit: " + " ".join(secrets.token_hex(2) for _ in range(_NUM_WORDS))


def check_cache(target: Target) -> Iterator[Line]:
    """Hits and usage."""
    prompt = new_prompt()
    cold = target.ask(prompt)
    warm = target.ask(prompt)
    streamed = target.ask(prompt, stream=True)
    yield _usage(cold, warm, streamed)
    yield _hits(warm)


def _usage(cold: Usage, warm: Usage, streamed: Usage) -> Line:
    name = "usage tells of hits"
    turn_on = "vLLM: --enable-prompt-tokens-details; SGLang: --enable-cache-report"
    told = {"a miss": cold.cached, "a hit": warm.cached, "a streamed hit": streamed.cached}
    silent = [what for what, cached in told.items() if cached is None]
    if len(silent) == len(told):
        return Line(
            name,
            Word.FAIL,
            "no answer has usage.prompt_tokens_details.cached_tokens",
            f"turn it on: {turn_on}",
        )
    if silent:
        return Line(
            name,
            Word.WARN,
            f"cached_tokens is missing for {' and '.join(silent)}; clients cannot tell 0 from unknown",
            f"look for: {turn_on}",
        )
    if not (warm.prompt == cold.prompt == streamed.prompt) or warm.cached != streamed.cached:
        return Line(
            name,
            Word.FAIL,
            f"the same prompt has {cold.prompt}, {warm.prompt} and (streamed) {streamed.prompt} "
            "tokens, of which "
            f"{warm.cached} and (streamed) {streamed.cached} cached",
            "one of the two ways counts wrongly: report it to the server's makers",
        )
    return Line(
        name,
        Word.OK,
        f"{cold.cached} of {cold.prompt} tokens cached are told of a new prompt, {warm.cached} when it is "
        "repeated, streamed or not",
    )


def _hits(warm: Usage) -> Line:
    name = "equal prompts hit"
    if warm.cached is None:
        return Line(name, Word.UNKNOWN, "no answer says how many tokens were cached")
    if warm.cached >= ENOUGH * warm.prompt:
        return Line(name, Word.OK, f"{warm.cached} of {warm.prompt} tokens of a repeated prompt")
    return Line(
        name,
        Word.FAIL,
        f"only {warm.cached} of {warm.prompt} tokens of a prompt that was sent twice",
        "turn prefix caching on (headstart and vLLM: --enable-prefix-caching; SGLang: no "
        "--disable-radix-cache), or route equal prompts to one replica",
    )


def check_isolation(target: Target) -> Iterator[Line]:
    """Equal salts share, others do not; two keys do not; nobody is served without one."""
    yield _salts(target)
    yield _keys(target)
    yield _open(target)


def _salts(target: Target) -> Line:
    name = "isolation by cache_salt"
    prompt, one, other = new_prompt(), secrets.token_hex(16), secrets.token_hex(16)
    try:
        target.ask(prompt, salt=one)
        same, different = target.ask(prompt, salt=one), target.ask(prompt, salt=other)
    except RefusedError as error:
        return Line(name, Word.UNKNOWN, f"the server refuses cache_salt: {error}")
    if same.cached is None or different.cached is None:
        return Line(name, Word.UNKNOWN, "no answer says how many tokens were cached")
    if different.cached >= ENOUGH * different.prompt:
        return Line(
            name,
            Word.FAIL,
            f"another salt hits {different.cached} of {different.prompt} tokens: the server ignores "
            "cache_salt",
            "update the server, or keep tenants apart by replicas",
        )
    if same.cached < ENOUGH * same.prompt:
        return Line(
            name,
            Word.WARN,
            f"an equal salt hits {same.cached} of {same.prompt} tokens, so it proves nothing that "
            "another hits "
            f"{different.cached}",
            "see whether equal prompts hit at all",
        )
    # Not even what every chat begins with, a system prompt of the template's own, may be a hit: it must be 0.
    if different.cached:
        return Line(
            name,
            Word.FAIL,
            f"another salt hits {different.cached} of {different.prompt} tokens",
            "the salt must enter the first block of the prompt",
        )
    return Line(name, Word.OK, f"an equal salt hits {same.cached} of {same.prompt} tokens, another 0")


def _keys(target: Target) -> Line:
    name = "isolation by key"
    if target.api_key is None or target.other_api_key is None:
        return Line(name, Word.UNKNOWN, "no two keys were given", "give --api-key and --other-api-key")
    prompt = new_prompt()
    target.ask(prompt)
    same, other = target.ask(prompt), target.ask(prompt, key=target.other_api_key)
    if same.cached is None or other.cached is None:
        return Line(name, Word.UNKNOWN, "no answer says how many tokens were cached")
    # What all chats begin with, a system prompt of the template's own, the other key may have cached itself.
    if other.cached >= ENOUGH * other.prompt:
        return Line(
            name,
            Word.FAIL,
            f"the other key hits {other.cached} of {other.prompt} tokens of a prompt that only the "
            "first has sent: "
            "by the time of its first token it can guess what others ask",
            "headstart: --isolate-by api-key; elsewhere have a proxy set a secret cache_salt for each key",
        )
    if same.cached < ENOUGH * same.prompt:
        return Line(
            name,
            Word.WARN,
            f"the same key hits {same.cached} of {same.prompt} tokens, so it proves nothing that the "
            f"other hits {other.cached}",
            "see whether equal prompts hit at all",
        )
    own = " (as its own chats begin)" if other.cached else ""
    hits = f"the same key hits {same.cached} of {same.prompt} tokens, the other {other.cached}{own}"
    return Line(name, Word.OK, hits)


def _open(target: Target) -> Line:
    name = "who is served"
    if not target.without_key():
        return Line(name, Word.OK, "a key is asked for")
    local = any(f"//{host}" in target.url for host in ("127.", "localhost", "[::1]"))
    return Line(
        name,
        Word.OK if local else Word.WARN,
        "whoever reaches it, without a key" + (", from this machine" if local else ""),
        "" if local else "headstart and vLLM: --api-key",
    )
