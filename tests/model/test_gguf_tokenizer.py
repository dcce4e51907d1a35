from __future__ import annotations

import functools
import itertools
import json
from pathlib import Path

import pytest
import regex
from tokenizers import Tokenizer, pre_tokenizers

from headstart.errors import CorruptModelError, UnsupportedModelError
from headstart.model import gguf_tokenizer
from headstart.model.gguf_file import GGUFFile
from headstart.model.gguf_tokenizer import convert, main
from headstart.model.source import ModelFiles

GOLDEN = json.loads((Path(__file__).parent / "golden" / "smollm2_tokens.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def smollm2_dir(smollm2: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2's tokenizer as the code of today converts it; the cache's may be of yesterday."""
    directory = tmp_path_factory.mktemp("smollm2")
    convert(smollm2.weights[0], directory)
    return directory


@pytest.fixture(scope="module")
def smollm2_tokenizer(smollm2_dir: Path) -> Tokenizer:
    return load(smollm2_dir)


def load(directory: Path) -> Tokenizer:
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


def test_cache_holds_what_the_converter_makes(smollm2: ModelFiles, smollm2_dir: Path) -> None:
    for path in smollm2_dir.iterdir():
        cached = smollm2.tokenizer_dir / path.name
        assert json.loads(cached.read_text()) == json.loads(path.read_text()), "raise _TOKENIZER_RECIPE"


class NaiveBPE:
    """Byte-level BPE as written in a textbook: cut by the published patterns, merge the best pair first."""

    # llama.cpp's patterns for "smollm": each digit alone, then GPT-2's way.
    DIGIT = regex.compile(r"\p{N}")
    GPT2 = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")

    def __init__(self, gguf: Path) -> None:
        metadata = GGUFFile.read(gguf).metadata
        self.ids = {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}
        merges = metadata["tokenizer.ggml.merges"]
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}

    def encode(self, text: str) -> list[int]:
        return [token_id for piece in self._cut(text) for token_id in self._merge(piece)]

    def _cut(self, text: str) -> list[str]:
        pieces, start = [], 0
        for digit in self.DIGIT.finditer(text):
            pieces += [text[start : digit.start()], digit.group()]
            start = digit.end()
        return [piece for part in [*pieces, text[start:]] for piece in self.GPT2.findall(part)]

    def _merge(self, piece: str) -> list[int]:
        symbols = [_BYTE_LETTERS()[byte] for byte in piece.encode()]
        while len(symbols) > 1:
            pairs = list(itertools.pairwise(symbols))
            best = min(pairs, key=lambda pair: self.ranks.get(pair, len(self.ranks)))
            if best not in self.ranks:
                break
            at = pairs.index(best)
            symbols[at : at + 2] = ["".join(best)]
        return [self.ids[symbol] for symbol in symbols]


@functools.cache
def _BYTE_LETTERS() -> list[str]:  # noqa: N802 -- a constant, made when first needed
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)]


@pytest.mark.parametrize("text", GOLDEN, ids=lambda text: repr(text[:20]))
def test_smollm2_golden_tokens(smollm2_tokenizer: Tokenizer, text: str) -> None:
    assert smollm2_tokenizer.encode(text).ids == GOLDEN[text]
    assert smollm2_tokenizer.decode(GOLDEN[text], skip_special_tokens=False) == text


def test_smollm2_equals_a_naive_tokenizer(smollm2: ModelFiles, smollm2_tokenizer: Tokenizer) -> None:
    naive = NaiveBPE(smollm2.weights[0])
    for text in GOLDEN:
        if "<|" not in text:
            assert naive.encode(text) == smollm2_tokenizer.encode(text).ids, text


def test_smollm2_special_tokens(smollm2: ModelFiles, smollm2_dir: Path, smollm2_tokenizer: Tokenizer) -> None:
    config = json.loads((smollm2_dir / "tokenizer_config.json").read_text())
    template = config.pop("chat_template")
    assert template == GGUFFile.read(smollm2.weights[0]).metadata["tokenizer.chat_template"]
    assert config == {
        "add_bos_token": False,
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>",
    }
    generation = json.loads((smollm2_dir / "generation_config.json").read_text())
    assert generation == {"eos_token_id": [2]}
    assert smollm2_tokenizer.decode([1, 9690, 2]) == "system"


def test_byte_level_tokenizer_comes_back_as_it_was(write_gguf, tiny_llama_dir: Path, tmp_path: Path) -> None:
    convert(write_gguf(), tmp_path)
    ours, original = load(tmp_path), load(tiny_llama_dir)
    for text in GOLDEN:
        assert ours.encode(text).ids == original.encode(text).ids
    assert ours.get_vocab() == original.get_vocab()


