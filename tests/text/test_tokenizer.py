from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from headstart.errors import CorruptModelError, ModelNotFoundError, RequestError
from headstart.text import Tokenizer


def words(*extra: str) -> tokenizers.Tokenizer:
    """A tokenizer whose tokens are a few words."""
    vocabulary = {word: index for index, word in enumerate(("a", "b", "<s>", "</s>", *extra))}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def write(directory: Path, library: tokenizers.Tokenizer, **files: Any) -> Path:
    """A model directory; ``files`` are JSON files by stem."""
    library.save(str(directory / "tokenizer.json"))
    for stem, content in files.items():
        (directory / f"{stem}.json").write_text(json.dumps(content))
    return directory


@given(text=st.text())
def test_encode_is_the_librarys(family: Any, text: str) -> None:
    assert family.ours.encode(text) == family.library.encode(text).ids


@given(texts=st.lists(st.text()), special=st.booleans())
def test_many_texts_at_once_are_as_each_alone(family: Any, texts: list[str], *, special: bool) -> None:
    alone = [family.ours.encode(text, add_special_tokens=special) for text in texts]
    assert family.ours.encode_all(texts, add_special_tokens=special) == alone


def test_one_bad_text_of_many_is_an_error(families: Any) -> None:
    with pytest.raises(RequestError, match="character 1 is half a surrogate pair"):
        families["byte_level"].ours.encode_all(["good", "b\ud800d"])


@given(text=st.text())
def test_a_byte_level_text_comes_back_unchanged(families: Any, text: str) -> None:
    tokenizer = families["byte_level"].ours
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


@given(text=st.text())
def test_text_comes_back_as_the_library_gives_it(family: Any, text: str) -> None:
    ids = family.library.encode(text).ids
    assert family.ours.decode(ids) == family.library.decode(ids)


@given(data=st.data())
def test_random_ids_decode_as_the_library_decodes_them(family: Any, data: st.DataObject) -> None:
    ids = st.integers(0, family.ours.vocab_size - 1)
    if (byte_token := family.library.token_to_id("<0x00>")) is not None:
        # Byte tokens as whole characters: of a run that is not UTF-8 the library spoils the good part too.
        spelled = st.characters(codec="utf-8").map(lambda c: [byte_token + byte for byte in c.encode()])
        ids = ids.filter(lambda i: not byte_token <= i < byte_token + 256).map(lambda i: [i]) | spelled
    else:
        ids = ids.map(lambda i: [i])
    ids = [token_id for part in data.draw(st.lists(ids)) for token_id in part]
    for skip in (True, False):
        assert family.ours.decode(ids, skip) == family.library.decode(ids, skip_special_tokens=skip)


@given(raw=st.binary().map(bytes.lstrip))  # a leading space is the decoder's to drop
def test_byte_tokens_that_are_not_utf8_decode_as_unicode_recommends(families: Any, raw: bytes) -> None:
    family = families["llama"]
    ids = [family.library.token_to_id(f"<0x{byte:02X}>") for byte in raw]
    assert family.ours.decode(ids) == raw.decode("utf-8", "replace")


@pytest.mark.parametrize("token_id", [-1, 10**6, 2**70])
def test_an_id_without_a_token_is_the_callers_mistake(family: Any, token_id: int) -> None:
    with pytest.raises(RequestError, match=f"{token_id} has no token; .* below {family.ours.vocab_size}"):
        family.ours.decode([0, token_id])


def test_half_a_surrogate_pair_is_the_callers_mistake(family: Any) -> None:
    with pytest.raises(RequestError, match="character 2 is half a surrogate pair"):
        family.ours.encode("ab\ud83d")


def test_vocab_size_is_beyond_the_largest_id_even_with_holes(tmp_path: Path) -> None:
    library = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 7}, unk_token="a"))
    tokenizer = Tokenizer.from_directory(write(tmp_path, library))
    assert tokenizer.vocab_size == 8
    assert tokenizer.decode([7]) == "b"
    with pytest.raises(RequestError, match="3 has no token"):
        tokenizer.decode([3])


def test_special_tokens_are_named_by_string_or_object_and_the_config_speaks_first(tmp_path: Path) -> None:
    write(
        tmp_path,
        words(),
        tokenizer_config={
            "bos_token": {"content": "<s>", "lstrip": False},
            "eos_token": None,
            "add_bos_token": False,
        },
        special_tokens_map={
            "bos_token": "b",
            "eos_token": {"content": "</s>"},
            "additional_special_tokens": ["a"],
        },
    )
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")


def test_eos_ids_are_the_union_of_all_files(tmp_path: Path) -> None:
    write(
        tmp_path,
        words(),
        tokenizer_config={"eos_token": "</s>"},
        generation_config={"eos_token_id": [1, 0]},
        config={"eos_token_id": 2},
    )
    assert Tokenizer.from_directory(tmp_path).eos_token_ids == {0, 1, 2, 3}


