from __future__ import annotations

import random
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from headstart.errors import CorruptModelError, ModelError, UnsupportedModelError
from headstart.model.gguf_file import GGUFFile
from headstart.model.source import ModelFiles


def test_says_what_the_gguf_packages_reader_says(write_gguf) -> None:
    path = write_gguf(kind=GGMLQuantizationType.Q4_0)
    header, reference = GGUFFile.read(path), gguf.GGUFReader(path)

    theirs = {key: field.contents() for key, field in reference.fields.items() if not key.startswith("GGUF.")}
    assert header.metadata == theirs
    assert list(header.tensors) == [tensor.name for tensor in reference.tensors]
    for tensor in reference.tensors:
        ours = header.tensors[tensor.name]
        assert ours.shape == tuple(reversed(tensor.shape.tolist()))
        assert (ours.type, ours.offset, ours.nbytes) == (
            tensor.tensor_type,
            tensor.data_offset,
            tensor.n_bytes,
        )


def test_reads_the_real_model(smollm2: ModelFiles) -> None:
    header = GGUFFile.read(smollm2.weights[0])
    assert len(header.tensors) == 272
    assert header.metadata["tokenizer.ggml.pre"] == "smollm"
    assert header.tensors["token_embd.weight"].shape == (49152, 576)
    assert header.eos_token_ids == {2}


def test_every_end_token_ends_an_answer(write_gguf) -> None:
    path = write_gguf(metadata={"tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 6})
    assert GGUFFile.read(path).eos_token_ids == {2, 5, 6}


def test_digest_depends_on_metadata_and_not_on_tensors(write_gguf) -> None:
    digest = GGUFFile.read(write_gguf()).metadata_digest
    assert GGUFFile.read(write_gguf(kind=GGMLQuantizationType.F16)).metadata_digest == digest
    assert GGUFFile.read(write_gguf(metadata={"tokenizer.ggml.eos_token_id": 0})).metadata_digest != digest


@pytest.mark.parametrize("content", [b"", b"GG", b"This is a text file, whatever its name says.\n"])
def test_file_that_is_not_gguf(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(CorruptModelError, match="not a GGUF file"):
        GGUFFile.read(path)


def test_file_cut_in_its_tensors(write_gguf) -> None:
    path = write_gguf()
    whole = path.read_bytes()
    last = list(GGUFFile.read(path).tensors.values())[-1]
    path.write_bytes(whole[: last.offset + last.nbytes - 1])
    with pytest.raises(CorruptModelError, match=f"truncated: tensor '{last.name}' ends at byte"):
        GGUFFile.read(path)


def test_file_cut_anywhere_in_its_header(write_gguf) -> None:
    path = write_gguf()
    whole = path.read_bytes()
    end = min(tensor.offset for tensor in GGUFFile.read(path).tensors.values())
    for cut in {4, 8, 23, 24, end - 40, *random.Random(0).sample(range(5, end - 40), 60)}:
        path.write_bytes(whole[:cut])
        with pytest.raises(CorruptModelError):
            GGUFFile.read(path)


def test_damaged_headers_end_in_one_sentence(write_gguf) -> None:
    path = write_gguf()
    whole = path.read_bytes()
    end = min(tensor.offset for tensor in GGUFFile.read(path).tensors.values())
    chance = random.Random(1)
    sentences = []
    for _ in range(200):
        damaged = bytearray(whole)
        for _ in range(4):
            damaged[chance.randrange(4, end)] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            GGUFFile.read(path)  # damage inside a token's text cannot be seen here
        except ModelError as error:
            sentences.append(str(error))
    assert sentences
    assert not any("\n" in sentence for sentence in sentences)


def test_count_beyond_the_file_is_no_allocation(write_gguf) -> None:
    path = write_gguf()
    whole = path.read_bytes()
    at = whole.index(b"tokenizer.ggml.token_type") + len(b"tokenizer.ggml.token_type") + 8
    path.write_bytes(whole[:at] + struct.pack("<Q", 2**60) + whole[at + 8 :])
    with pytest.raises(CorruptModelError, match="ends after the file"):
        GGUFFile.read(path)


@pytest.mark.parametrize("version", [1, 4, 3 << 24])
def test_other_versions_and_byte_orders_are_named(write_gguf, version: int) -> None:
    path = write_gguf()
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + struct.pack("<I", version) + whole[8:])
    with pytest.raises(UnsupportedModelError, match=f"version {version}"):
        GGUFFile.read(path)


def test_unknown_tensor_type_is_named(write_gguf) -> None:
    path = write_gguf(tensors={"output_norm.weight": np.ones(64, np.float32)})
    whole = path.read_bytes()
    at = whole.rindex(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8
    path.write_bytes(whole[:at] + struct.pack("<I", 9999) + whole[at + 4 :])
    with pytest.raises(UnsupportedModelError, match=r"'output_norm\.weight' has the unknown type 9999"):
        GGUFFile.read(path)


def test_split_files_are_refused(write_gguf) -> None:
    with pytest.raises(UnsupportedModelError, match="one of 3 parts"):
        GGUFFile.read(write_gguf(metadata={"split.count": 3}))
