from __future__ import annotations

import pytest

from headstart.lab.explain.retokenise import Retokeniser
from headstart.lab.traces.texts import PromptReader
from headstart.model.source import ModelFiles
from headstart.text import ChatTemplate, Tokenizer
from tests.faulty_logs import Body, Writer, chat


@pytest.fixture(scope="module")
def reader(smollm2: ModelFiles) -> PromptReader:
    directory = smollm2.tokenizer_dir
    return PromptReader(Tokenizer.from_directory(directory), ChatTemplate.from_directory(directory))


def awkward() -> list[Body]:
    writer = Writer(1)
    lines = [
        "",
        "  indented",
        "a.\nb",
        "x\n\n\ny",
        "tab\tand \n space",
        "<|im_end|> said by somebody",
        "日本語\nにほん",
        "-\n-",
    ]
    return [
        chat(
            "\n".join([*writer.random.sample(lines, 5), writer.prose(2)]),
            writer.question(),
            writer.prose(1),
            writer.choice(lines) + "?",
        )
        for _ in range(60)
    ]


def test_it_gives_what_the_reader_gives(reader: PromptReader) -> None:
    retokeniser = Retokeniser(reader)
    for body in awkward():
        assert retokeniser.tokens(body) == reader.body_tokens(body)


def test_what_all_prompts_share_is_tokenised_once(
    reader: PromptReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    retokeniser = Retokeniser(reader)
    writer = Writer(2)
    system = writer.prose(20)
    for _ in range(8):
        retokeniser.tokens(chat(system, writer.question()))
    asked: list[str] = []
    tokens = reader.tokens
    monkeypatch.setattr(reader, "tokens", lambda text: asked.append(text) or tokens(text))
    retokeniser.tokens(chat(system, "Why is that so?"))
    assert sum(map(len, asked)) < 40


def test_a_tokenizer_that_joins_what_is_cut_is_believed(
    reader: PromptReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that adds a token in front of each text, say: nothing is put together from pieces."""
    tokens = reader.tokens

    def with_beginning(text: str, *, add_special_tokens: bool = False) -> object:
        found = tokens(text, add_special_tokens=add_special_tokens)
        found.insert(0, 1)
        return found

    monkeypatch.setattr(reader, "tokens", with_beginning)
    retokeniser = Retokeniser(reader)
    for body in awkward():
        assert retokeniser.tokens(body) == reader.body_tokens(body)


def test_prompts_of_completions_are_the_readers(reader: PromptReader) -> None:
    for body in ({"prompt": "Hello there\nand here"}, {"prompt": [1, 2, 3]}):
        assert Retokeniser(reader).tokens(body) == reader.body_tokens(body)
