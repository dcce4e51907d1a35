"""What a conversation and all that continue it have in common, for templates and tokenizers of many kinds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headstart.errors import RequestError
from headstart.model.source import ModelFiles
from headstart.server.conversation import Conversation, render
from headstart.server.front import Front
from headstart.server.metrics import Metrics
from headstart.server.stable import stable_text_tokens, stable_tokens
from headstart.text import ChatTemplate, Tokenizer

SYSTEM = {"role": "system", "content": "You answer in one word, and never more than that"}
USER = {"role": "user", "content": "What is the capital of France"}
ASSISTANT = {"role": "assistant", "content": "Paris"}
TURNS = (
    "{% for m in messages %}{% if loop.index0 % 2 != (m.role == 'assistant') | int %}"
    "{{ raise_exception('turns') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
FORGETS = (
    "{% for m in messages %}<{{ m.role }}>"
    "{{ m.content if loop.revindex <= 2 or m.role != 'user' else '…' }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
COUNTS = "{{ messages | length }} messages" + FORGETS


def front_of(engine: Any, template: ChatTemplate | None, tokenizer: Tokenizer | None = None) -> Front:
    return Front(engine, tokenizer or engine.tokenizer, template, Metrics(engine, "m"), "m")


def stable(front: Front, *messages: dict[str, str], **options: Any) -> list[int]:
    return asyncio.run(stable_tokens(front, Conversation(messages=list(messages), **options)))


def tokens(front: Front, *messages: dict[str, str], opens: bool = True) -> list[int]:
    """Those of the chat."""
    text = render(front, Conversation(messages=list(messages), add_generation_prompt=opens))
    return front.tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("so_far", [[SYSTEM], [USER], [SYSTEM, USER], [SYSTEM, USER, ASSISTANT]])
def test_every_continuation_of_a_real_models_chat_begins_with_it(
    engine: Any, smollm2: ModelFiles, so_far: list[dict[str, str]]
) -> None:
    template = ChatTemplate.from_directory(smollm2.tokenizer_dir)
    front = front_of(engine, template, Tokenizer.from_directory(smollm2.tokenizer_dir))
    common = stable(front, *so_far)
    closed = tokens(front, *so_far, opens=False)
    assert len(common) >= len(closed) - 1
    for more in ("Berlin?", " of Spain", "\n\n", "123", "é", "😀"):
        user = {"role": "user", "content": more}
        for further in ([user], [{"role": "assistant", "content": more}, user], [user, ASSISTANT, user]):
            assert tokens(front, *so_far, *further)[: len(common)] == common
    assert tokens(front, *so_far)[: len(common)] == common


def test_a_template_that_wants_turns_is_asked_what_it_takes(engine: Any) -> None:
    front = front_of(engine, ChatTemplate(TURNS))
    assert stable(front, USER) == tokens(front, USER)  # only an answer can follow
    assert stable(front, USER, ASSISTANT)[: len(tokens(front, USER, ASSISTANT, opens=False))] == tokens(
        front, USER, ASSISTANT, opens=False
    )
    with pytest.raises(RequestError, match="turns"):
        stable(front, ASSISTANT)


def test_what_a_template_rewrites_later_is_left_out(engine: Any) -> None:
    front = front_of(engine, ChatTemplate(FORGETS))
    assert front.tokenizer.decode(stable(front, SYSTEM, USER)) == f"<system>{SYSTEM['content']}<user>"
    with pytest.raises(RequestError, match="nothing of messages stays the same"):
        stable(front_of(engine, ChatTemplate(COUNTS)), SYSTEM, USER)


def test_a_text_ends_where_no_ending_changes_its_tokens(engine: Any, smollm2: ModelFiles) -> None:
    front = front_of(engine, None, Tokenizer.from_directory(smollm2.tokenizer_dir))
    for text in ("The cache keeps the ke", "def f(x):\n    ", "1 + 1 = 1", "one. Two.", "日本語の文章と" * 9):
        common = asyncio.run(stable_text_tokens(front, text, special=True))
        assert common
        for ending in ("", "y", "ys of all", " and", "23", "\n\n", "?!", "é", "漢字"):
            assert front.tokenizer.encode(text + ending)[: len(common)] == common


def test_a_model_without_a_template_is_told_of_prompts(engine: Any, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no chat template"):
        stable(front_of(engine, None), USER)
