"""The visitors of a soak: what people, programs, attackers and operators send."""

from __future__ import annotations

import asyncio
import json
import random
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx

from bench.soaking.findings import Findings
from bench.soaking.watching import PATIENCE_S, Outages

SAMPLES = 60

TOOL = {
    "type": "function",
    "function": {
        "name": "find_book",
        "description": "Find a book by its title.",
        "parameters": {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]},
    },
}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@dataclass(frozen=True, slots=True)
class Twin:
    """A greedy request and what it was answered, from the cache or not."""

    path: str
    body: dict[str, Any]
    text: str
    cached: int


class Crowd:
    """Visitors of all kinds, who write what they were told into ``findings``."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        keys: list[str],
        admin: Mapping[str, str],
        findings: Findings,
        outages: Outages,
        *,
        model: str,
        seed: int,
    ) -> None:
        self.findings = findings
        self.samples: list[Twin] = []
        self._http = http
        self._keys = keys
        self._admin = admin
        self._outages = outages
        self._model = model
        self._chance = random.Random(seed)
        words = ["prefix", "that", "was", "computed", "once", "need", "not", "again", "whoever", "asks"]
        self._systems = [" ".join(self._chance.choices(words, k=60)) for _ in range(6)]
        self._kinds: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (30, self.chat),
            (15, self.completion),
            (8, self.messages_of_anthropic),
            (8, self.responses),
            (5, self.tools),
            (5, self.schema),
            (5, self.choices),
            (10, self.leave_early),
            (3, self.read_slowly),
            (6, self.nonsense),
            (2, self.strangers),
            (3, self.operator),
            (2, self.warm),
        ]

    async def visitor(self, over: float) -> None:
        """One visit after another, until ``over`` (in seconds of the loop)."""
        loop = asyncio.get_running_loop()
        weights, kinds = zip(*self._kinds, strict=True)
        while loop.time() < over:
            (kind,) = self._chance.choices(kinds, weights)
            name = kind.__name__.replace("_", " ")
            self.findings.requests[name] += 1
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await kind()
            except TimeoutError:
                self.findings.demand(False, f"{name} hung for {PATIENCE_S:g} s")
            except httpx.HTTPError as error:
                self.findings.demand(False, f"{name}: the connection broke: {type(error).__name__}: {error}")

    # -- what visitors do ------------------------------------------------------------------------

    async def chat(self) -> None:
        """A greedy chat about one of a few systems, whole or streamed: the stuff of hits."""
        await self._twin("/v1/chat/completions", self._chat())

    async def completion(self) -> None:
        """A greedy completion."""
        prompt = self._chance.choice(self._systems) + self._digits()
        body = {"prompt": prompt, "max_tokens": self._few(), "temperature": 0}
        await self._twin("/v1/completions", body)

    async def messages_of_anthropic(self) -> None:
        """The same in Anthropic's words, with a marker."""
        body = {
            "max_tokens": self._few(),
            "system": [
                {
                    "type": "text",
                    "text": self._chance.choice(self._systems),
                    "cache_control": {"type": "ephemeral"},
                }
            ],
            "messages": [{"role": "user", "content": self._digits()}],
        }
        await self._send("/v1/messages", body | {"stream": self._or_not()})

    async def responses(self) -> None:
        """The same as a response."""
        body = {
            "max_output_tokens": self._few(),
            "instructions": self._chance.choice(self._systems),
            "input": self._digits(),
        }
        await self._send("/v1/responses", body | {"stream": self._or_not()})

    async def tools(self) -> None:
        """A chat that must call a tool, and one that may."""
        choice = self._chance.choice(("auto", "required", "none"))
        body = self._chat() | {"tools": [TOOL], "tool_choice": choice}
        await self._send("/v1/chat/completions", body | {"stream": self._or_not()})

    async def schema(self) -> None:
        """An answer of a given form."""
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
        body = self._chat() | {"response_format": form, "temperature": 1}
        await self._send("/v1/chat/completions", body | {"stream": self._or_not()})

    async def choices(self) -> None:
        """Several choices, drawn at random."""
        body = self._chat() | {
            "n": self._chance.randint(2, 4),
            "temperature": 1,
            "cache_salt": secrets.token_hex(16),
        }
        await self._send("/v1/chat/completions", body | {"stream": self._or_not()})

    async def leave_early(self) -> None:
        """Leave before the answer, or after a few events of it."""
        self.findings.left += 1
        patience = self._chance.choice((0.01, 0.1, 1.0, None))
        body = self._chat() | {"stream": True, "max_tokens": 200, "ignore_eos": True}
        wanted = self._chance.randint(1, 8)
        began = time.monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(patience), self._open("/v1/chat/completions", body) as answer:
                await self._note(answer, began)
                async for line in answer.aiter_lines():
                    wanted -= bool(line)
                    if wanted <= 0:
                        return

    async def read_slowly(self) -> None:
        """Take a bit, sleep, take the next; nobody else may suffer."""
        began = time.monotonic()
        async with self._open("/v1/chat/completions", self._chat() | {"stream": True}) as answer:
            await self._note(answer, began)
            async for _ in answer.aiter_raw(64):
                await asyncio.sleep(0.05)

    async def nonsense(self) -> None:
        """What no server can serve: it must be a 4xx."""
        bodies: list[Any] = [
            {"messages": []},
            {"messages": [{"role": "nobody", "content": "x"}]},
            {"prompt": "x", "max_tokens": -1},
            {"prompt": [10**9]},
            {"prompt": "x" * 300_000},
            [1, 2, 3],
            {"messages": [{"role": "user", "content": "x"}], "temperature": "hot"},
            {"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_schema"}},
        ]
        body = self._chance.choice(bodies)
        path = "/v1/completions" if isinstance(body, dict) and "prompt" in body else "/v1/chat/completions"
        began = time.monotonic()
        answer = await self._http.post(path, json=body, headers=self._key())
        self.findings.statuses[answer.status_code] += 1
        # Whether a prompt fits is the engine's to say.
        told = answer.status_code in (400, 429)  # a full server need not look closer
        fine = told or (answer.status_code == 503 and self._outages.excuse(began))
        self.findings.demand(fine, f"nonsense was answered {answer.status_code}: {answer.text[:200]}")

    async def strangers(self) -> None:
        """Somebody without a key."""
        answer = await self._http.post("/v1/chat/completions", json=self._chat())
        self.findings.statuses[answer.status_code] += 1
        self.findings.demand(answer.status_code == 401, f"a stranger was answered {answer.status_code}")

    async def operator(self) -> None:
        """Look at the metrics; sometimes forget everything, which is refused while blocks are in use."""
        answer = await self._http.get("/metrics", headers=self._admin)
        self.findings.demand(answer.status_code == 200, f"/metrics was answered {answer.status_code}")
        if self._chance.random() < 0.1:
            began = time.monotonic()
            status = (await self._http.post("/reset_prefix_cache", headers=self._admin)).status_code
            fine = status in (200, 409) or (status == 503 and self._outages.excuse(began))
            self.findings.demand(fine, f"a reset was answered {status}")

    async def warm(self) -> None:
        """Have a system prompt computed before anybody asks."""
        body = {"messages": [{"role": "system", "content": self._chance.choice(self._systems)}]}
        await self._send("/v1/cache/warm", body)

    # -- with what -------------------------------------------------------------------------------

    def _chat(self) -> dict[str, Any]:
        turns = [{"role": "system", "content": self._chance.choice(self._systems)}]
        for _ in range(self._chance.randint(0, 2)):
            turns.append({"role": "user", "content": self._digits()})
            turns.append({"role": "assistant", "content": "It is so."})
        turns.append({"role": "user", "content": self._digits()})
        return {"messages": turns, "max_tokens": self._few(), "temperature": 0}

    def _digits(self) -> str:
        return f" number {self._chance.randrange(40)}"

    def _few(self) -> int:
        return self._chance.randint(1, 24)

    def _key(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._chance.choice(self._keys)}"}

    def _open(self, path: str, body: dict[str, Any]) -> Any:
        return self._http.stream("POST", path, json={"model": self._model} | body, headers=self._key())

    async def _send(self, path: str, body: dict[str, Any]) -> str | None:
        """The answer's text, if there was a whole one."""
        began = time.monotonic()
        async with self._open(path, body) as answer:
            text: str = (await answer.aread()).decode()
        await self._note(answer, began, text)
        if answer.status_code != 200:
            return None
        if not body.get("stream") or is_whole(path, text):
            return text
        self.findings.broken += 1
        self.findings.demand(self._outages.excuse(began), f"a stream of {path} ended with …{text[-300:]}")
        return None

    async def _note(self, answer: httpx.Response, began: float, text: str = "") -> None:
        """Whether the status may be; who is told to come later does (a little)."""
        status, path = answer.status_code, answer.request.url.path
        self.findings.statuses[status] += 1
        fine = status in (200, 429) or (status == 503 and self._outages.excuse(began))
        self.findings.demand(fine, f"{path} was answered {status}: {text[:300]}")
        if status in (429, 503):
            told = answer.headers.get("retry-after", "")
            self.findings.demand(told.isdecimal(), f"{path}: a {status} without Retry-After")
            await asyncio.sleep(0.5)

    def _or_not(self) -> bool:
        return self._chance.random() < 0.5

    async def _twin(self, path: str, body: dict[str, Any]) -> None:
        """Send it, and keep some of those that were answered whole for `compare`."""
        streamed = {"stream": True, "stream_options": {"include_usage": True}} if self._or_not() else {}
        text = await self._send(path, body | streamed)
        if text is None:
            return
        twin = Twin(path, body, *answer_of(text))
        if len(self.samples) < SAMPLES:
            self.samples.append(twin)
        elif self._chance.random() < 0.05:
            self.samples[self._chance.randrange(SAMPLES)] = twin

    async def compare(self) -> None:
        """Ask all samples again, each under a salt that nobody used: nothing is a hit, all must be equal."""
        for twin in self.samples:
            answer = await self._send(twin.path, twin.body | {"cache_salt": secrets.token_hex(16)})
            if answer is None:  # and that is noted already
                continue
            text, cached = answer_of(answer)
            self.findings.twins += 1
            self.findings.twins_with_hits += twin.cached > 0
            self.findings.demand(cached == 0, f"a new salt hit {cached} tokens")
            self.findings.demand(
                text == twin.text,
                f"{twin.cached} tokens cached: {twin.text!r}, cold: {text!r}; {json.dumps(twin.body)}",
            )


LAST_EVENTS = {
    "/v1/chat/completions": r"data: \[DONE\]",
    "/v1/completions": r"data: \[DONE\]",
    "/v1/messages": r"event: message_stop\ndata: .*",
    "/v1/responses": r"event: response\.(completed|incomplete)\ndata: .*",
}


def is_whole(path: str, text: str) -> bool:
    """Whether a stream of ``path`` came to the end that it should have."""
    return re.fullmatch(LAST_EVENTS[path], text.rstrip("\n").rpartition("\n\n")[2]) is not None


def answer_of(reply: str) -> tuple[str, int]:
    """What a chat or a completion was answered, whole or streamed, and how many tokens were cached."""
    if reply.startswith("{"):
        chunks = [json.loads(reply)]
    else:
        events = (line.removeprefix("data: ") for line in reply.splitlines() if line)
        chunks = [json.loads(event) for event in events if event != "[DONE]"]
    text, usage = "", dict[str, Any]()
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            said = choice.get("message") or choice.get("delta") or choice
            text += said.get("text") or said.get("content") or ""
    return text, usage["prompt_tokens_details"]["cached_tokens"]
