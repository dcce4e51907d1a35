"""What the lab's tests share."""

from __future__ import annotations

import pytest

from headstart.lab.traces.texts import PromptReader
from headstart.text import ChatTemplate, Tokenizer
from tests.conftest import write_tiny_tokenizer


@pytest.fixture(scope="session")
def tiny_reader(tmp_path_factory: pytest.TempPathFactory) -> PromptReader:
    """Reads prompts with the tiny tokenizer and its ChatML template."""
    directory = tmp_path_factory.mktemp("tiny-tokenizer")
    write_tiny_tokenizer(directory)
    return PromptReader(Tokenizer.from_directory(directory), ChatTemplate.from_directory(directory))
