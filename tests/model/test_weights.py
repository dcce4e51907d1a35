from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType as Kind
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from headstart.errors import CorruptModelError, ModelError, UnsupportedModelError
from headstart.model.gguf_weights import SUPPORTED_TYPES, read_gguf
from headstart.model.source import ModelFiles, resolve
from headstart.model.spec import ModelSpec, read_spec
from headstart.model.weights import load_weights

EXACT = [Kind.F32, Kind.F16, Kind.BF16]
QUANTISED = [Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1]
# Random rows that llama.cpp's own C code quantised, and what it dequantised them to.
GOLDEN = np.load(Path(__file__).parent / "golden" / "quantised_blocks.npz")


def of_gguf(path: Path) -> tuple[ModelFiles, ModelSpec]:
    files = ModelFiles(path.name, "gguf", (path,), path.parent)
    return files, read_spec(files)


# GGUF


def test_smollm2_equals_what_transformers_reads(smollm2: ModelFiles) -> None:
    (path,) = smollm2.weights
    # Not from_pretrained(gguf_file=...), which asks for accelerate before it calls these.
    spec = read_spec(smollm2)
    with torch.device("meta"):
        empty = LlamaForCausalLM(LlamaConfig(num_hidden_layers=spec.num_layers, tie_word_embeddings=True))
    # The names of its tensors suffice; given its 397 modules, transformers builds a name map for each.
    names = SimpleNamespace(config=empty.config, state_dict=empty.state_dict, named_children=dict)
    theirs = load_gguf_checkpoint(path, return_tensors=True, model_to_load=names)["tensors"]
    ours = load_weights(smollm2, spec, dtype=torch.float32)
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), name


@pytest.mark.parametrize("kind", EXACT + QUANTISED, ids=lambda kind: kind.name)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_every_type_comes_back(write_gguf, reference_tensors, kind: Kind, tied: bool) -> None:
    files, spec = of_gguf(write_gguf(kind=kind, tied=tied))
    weights = load_weights(files, spec, dtype=torch.float32)
    expected = reference_tensors(tied=tied)
    assert weights.keys() == expected.keys()
    for name, tensor in expected.items():
        if tensor.ndim == 2:
            tensor = gguf.quants.dequantize(gguf.quants.quantize(tensor, kind), kind)
        np.testing.assert_array_equal(weights[name].numpy(), tensor, err_msg=name)


@pytest.mark.parametrize("name", [name for name in GOLDEN if name.endswith("_blocks")])
def test_blocks_that_llama_cpp_quantised(write_gguf, name: str) -> None:
    kind = name.removesuffix("_blocks")
    path = write_gguf(blocks={"golden": (GOLDEN[name], Kind[kind])})
    values = dict(read_gguf(path, of_gguf(path)[1], names=()))["golden"].numpy()
    np.testing.assert_allclose(values, GOLDEN[f"{kind}_values"], rtol=1e-6)


def test_the_types_shown_are_the_types_tested() -> None:
    golden = {Kind[name.removesuffix("_blocks")] for name in GOLDEN if name.endswith("_blocks")}
    assert set(SUPPORTED_TYPES) == {*EXACT, *QUANTISED, *golden}


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "smollm3"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_every_family_comes_back(write_gguf, reference_tensors, architecture: str, tied: bool) -> None:
    weights = load_weights(*of_gguf(write_gguf(architecture=architecture, tied=tied)), dtype=torch.float32)
    expected = reference_tensors(architecture=architecture, tied=tied)
    assert weights.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(weights[name].numpy(), tensor, err_msg=name)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
def test_families_equal_what_transformers_reads(write_gguf, architecture: str) -> None:
    path = write_gguf(architecture=architecture)
    with torch.device("meta"):
        config = AutoConfig.for_model(architecture, num_hidden_layers=2, tie_word_embeddings=True)
        empty = AutoModelForCausalLM.from_config(config)
    names = SimpleNamespace(config=config, state_dict=empty.state_dict, named_children=dict)
    theirs = load_gguf_checkpoint(path, return_tensors=True, model_to_load=names)["tensors"]
    assert_equal(load_weights(*of_gguf(path), dtype=torch.float32), theirs)


