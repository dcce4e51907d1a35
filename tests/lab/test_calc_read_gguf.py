from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from headstart.errors import CorruptModelError
from headstart.lab.calc.read_gguf import read_gguf
from headstart.lab.calc.shape import LayerGroup, Parameters, Shape
from headstart.lab.calc.vram import Storage, weights_bytes
from headstart.model.gguf_file import GGUFFile
from headstart.model.source import ModelFiles

TENSORS = {
    "token_embd.weight": (10, 32),
    "blk.0.attn_norm.weight": (32,),
    "blk.0.attn_q.weight": (32, 32),
    "blk.0.ffn_gate_inp.weight": (4, 32),
    "blk.0.ffn_up_exps.weight": (4, 16, 32),
}


def read(tmp_path: Path, architecture: str, **metadata: Any) -> Shape:
    """Of a file with this architecture's keys (dots are double underscores)."""
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    values = {"block_count": 6, "embedding_length": 32, "attention__head_count": 4, "context_length": 99}
    for key, value in (values | metadata).items():
        name = f"{architecture}.{key.replace('__', '.')}"
        if isinstance(value, list):
            writer.add_array(name, value)
        else:
            writer.add_uint32(name, value)
    for name, shape in TENSORS.items():
        writer.add_tensor(name, np.zeros(shape, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_gguf(GGUFFile.read(path), "model")


def test_the_real_model(smollm2: ModelFiles) -> None:
    header = GGUFFile.read(smollm2.weights[0])
    shape = read_gguf(header, "smollm2")
    assert shape.parameters is not None
    assert shape.parameters.total == 134_515_008
    assert 2 * shape.elements_per_token() == 23_040
    assert shape.context_length == 8192
    end = max(tensor.offset + tensor.nbytes for tensor in header.tensors.values())
    assert 0.98 * end < weights_bytes(shape, Storage()) < end  # the tensors, without header and padding


def test_other_weights_on_request(smollm2: ModelFiles) -> None:
    shape = read_gguf(GGUFFile.read(smollm2.weights[0]), "smollm2")
    assert weights_bytes(shape, Storage(dtype="float16")) == 2 * 134_515_008
    matrices = 30 * (2 * 576 * (576 + 192) + 3 * 576 * 1536)
    assert weights_bytes(shape, Storage(quantization="fp8")) == 2 * 134_515_008 - matrices


def test_parts_of_the_weights(tmp_path: Path) -> None:
    shape = read(tmp_path, "qwen3moe", expert_count=4, expert_used_count=2)
    assert shape.parameters == Parameters(kept=320 + 32 + 128, linear=1024, experts=2048, active_experts=1024)
    assert shape.stored_bytes == 2 * (480 + 1024 + 2048)
    assert shape.context_length == 99


@pytest.mark.parametrize(
    ("architecture", "metadata", "groups"),
    [
        ("llama", {}, [LayerGroup(6, 4, 16)]),
        ("llama", {"attention__head_count_kv": 2}, [LayerGroup(6, 2, 16)]),
        ("qwen3", {"attention__key_length": 16, "attention__value_length": 12}, [LayerGroup(6, 4, 28)]),
        ("gemma2", {"attention__sliding_window": 64}, [LayerGroup(3, 4, 16, 64), LayerGroup(3, 4, 16)]),
        ("gemma3", {"attention__sliding_window": 64}, [LayerGroup(5, 4, 16, 64), LayerGroup(1, 4, 16)]),
        ("gpt-oss", {"attention__sliding_window": 64}, [LayerGroup(3, 4, 16, 64), LayerGroup(3, 4, 16)]),
        ("phi3", {"attention__sliding_window": 64}, [LayerGroup(6, 4, 16, 64)]),
        (
            "new",
            {"attention__sliding_window": 64, "attention__sliding_window_pattern": [True, False] * 3},
            [LayerGroup(3, 4, 16, 64), LayerGroup(3, 4, 16)],
        ),
        (
            "lfm2",
            {"attention__head_count_kv": [0, 0, 2, 0, 0, 4]},
            [LayerGroup(1, 2, 16), LayerGroup(1, 4, 16)],
        ),
        (
            "deepseek2",
            {
                "attention__kv_lora_rank": 8,
                "rope__dimension_count": 4,
                "attention__head_count_kv": 1,
                "attention__key_length": 12,
                "attention__value_length": 8,
                "attention__key_length_mla": 10,
            },
            [LayerGroup(6, 1, 12, is_latent=True)],
        ),
        (
            "deepseek2",
            {"attention__kv_lora_rank": 8, "attention__key_length": 10, "attention__value_length": 6},
            [LayerGroup(6, 4, 16)],
        ),
    ],
)
def test_what_layers_keep(
    tmp_path: Path, architecture: str, metadata: dict[str, Any], groups: list[LayerGroup]
) -> None:
    assert list(read(tmp_path, architecture, **metadata).groups) == groups


def test_a_missing_value(tmp_path: Path) -> None:
    with pytest.raises(CorruptModelError, match="block_count must be a positive integer, not 0"):
        read(tmp_path, "llama", block_count=0)
