"""Counts to the unit: those that are published, and those of transformers' own classes."""

from __future__ import annotations

from typing import Any

import pytest

from headstart.lab.calc.find import find_shape, table
from headstart.lab.calc.read_config import read_config
from headstart.lab.calc.shape import Parameters

PUBLISHED = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-27b": 27_009_002_240 + 64 * 5_376,  # the config has 64 embeddings more than the count's
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,
    "phi-3-mini-4k": 3_821_079_552,
    "smollm2-135m": 134_515_008,
    "gpt-oss-20b": 20_914_757_184,
}


def counted(name: str) -> Parameters:
    parameters = find_shape(name).parameters
    assert parameters is not None
    return parameters


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(name: str) -> None:
    assert counted(name).total == PUBLISHED[name] == table()["models"][name]["parameters"]


def test_the_table_has_no_other_models() -> None:
    assert PUBLISHED.keys() == table()["models"].keys()


@pytest.mark.parametrize(
    ("name", "active"),
    [
        ("qwen3-30b-a3b", 3_353_032_704),  # its name says A3B
        ("deepseek-v3", 37_552_297_472),  # 37B in its paper
        ("gpt-oss-20b", 3_614_113_344 + 201_088 * 2_880),  # its card says 3.61B, without the embeddings
        ("llama-3.1-8b", 8_030_261_248),
    ],
)
def test_parameters_that_one_token_uses(name: str, active: int) -> None:
    assert counted(name).active == active


SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,  # not hidden / heads
}
LATENT = {
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 10,
    "head_dim": 4,
    "moe_intermediate_size": 12,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "decoder_sparse_step": 2}
CLASSES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("granite", {}),
    ("mistral", {}),
    ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    ("qwen2", {"head_dim": None}),
    ("qwen2_moe", {**EXPERTS, "shared_expert_intermediate_size": 20, "head_dim": None}),
    ("qwen3", {}),
    ("qwen3", {"attention_bias": True}),
    ("qwen3_moe", {**EXPERTS, "mlp_only_layers": [1]}),
    ("gemma", {}),
    ("gemma2", {}),
    ("gemma3_text", {}),
    ("phi3", {"head_dim": None, "pad_token_id": 0}),
    ("smollm3", {"head_dim": None, "pad_token_id": 0, "no_rope_layers": [1, 1, 1, 0]}),
    ("olmo2", {"head_dim": None}),
    ("deepseek_v2", LATENT),
    ("deepseek_v3", LATENT | {"q_lora_rank": 14}),
    ("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2}),
]


@pytest.mark.parametrize(("kind", "options"), CLASSES, ids=[kind for kind, _ in CLASSES])
def test_counts_of_transformers_classes(kind: str, options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    given = {key: value for key, value in (SMALL | options).items() if value is not None}
    if kind == "deepseek_v2":
        given["q_lora_rank"] = None
    config = transformers.AutoConfig.for_model(kind, **given)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    tensors = dict(model.named_parameters())  # a tied head is the embeddings, once
    tensors |= {name: one for name, one in model.named_buffers() if name.endswith("e_score_correction_bias")}
    parameters = read_config({"model_type": kind, **given}, "small", "a test").parameters
    assert parameters is not None
    assert parameters.total == sum(tensor.numel() for tensor in tensors.values())


def test_every_known_family_is_compared() -> None:
    from headstart.lab.calc.families import FAMILIES

    assert {kind for kind, _ in CLASSES} == FAMILIES.keys()
