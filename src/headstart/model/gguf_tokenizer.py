"""The tokenizer inside a GGUF file, written as ``tokenizer.json``.

A program: ``python -m headstart.model.gguf_tokenizer GGUF DIRECTORY``, run in a process of its own because
transformers, which rebuilds the vocabulary, brings torch.  What transformers leaves out is added here, and
the result is held against the GGUF's own metadata before anything is written.  It ends with 0, or with one
of `EXIT_CODES` and one sentence on the last line of standard error.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors

from headstart.errors import CorruptModelError, ModelError, UnsupportedModelError
from headstart.model.gguf_file import GGUFFile

EXIT_CODES: dict[type[ModelError], int] = {CorruptModelError: 3, UnsupportedModelError: 4}

_CONTROL = 3  # tokenizer.ggml.token_type of tokens such as <|im_start|>

# Names in tokenizer.ggml.pre of ways to cut text before merging that transformers leaves at GPT-2's way.
_GPT2_WAY = {"gpt-2"}
# Each digit alone first, then GPT-2's way.  It shows wherever spaces stand before a number: GPT-2's way
# alone gives the last space to the number, this one leaves the run of spaces whole.
_DIGITS_FIRST = {"smollm", "starcoder", "refact", "command-r"}
_LLAMA3 = {"llama-bpe", "llama3", "llama-v3"}
# A piece that is a token as it stands is taken whole, even where no merges lead to it.
_IGNORES_MERGES = {*_LLAMA3, "tekken"}

_PROBES = (
    "Hello, world! It's 3:45 on 2024-12-31.",
    "  two  spaces   three\n\n\nthree newlines\t\ttabs  ",
    "for i in range(10):\n    print(i,  12345)\n",
    "Grüße, naïve café — “quoted” … 你好世界 👩‍👩‍👧‍👦 🇺🇳 e\u0301",
)


def convert(gguf: Path, directory: Path) -> None:
    """Write ``tokenizer.json``, ``tokenizer_config.json`` and ``generation_config.json`` into ``directory``.

    Raises `UnsupportedModelError` for a tokenizer that cannot be rebuilt faithfully and
    `CorruptModelError` for a file without one, or whose special tokens do not exist.
    """
    header = GGUFFile.read(gguf)
    metadata = header.metadata
    kind, tokens = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.tokens")
    if not tokens:
        raise CorruptModelError(f"{gguf} holds no tokenizer (tokenizer.ggml.tokens is missing)")
    if kind not in ("gpt2", "llama"):
        raise _cannot(gguf, f"its kind {kind!r} is neither gpt2 (byte-level BPE) nor llama (SentencePiece)")
    special = _special_tokens(gguf, metadata, tokens)
    tokenizer = _rebuild(gguf)
    if kind == "gpt2":
        _correct_byte_level(gguf, tokenizer, metadata.get("tokenizer.ggml.pre"))
    else:
        _correct_sentencepiece(tokenizer, space_prefix=metadata.get("tokenizer.ggml.add_space_prefix", True))
    add_bos = _adds_bos(metadata) and "bos_token" in special
    tokenizer.post_processor = _bos_processor(tokenizer, special["bos_token"]) if add_bos else None
    _check(gguf, tokenizer, tokens, metadata.get("tokenizer.ggml.token_type", []))

    tokenizer.save(str(directory / "tokenizer.json"))
    config: dict[str, Any] = {"add_bos_token": add_bos, **special}
    if template := metadata.get("tokenizer.chat_template"):
        config["chat_template"] = template
    _write_json(directory / "tokenizer_config.json", config)
    _write_json(directory / "generation_config.json", {"eos_token_id": sorted(header.eos_token_ids)})


def _rebuild(gguf: Path) -> Tokenizer:
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    try:
        # A directory of its own: transformers would let files beside the GGUF speak for it.
        with tempfile.TemporaryDirectory() as alone:
            (Path(alone) / "model.gguf").symlink_to(gguf.resolve())
            loaded = AutoTokenizer.from_pretrained(alone, gguf_file="model.gguf", local_files_only=True)
    except Exception as error:  # tokenizers raises nothing more exact
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise _cannot(gguf, reason) from error
    tokenizer: Tokenizer = loaded.backend_tokenizer
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _correct_byte_level(gguf: Path, tokenizer: Tokenizer, name: str | None) -> None:
    """Make a GPT-2-like tokenizer cut text the way called ``name``.

    transformers falls back to GPT-2's way for every name it does not know, without a word.
    """
    if name in _DIGITS_FIRST:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    elif name not in _GPT2_WAY and isinstance(tokenizer.pre_tokenizer, pre_tokenizers.ByteLevel):
        raise _cannot(gguf, f"it cuts text in a way called {name!r}, which headstart does not know")
    tokenizer.model.ignore_merges = name in _IGNORES_MERGES


def _correct_sentencepiece(tokenizer: Tokenizer, *, space_prefix: bool) -> None:
    """Make a SentencePiece-like tokenizer treat leading spaces as llama.cpp and Llama 2 do.

    One space goes before every stretch of text, also before one that begins with a space and one after
    a control token.  transformers adds it at the very start only, and there swallows a leading space.
    """
    spaces = normalizers.Replace(" ", "\u2581")
    prefix = [normalizers.Prepend("\u2581")] if space_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, spaces])
    tokenizer.pre_tokenizer = None
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if space_prefix else [])])


def _special_tokens(gguf: Path, metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, str]:
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    special = {}
    for name, key in names.items():
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is None:
            continue
        if token_id >= len(tokens):
            raise CorruptModelError(
                f"{gguf}: the {key} token is number {token_id}, the vocabulary has {len(tokens)} tokens"
            )
        special[name] = tokens[token_id]
    return special


def _adds_bos(metadata: Mapping[str, Any]) -> bool:
    """Whether prompts begin with the BOS token; llama.cpp's default where the file does not say."""
    default = metadata["tokenizer.ggml.model"] == "llama" or metadata.get("tokenizer.ggml.pre") in _LLAMA3
    return bool(metadata.get("tokenizer.ggml.add_bos_token", default))


