"""An application over a fake engine: every byte is a token, every answer is known beforehand."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from starlette.testclient import TestClient
from tokenizers import decoders, models, pre_tokenizers

from headstart.cache import MissReport
from headstart.config import PLAIN_SERVER, ServerConfig
from headstart.engine.choices import choice_ids
from headstart.engine.messages import EngineInfo, EngineStats
from headstart.engine.request import (
    PLAIN_TERMS,
    CacheTerms,
    FinishReason,
    PromptLogprob,
    RequestOutput,
    SamplingParams,
    TokenLogprob,
)
from headstart.errors import EngineDeadError, RequestError
from headstart.server.app import build_app
from headstart.text import ChatTemplate, Tokenizer

END = "<end>"
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}{{ extra }}"
)
INFO = EngineInfo(
    model_name="fake/model",
    model_type="llama",
    dtype="float32",
    device="cpu",
    vocab_size=300,
    max_model_len=1000,
    num_blocks=64,
    block_size=16,
    kv_bytes_per_token=100,
    kv_pool_bytes=102_400,
    prefix_index="radix",
    eviction_policy="lru",
    enable_prefix_caching=True,
    max_num_batched_tokens=256,
    max_num_seqs=8,
    weights_bytes=1000,
)


def byte_tokenizer(directory: Path) -> Tokenizer:
    """One token per byte of UTF-8, and one that ends an answer; its files are written to ``directory``."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = tokenizers.Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([END])
    library.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    return Tokenizer.from_directory(directory)


