"""Small tokenizers of the families that headstart decodes, each beside the library's own view of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from headstart.text import Tokenizer

TRAINING_TEXT = """The cache keeps the keys and values of a prefix, so the same words are not computed twice.
Größe, naïve café, žluťoučký kůň; 日本語の文章と漢字、한국어 문장도; emoji 😀 👩‍👩‍👧 🏳️‍🌈 👍🏽
and e\u0301 combined.
  def f(x):\n\treturn x  # four  spaces    and a tab\t\n\n\n1234567890 3.14159 <b>&amp;</b>"""
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


@dataclass(frozen=True)
class Family:
    """One tokenizer, as headstart reads it and as the library alone does."""

    ours: Tokenizer
    library: tokenizers.Tokenizer


def byte_level() -> tokenizers.Tokenizer:
    """As GPT-2, Llama 3, Qwen and SmolLM have it."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<s>", "</s>", "<end→>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TRAINING_TEXT], trainer)
    tokenizer.add_tokens(["<tool>", "a b"])
    return tokenizer


def _pieces() -> list[str]:
    words = ["▁the", "▁a", "▁cache", "th", "he", "▁▁", "▁▁▁▁", "日本", "é", "in", "er"]
    return list(dict.fromkeys(["<unk>", "<s>", "</s>", *BYTES, *words, *"▁etaoinshrdlucabkpwvxy,.\n日本語é"]))


def llama() -> tokenizers.Tokenizer:
    """As Llama 2 and Mistral have it: a leading space that decoding takes back, bytes for rare characters."""
    vocabulary = {piece: index for index, piece in enumerate(_pieces())}
    merges = [("t", "h"), ("h", "e"), ("▁", "▁"), ("▁▁", "▁▁"), ("日", "本"), ("▁", "a"), ("i", "n")]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def metaspace() -> tokenizers.Tokenizer:
    """As a converted SentencePiece unigram model has it."""
    scored = [(piece, -float(rank)) for rank, piece in enumerate(_pieces())]
    tokenizer = tokenizers.Tokenizer(models.Unigram(scored, 0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback()])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def as_family(make: Callable[[], tokenizers.Tokenizer], directory: Path) -> Family:
    """The tokenizer saved as a model directory, with ``<s>`` and ``</s>`` for beginning and end."""
    make().save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    return Family(
        ours=Tokenizer.from_directory(directory),
        library=tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json")),
    )


@pytest.fixture(scope="session")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Family]:
    """The small tokenizers by name."""
    makers = (byte_level, llama, metaspace)
    return {make.__name__: as_family(make, tmp_path_factory.mktemp(make.__name__)) for make in makers}


@pytest.fixture(scope="session", params=["byte_level", "llama", "metaspace"])
def family(request: pytest.FixtureRequest, families: dict[str, Family]) -> Family:
    """Each of the small tokenizers in turn."""
    return families[request.param]