def _bos_processor(tokenizer: Tokenizer, bos: str) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(
        single=[bos, "$A"], pair=[bos, "$A", "$B"], special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )


def _check(gguf: Path, tokenizer: Tokenizer, tokens: list[str], types: list[int]) -> None:
    """Every token has its number, control tokens stay whole, text survives encode and decode."""
    if (size := tokenizer.get_vocab_size()) != len(tokens):
        raise _cannot(gguf, f"{size} tokens come out of the file's {len(tokens)}")
    for token_id, token in enumerate(tokens):
        if (found := tokenizer.token_to_id(token)) != token_id:
            raise _cannot(gguf, f"{token!r} gets the number {found}, not {token_id}")
    for token_id, kind in enumerate(types):
        if kind == _CONTROL and token_id not in tokenizer.encode(f"a{tokens[token_id]}b").ids:
            raise _cannot(gguf, f"the control token {tokens[token_id]!r} is cut into pieces")
    for probe in _PROBES:
        if tokenizer.decode(tokenizer.encode(probe).ids) != probe:
            raise _cannot(gguf, f"the text {probe!r} does not come back from encoding and decoding")


def _cannot(gguf: Path, reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"the tokenizer of {gguf} cannot be rebuilt: {reason}; put the model's tokenizer.json beside the file"
    )


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def main() -> int:
    """Convert what the command line names; the exit status."""
    if len(sys.argv) != 3:
        print("usage: python -m headstart.model.gguf_tokenizer GGUF DIRECTORY", file=sys.stderr)  # noqa: T201 -- this module is a program
        return 2
    try:
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except ModelError as error:
        print(error, file=sys.stderr)  # noqa: T201 -- as above
        return EXIT_CODES.get(type(error), 1)
    return 0


if __name__ == "__main__":
    # The parent shows one sentence; nobody reads transformers' advice about torch versions.
    warnings.simplefilter("ignore")
    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.exit(main())