@dataclass
class FakeEngine:
    """`EngineSupervisor`'s interface; answers ``answer`` to all and remembers prompts as a cache would.

    The choices of a prompt are answered with ``others`` from the second on, as far as these go; their tokens
    come in turn.

    With a ``gate`` each token waits for a release of it; ``fail_after`` so many tokens ``failure`` happens:
    an exception, or a sentence in a last output.
    ``running`` and ``aborted`` are request ids, ``names`` those of all that were submitted; ``asked_for``
    is what `check_queue` was asked, which refuses when ``full``.
    """

    tokenizer: Tokenizer
    info: EngineInfo = INFO
    stats: EngineStats = field(default_factory=EngineStats)
    answer: str = "fine, thanks"
    others: tuple[str, ...] = ()
    gate: asyncio.Semaphore | None = None
    fail_after: int | None = None
    failure: Exception | str = field(default_factory=lambda: EngineDeadError("the engine is gone"))
    why_unhealthy: str | None = None
    blocks_in_use: bool = False
    full: bool = False
    num_retained_tokens: int = 0
    asked_for: list[int] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    aborted: list[str] = field(default_factory=list)
    submitted: list[tuple[list[int], SamplingParams, CacheTerms]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    explain: Callable[[MissReport], None] | None = None
    _known: set[tuple[str | None, tuple[int, ...]]] = field(default_factory=set)

    def check_queue(self, params: SamplingParams, num_prompts: int = 1) -> None:
        self.asked_for.append(params.num_choices * num_prompts)
        if self.full:
            raise RequestError("too many", code="queue_full", status=429)

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str,
        terms: CacheTerms = PLAIN_TERMS,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        prompt = list(prompt_token_ids)
        if request_id in self.running:
            raise RequestError(
                f"{request_id} is in use", param="request_id", code="request_id_in_use", status=409
            )
        if len(prompt) >= self.info.max_model_len:
            raise RequestError(
                f"the prompt has {len(prompt)} tokens, max_model_len is {self.info.max_model_len}",
                param="prompt",
                code="context_length_exceeded",
            )
        if any(not 0 <= token < self.info.vocab_size for token in prompt):
            raise RequestError("a token is outside the vocabulary", param="prompt", code="invalid_token")
        self.names.append(request_id)
        self.submitted.append((prompt, params, terms))
        return self._outputs(tuple(prompt), params, request_id, terms.salt)

    async def _outputs(
        self, prompt: tuple[int, ...], params: SamplingParams, request_id: str, salt: str | None
    ) -> AsyncGenerator[RequestOutput, None]:
        known = (salt, prompt) in self._known and params.prompt_logprobs is None
        cached = len(prompt) - 1 if known else 0
        self._known.add((salt, prompt))
        self._count(len(prompt), cached)
        names = choice_ids(request_id, params.num_choices)
        self.running.update(names)
        answers = [self.answer, *self.others, *[self.answer] * params.num_choices]
        texts = {name: self._tokens(answer, params) for name, answer in zip(names, answers, strict=False)}
        limit = max(map(len, texts.values()))
        try:
            for piece in _of_prompt(prompt, params):
                yield RequestOutput(request_id, (), cached, prompt_logprobs=piece)
            for name in names if limit == 0 else ():
                self.running.discard(name)
                kept = self.num_retained_tokens
                yield RequestOutput(name, (), cached, "length", num_retained_tokens=kept)
            turns = ((number, name) for number in range(1, limit + 1) for name in names)
            for number, name in turns:
                if name not in self.running:
                    continue
                if self.gate is not None:
                    await self.gate.acquire()
                if self.fail_after is not None and number > self.fail_after:
                    if isinstance(self.failure, Exception):
                        raise self.failure
                    yield RequestOutput(name, (), cached, "error", self.failure)
                    return
                token = texts[name][number - 1]
                reason: FinishReason | None = "length" if number == len(texts[name]) else None
                if token in params.stop_token_ids:
                    reason = "stop"
                if reason is not None:
                    self.running.discard(name)
                yield RequestOutput(name, (token,), cached, reason, None, _logprobs(token, number, params))
        finally:
            for name in names:
                self.abort(name)

    def _tokens(self, answer: str, params: SamplingParams) -> list[int]:
        return [*self.tokenizer.encode(answer), *self.tokenizer.eos_token_ids][: params.max_tokens]

    def abort(self, request_id: str) -> None:
        if request_id in self.running:
            self.running.discard(request_id)
            self.aborted.append(request_id)

    def on_explained(self, told: Callable[[MissReport], None]) -> None:
        self.explain = told

    async def reset_prefix_cache(self) -> bool:
        if self.blocks_in_use:
            return False
        self._known.clear()
        return True

    def _count(self, prompt: int, cached: int) -> None:
        self.stats = replace_stats(
            self.stats,
            prompt_tokens=self.stats.prompt_tokens + prompt,
            prefix_cache_queries=self.stats.prefix_cache_queries + prompt,
            prefix_cache_hits=self.stats.prefix_cache_hits + cached,
        )


def _logprobs(token: int, number: int, params: SamplingParams) -> tuple[TokenLogprob, ...]:
    if params.logprobs is None:
        return ()
    top = ((33, -0.25), (token, -float(number)), (34, -math.inf))
    return (TokenLogprob(-float(number), top[: params.logprobs]),)


def _of_prompt(prompt: tuple[int, ...], params: SamplingParams) -> list[tuple[PromptLogprob, ...]]:
    """In two pieces: the token at place i has -i / 2 and rank 2, and token 33 is always the likeliest."""
    if params.prompt_logprobs is None:
        return []
    told = tuple(
        PromptLogprob(own, 2, ((33, -0.25), (token, own), (34, -math.inf))[: params.prompt_logprobs])
        for token, own in ((token, -place / 2) for place, token in enumerate(prompt[1:], start=1))
    )
    return [told[:2], told[2:]]


def replace_stats(stats: EngineStats, **changes: Any) -> EngineStats:
    """A copy with these fields changed."""
    return EngineStats(**{name: changes.get(name, getattr(stats, name)) for name in stats.__struct_fields__})


@pytest.fixture
def engine(tmp_path: Path) -> FakeEngine:
    return FakeEngine(byte_tokenizer(tmp_path))


@pytest.fixture
def make_client(engine: FakeEngine) -> Iterator[Callable[..., TestClient]]:
    """Make an application with this `ServerConfig`; its client ends with the test."""
    with ExitStack() as open_clients:

        def make(config: ServerConfig = PLAIN_SERVER) -> TestClient:
            app = build_app(engine, engine.tokenizer, ChatTemplate(TEMPLATE), config)
            return open_clients.enter_context(TestClient(app, raise_server_exceptions=False))

        yield make


@pytest.fixture
def client(make_client: Callable[..., TestClient]) -> TestClient:
    """HTTP to the application; exceptions that reach the server become its answers, as in real life."""
    return make_client()


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """As `client`, one for all tests of a file: for those that ask for nothing that is computed."""
    engine = FakeEngine(byte_tokenizer(tmp_path_factory.mktemp("bytes")))
    app = build_app(engine, engine.tokenizer, ChatTemplate(TEMPLATE))  # type: ignore[arg-type]
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client
    assert not engine.submitted
