"""Models that tests share: the real one from the per-user cache, and tiny random ones made on the spot."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from headstart.model.source import ModelFiles, resolve

# Test processes side by side share the cores, they and what they start.  Torch reads this as it is imported:
# with more threads than cores every small operation waits for whoever else has them.
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    share = (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", f"{max(1, share)}")

# How long an example takes is the machine's affair; a busy one must not fail a test.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

TINY_VOCAB_SIZE = 512

# Words enough to learn TINY_VOCAB_SIZE - 256 - 3 merges from.
_TRAINING_TEXT = """
A prefix that was computed once need not be computed again. The server keeps the keys and the values of
every block of tokens until the memory is wanted for something else, and a later request that begins with
the same words finds them there. When two people ask about one long document, only the questions differ;
the document itself is read a single time. Whoever runs such a machine would like to know how many tokens
were found, how many were missing, and for what reason: perhaps nobody had asked before, perhaps the block
was evicted an hour ago, perhaps a date at the top of the system prompt changed and everything behind it
became different. Small things matter here. A user, an assistant and a helpful system message take turns;
each turn starts with a marker and ends with another. Numbers like 3, 14, 159 and 2653 appear as well, and
lines of code:  for index in range(10):  print(index, values[index])  return sorted(results, key=len)
"""

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny_tokenizer(directory: Path) -> None:
    """A byte-level BPE of `TINY_VOCAB_SIZE` tokens with ChatML markers, as a model directory holds it."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TINY_VOCAB_SIZE,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in special],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TRAINING_TEXT], trainer)
    assert tokenizer.get_vocab_size() == TINY_VOCAB_SIZE, "the training text is too short"
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "add_bos_token": False,
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "chat_template": _CHAT_TEMPLATE,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2))


def write_tiny_llama(directory: Path, *, tied: bool) -> Path:
    """A random Llama: 3 layers, hidden 64, 4 heads of 16 on 2 KV heads; the same each time."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=TINY_VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
        tie_word_embeddings=tied,
        initializer_range=0.15,  # large enough that greedy tokens are seldom tied
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).to(torch.float32).save_pretrained(directory)
    write_tiny_tokenizer(directory)
    return directory


def pytest_collection_finish() -> None:
    """Modules and thousands of tests live as long as the run: the garbage collector need not look at them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def smollm2() -> ModelFiles:
    """SmolLM2-135M-Instruct, downloaded into the per-user cache on the first use ever."""
    return resolve("smollm2-135m")


@pytest.fixture(scope="session")
def tiny_llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama with tied embeddings, as a Hugging Face directory that can be served."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny-llama"), tied=True)


@pytest.fixture(scope="session")
def tiny_llama_untied_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `tiny_llama_dir`, with an output matrix of its own."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny-llama-untied"), tied=False)