@pytest.mark.parametrize(("kind", "largest"), [(Kind.Q8_0, 0.02), (Kind.Q4_0, 0.35), (Kind.Q4_1, 0.3)])
def test_quantised_values_are_near_the_original(
    write_gguf, reference_tensors, kind: Kind, largest: float
) -> None:
    weights = load_weights(*of_gguf(write_gguf(kind=kind)), dtype=torch.float32)
    for name, tensor in reference_tensors().items():
        assert np.abs(weights[name].numpy() - tensor).max() < largest, name


def test_dtype_is_the_one_asked_for(write_gguf) -> None:
    files, spec = of_gguf(write_gguf())
    exact = load_weights(files, spec, dtype=torch.float32)
    rounded = load_weights(files, spec, dtype=torch.bfloat16)
    for name, tensor in rounded.items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, exact[name].to(torch.bfloat16))
        assert tensor.is_contiguous()


def test_loaded_weights_do_not_need_the_file(write_gguf, reference_tensors) -> None:
    path = write_gguf()
    weights = load_weights(*of_gguf(path), dtype=torch.float32)
    path.write_bytes(b"")
    np.testing.assert_array_equal(
        weights["model.norm.weight"].numpy(), reference_tensors()["model.norm.weight"]
    )


def test_rope_divisors_are_not_a_weight(write_gguf, reference_tensors) -> None:
    files, spec = of_gguf(write_gguf())
    with_divisors = write_gguf(tensors={"rope_freqs.weight": np.ones(8, np.float32)})
    files = ModelFiles("x", "gguf", (with_divisors,), with_divisors.parent)
    assert load_weights(files, spec, dtype=torch.float32).keys() == reference_tensors().keys()


def test_other_tensor_types_are_named(write_gguf) -> None:
    path = write_gguf(blocks={"rare": (np.zeros((1, 66), np.uint8), Kind.TQ2_0)})
    with pytest.raises(UnsupportedModelError, match=r"has type TQ2_0; supported: F32, F16, BF16, Q8_0, Q4_0"):
        load_weights(*of_gguf(path), dtype=torch.float32)


def test_missing_tensor_is_named(write_gguf) -> None:
    path = write_gguf(tensors={"blk.1.attn_k.weight": None})
    with pytest.raises(
        CorruptModelError, match=r"lacks tensor 'model\.layers\.1\.self_attn\.k_proj\.weight'$"
    ):
        load_weights(*of_gguf(path), dtype=torch.float32)


def test_missing_layers_are_counted(write_gguf) -> None:
    path = write_gguf(metadata={"llama.block_count": 3})
    with pytest.raises(CorruptModelError, match=r"'model\.layers\.2\.input_layernorm\.weight' and 8 more"):
        load_weights(*of_gguf(path), dtype=torch.float32)


def test_wrong_shape_is_named(write_gguf) -> None:
    path = write_gguf(tensors={"blk.0.ffn_up.weight": np.zeros((32, 64), np.float32)})
    with pytest.raises(
        CorruptModelError, match=r"mlp\.up_proj\.weight' has shape \(32, 64\).* says \(96, 64\)"
    ):
        load_weights(*of_gguf(path), dtype=torch.float32)


@pytest.mark.parametrize("name", ["blk.0.attn_q.bias", "blk.0.attn_q_norm.weight", "blk.2.attn_norm.weight"])
def test_tensor_without_a_use_is_refused(write_gguf, name: str) -> None:
    path = write_gguf(tensors={name: np.zeros(64, np.float32)})
    with pytest.raises(UnsupportedModelError, match=f"has a tensor '{name}', which .* 'llama' does not use"):
        load_weights(*of_gguf(path), dtype=torch.float32)