def test_without_further_files_nothing_ends_an_answer(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_directory(write(tmp_path, words()))
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.eos_token_ids) == (None, None, frozenset())


def test_markers_are_special_even_if_the_library_was_not_told(tmp_path: Path) -> None:
    write(tmp_path, words(), tokenizer_config={"bos_token": "<s>", "eos_token": "</s>"})
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert tokenizer.encode("<s>a</s>") == [2, 0, 3]
    assert tokenizer.decode([2, 1, 3]) == "b"
    assert tokenizer.decode([2, 1, 3], skip_special_tokens=False) == "<s> b </s>"


def test_a_marker_that_was_added_as_plain_text_is_special_all_the_same(tmp_path: Path) -> None:
    library = words()
    library.add_tokens(["<end>"])
    tokenizer = Tokenizer.from_directory(write(tmp_path, library, tokenizer_config={"eos_token": "<end>"}))
    assert tokenizer.encode("b<end>") == [1, 4]
    assert tokenizer.decode([1, 4]) == "b"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, [2, 1]),  # what tokenizer.json says
        ({"add_bos_token": None}, [2, 1]),
        ({"add_bos_token": False}, [1]),
        ({"add_bos_token": True, "add_eos_token": True}, [2, 1, 3]),
        ({"add_bos_token": True, "bos_token": None}, [1]),  # nothing to add
    ],
)
def test_beginning_and_end_are_added_as_the_files_say(
    tmp_path: Path, config: dict[str, Any], expected: list[int]
) -> None:
    library = words()
    library.post_processor = TemplateProcessing(single=["<s>", "$A"], special_tokens=[("<s>", 2)])
    write(tmp_path, library, tokenizer_config={"bos_token": "<s>", "eos_token": "</s>", **config})
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert tokenizer.encode("b") == expected
    assert tokenizer.encode("b", add_special_tokens=False) == [1]


def test_truncation_and_padding_of_the_file_are_ignored(tmp_path: Path) -> None:
    library = words()
    library.enable_truncation(2)
    library.enable_padding(length=5)
    assert Tokenizer.from_directory(write(tmp_path, library)).encode("a b a") == [0, 1, 0]


@pytest.mark.parametrize("name", ["absent", "a_file"])
def test_what_is_no_directory_is_not_found(tmp_path: Path, name: str) -> None:
    (tmp_path / "a_file").touch()
    with pytest.raises(ModelNotFoundError, match=f"{name} is not a directory"):
        Tokenizer.from_directory(tmp_path / name)


def test_a_directory_without_tokenizer_json_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"has no tokenizer\.json"):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("tokenizer.json", b'{"version": "1.0", "model"', "is not a tokenizer"),
        ("tokenizer.json", b"{}", "is not a tokenizer"),
        ("tokenizer.json", b"\xff\xfe", "cannot be read"),
        ("tokenizer_config.json", b"{", "is not valid JSON"),
        ("tokenizer_config.json", b"[]", "must hold a JSON object, not list"),
        (
            "tokenizer_config.json",
            b'{"eos_token": "<end>"}',
            "eos_token '<end>' .* is not in its tokenizer.json",
        ),
        ("config.json", b'{"eos_token_id": "2"}', "must be an integer or a list of them, not '2'"),
        ("generation_config.json", b'{"eos_token_id": [1, null]}', "must be an integer or a list of them"),
    ],
)
def test_a_broken_file_is_one_sentence(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    write(tmp_path, words())
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorruptModelError, match=sentence) as caught:
        Tokenizer.from_directory(tmp_path)
    assert "\n" not in str(caught.value)


TRICKY = [
    "",
    " leading and trailing ",
    "1234567890, 3.14 and 2024-06-30",
    "a  b   c\n\n\nd\t\te\r\n",
    "naïve café Größe e\u0301",
    "日本語の文章 한국어 עברית",
    "😀👩‍👩‍👧🏳️‍🌈 \u200b\u202e\x00\x1b",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|> <repo_name>",
    "def f(x):\n    return x**2  # it's we'll I'D",
]


def test_smollm2_agrees_with_transformers(smollm2: Any) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(smollm2.tokenizer_dir)
    ours = Tokenizer.from_directory(smollm2.tokenizer_dir)
    for text in TRICKY:
        ids = theirs.encode(text)
        assert ours.encode(text) == ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        assert ours.decode(ids, skip_special_tokens=False) == text


def test_smollm2_is_described_by_its_files(smollm2: Any) -> None:
    tokenizer = Tokenizer.from_directory(smollm2.tokenizer_dir)
    assert tokenizer.vocab_size == 49152
    assert tokenizer.eos_token == "<|im_end|>"
    assert 2 in tokenizer.eos_token_ids