def test_files_beside_the_gguf_are_not_asked(write_gguf, tiny_llama_dir: Path, tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    beside.mkdir()
    path = write_gguf(directory=beside)
    expected = load_converted(path, tmp_path)
    vocabulary = json.loads((tiny_llama_dir / "tokenizer.json").read_text())
    vocabulary["pre_tokenizer"] = {"type": "Digits", "individual_digits": True}
    (beside / "tokenizer.json").write_text(json.dumps(vocabulary))
    assert load_converted(path, tmp_path) == expected


def load_converted(gguf: Path, directory: Path) -> str:
    convert(gguf, directory)
    return (directory / "tokenizer.json").read_text()


def test_bos_is_added_only_where_the_file_says_so(write_gguf, tmp_path: Path) -> None:
    convert(write_gguf(), tmp_path)
    without = load(tmp_path).encode("Hello").ids
    convert(write_gguf(metadata={"tokenizer.ggml.add_bos_token": True}), tmp_path)
    assert load(tmp_path).encode("Hello").ids == [1, *without]
    assert load(tmp_path).encode("Hello", add_special_tokens=False).ids == without
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["add_bos_token"] is True


def test_llama3_names_bring_their_ways(write_gguf, tmp_path: Path) -> None:
    convert(write_gguf(metadata={"tokenizer.ggml.pre": "llama-bpe"}), tmp_path)
    tokenizer = load(tmp_path)
    assert tokenizer.model.ignore_merges
    assert isinstance(tokenizer.pre_tokenizer, pre_tokenizers.Sequence)
    assert tokenizer.encode("Hello").ids[0] == 1  # this kind begins with BOS unless told otherwise


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
def test_qwen_cuts_text_its_own_way(write_gguf, tmp_path: Path, architecture: str) -> None:
    metadata = {"tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.add_bos_token": False}
    convert(write_gguf(architecture=architecture, metadata=metadata), tmp_path)
    tokenizer = load(tmp_path)
    pieces = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str("It's 2024:\n\n  x->y")]
    assert pieces == ["It", "'s", "Ġ", "2", "0", "2", "4", ":ĊĊ", "Ġ", "Ġx", "->", "y"]
    assert tokenizer.encode("<|im_start|>x").ids[0] == 1
    for text in GOLDEN:
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_all_end_tokens_are_written(write_gguf, tmp_path: Path) -> None:
    convert(write_gguf(metadata={"tokenizer.ggml.eot_token_id": 0}), tmp_path)
    assert json.loads((tmp_path / "generation_config.json").read_text()) == {"eos_token_id": [0, 2]}


# SentencePiece

PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
PIECES += [
    "\u2581",
    "t",
    "h",
    "e",
    "n",
    "i",
    "s",
    "th",
    "the",
    "\u2581the",
    "\u2581t",
    "is",
    "\u2581is",
    "\u2581\u2581",
]
SENTENCEPIECE = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.pre": None,
    "tokenizer.ggml.merges": None,
    "tokenizer.ggml.tokens": PIECES,
    "tokenizer.ggml.scores": [-float(index) for index in range(len(PIECES))],
    "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (len(PIECES) - 259),
}


def test_sentencepiece_tokenizer(write_gguf, tmp_path: Path) -> None:
    convert(write_gguf(metadata=SENTENCEPIECE), tmp_path)
    tokenizer = load(tmp_path)
    assert tokenizer.encode("then is").tokens == ["<s>", "\u2581the", "n", "\u2581is"]
    # A space goes before every stretch of text: after a control token, and before a leading space.
    assert tokenizer.encode("</s>the").tokens == ["<s>", "</s>", "\u2581the"]
    assert tokenizer.encode(" is").tokens == ["<s>", "\u2581", "\u2581is"]
    assert tokenizer.encode("é").tokens == ["<s>", "\u2581", "<0xC3>", "<0xA9>"]
    for text in GOLDEN:
        if "<|" not in text:
            assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_sentencepiece_without_the_space(write_gguf, tmp_path: Path) -> None:
    metadata = SENTENCEPIECE | {
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": False,
    }
    convert(write_gguf(metadata=metadata), tmp_path)
    tokenizer = load(tmp_path)
    assert tokenizer.encode("then is").tokens == ["the", "n", "\u2581is"]
    assert tokenizer.decode(tokenizer.encode(" the").ids) == " the"


# what cannot be rebuilt


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        (
            {"tokenizer.ggml.pre": "bloom"},
            UnsupportedModelError,
            "called 'bloom', which headstart does not know",
        ),
        ({"tokenizer.ggml.pre": None}, UnsupportedModelError, "called None"),
        ({"tokenizer.ggml.model": "bert"}, UnsupportedModelError, "its kind 'bert' is neither gpt2"),
        ({"tokenizer.ggml.tokens": None}, CorruptModelError, "holds no tokenizer"),
        ({"tokenizer.ggml.eos_token_id": 512}, CorruptModelError, "eos token is number 512"),
        ({"tokenizer.ggml.merges": ["zz yy"]}, UnsupportedModelError, "cannot be rebuilt: .*zz"),
    ],
)
def test_what_cannot_be_rebuilt(write_gguf, tmp_path: Path, metadata, error, message: str) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(error, match=message) as caught:
        convert(write_gguf(metadata=metadata), target)
    assert "\n" not in str(caught.value)
    assert list(target.iterdir()) == []


def test_vocabulary_with_a_token_twice_is_noticed(write_gguf, tiny_llama_dir: Path, tmp_path: Path) -> None:
    vocabulary = load(tiny_llama_dir).get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    tokens[300] = tokens[301]
    merges = {"tokenizer.ggml.merges": ["Ġ t"]}
    with pytest.raises(UnsupportedModelError, match="511 tokens come out of the file's 512"):
        convert(write_gguf(metadata={"tokenizer.ggml.tokens": tokens} | merges), tmp_path)


def test_wrong_rebuild_is_noticed(write_gguf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rebuild = gguf_tokenizer._rebuild

    def lossy(gguf: Path) -> Tokenizer:
        tokenizer = rebuild(gguf)
        tokenizer.normalizer = gguf_tokenizer.normalizers.Lowercase()
        return tokenizer

    monkeypatch.setattr(gguf_tokenizer, "_rebuild", lossy)
    with pytest.raises(UnsupportedModelError, match=r"the text \"Hello.* does not come back"):
        convert(write_gguf(), tmp_path)


def test_program_ends_with_a_sentence(write_gguf, tmp_path, monkeypatch, capsys) -> None:
    path = write_gguf(metadata={"tokenizer.ggml.model": "bert"})
    monkeypatch.setattr("sys.argv", ["gguf_tokenizer", str(path), str(tmp_path)])
    assert main() == 4
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setattr("sys.argv", ["gguf_tokenizer"])
    assert main() == 2