def test_file_cut_after_its_spec_was_read(write_gguf) -> None:
    path = write_gguf()
    files, spec = of_gguf(path)
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(CorruptModelError, match="truncated: tensor"):
        load_weights(files, spec, dtype=torch.float32)


# safetensors


@pytest.fixture
def copied(tiny_llama_untied_dir: Path, tmp_path: Path) -> Path:
    """A directory of the tiny untied llama, to be damaged."""
    return shutil.copytree(tiny_llama_untied_dir, tmp_path / "model")


def load(directory: Path, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    files = resolve(str(directory))
    return load_weights(files, read_spec(files), dtype=dtype)


def assert_equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), name


def test_directory_equals_what_transformers_loads(tiny_llama_dir: Path, tiny_llama_untied_dir: Path) -> None:
    untied = LlamaForCausalLM.from_pretrained(tiny_llama_untied_dir, dtype=torch.float32).state_dict()
    assert_equal(load(tiny_llama_untied_dir), dict(untied))
    tied = LlamaForCausalLM.from_pretrained(tiny_llama_dir, dtype=torch.float32).state_dict()
    assert_equal(
        load(tiny_llama_dir), {name: tensor for name, tensor in tied.items() if name != "lm_head.weight"}
    )


def test_directory_in_another_dtype(copied: Path) -> None:
    expected = {name: tensor.to(torch.bfloat16) for name, tensor in load(copied).items()}
    assert_equal(load(copied, torch.bfloat16), expected)


def _shards(weights: dict[str, torch.Tensor]) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    names = sorted(weights)
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        yield f"model-0000{number}-of-00002.safetensors", {name: weights[name] for name in part}


def test_sharded_directory(copied: Path) -> None:
    weights = load_file(copied / "model.safetensors")
    whole = load(copied)
    (copied / "model.safetensors").unlink()
    index = {}
    for file, part in _shards(weights):
        save_file(part, copied / file)
        index |= dict.fromkeys(part, file)
    (copied / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert_equal(load(copied), whole)


def test_redundant_tensors_are_left_out(tiny_llama_dir: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(tiny_llama_dir, tmp_path / "model")
    weights = load_file(directory / "model.safetensors")
    more = {
        "lm_head.weight": weights["model.embed_tokens.weight"].clone(),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8),
    }
    save_file(weights | more, directory / "model.safetensors")
    assert_equal(load(directory), load(tiny_llama_dir))


@pytest.mark.parametrize(
    ("name", "replacement", "error", "message"),
    [
        ("model.norm.weight", None, CorruptModelError, "lacks tensor 'model.norm.weight'"),
        ("lm_head.weight", None, CorruptModelError, "lacks tensor 'lm_head.weight'"),
        ("model.norm.weight", torch.ones(65), CorruptModelError, "'model.norm.weight' has shape"),
        (
            "model.norm.weight",
            torch.ones(64, dtype=torch.int8),
            UnsupportedModelError,
            "has type I8; supported",
        ),
        ("model.layers.0.self_attn.q_proj.bias", torch.ones(64), UnsupportedModelError, "does not use"),
    ],
)
def test_wrong_tensors_are_named(
    copied: Path, name, replacement, error: type[ModelError], message: str
) -> None:
    weights = load_file(copied / "model.safetensors")
    weights.pop(name, None)
    if replacement is not None:
        weights[name] = replacement
    save_file(weights, copied / "model.safetensors")
    with pytest.raises(error) as caught:
        load(copied)
    assert message in str(caught.value)


@pytest.mark.parametrize("keep", [0, 5, 500, 100_000])
def test_file_cut_short(copied: Path, keep: int) -> None:
    path = copied / "model.safetensors"
    assert path.stat().st_size > keep
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CorruptModelError, match="is truncated or not a safetensors file") as caught:
        load(copied)
    assert "\n" not in str(caught.value)
