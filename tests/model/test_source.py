from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.progress import Progress
from tokenizers import Tokenizer

from headstart.errors import CorruptModelError, ModelError, ModelNotFoundError, UnsupportedModelError
from headstart.model import source
from headstart.model.builtin import BUILTIN_MODELS, BuiltinModel
from headstart.model.source import ModelFiles, pull, resolve


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty model cache."""
    monkeypatch.setenv("HEADSTART_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


class FakeNetwork:
    """Stands in for pip and for the tokenizer's conversion, and counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fetches = 0
        monkeypatch.setattr(source, "fetch", self._fetch)
        monkeypatch.setattr(source, "_convert_tokenizer", self._convert)

    def _fetch(self, model: BuiltinModel, directory: Path, progress: Progress) -> Path:
        self.fetches += 1
        (directory / model.gguf_name).write_text("weights")
        return directory / model.gguf_name

    def _convert(self, gguf: Path, directory: Path, progress: Progress) -> None:
        assert gguf.read_text() == "weights"
        (directory / "tokenizer.json").write_text("{}")


# built-in models


def test_smollm2_is_here_whole(smollm2: ModelFiles) -> None:
    model = BUILTIN_MODELS["smollm2-135m"]
    assert smollm2.format == "gguf"
    assert smollm2.config is None
    (weights,) = smollm2.weights
    assert weights.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert weights.stat().st_size == model.gguf_size
    assert (smollm2.tokenizer_dir / "tokenizer.json").is_file()


def test_builtin_is_fetched_once_and_then_offline(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = FakeNetwork(monkeypatch)
    first = resolve("smollm2-135m")
    assert first == resolve("smollm2-135m") == pull("smollm2-135m")
    assert network.fetches == 1
    assert first.weights == (cache / "models" / "smollm2-135m" / "SmolLM2-135M-Instruct.Q4_1.gguf",)


def test_pull_repairs_what_resolve_trusts(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = FakeNetwork(monkeypatch)
    (weights,) = resolve("smollm2-135m").weights
    weights.write_text("WEIGHTS")
    resolve("smollm2-135m")
    assert network.fetches == 1
    pull("smollm2-135m")
    assert network.fetches == 2
    assert weights.read_text() == "weights"


def test_failed_fetch_is_tried_again_next_time(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(model: BuiltinModel, directory: Path, progress: Progress) -> Path:
        (directory / model.gguf_name).write_text("half of i")
        raise CorruptModelError("no")

    monkeypatch.setattr(source, "fetch", fail)
    with pytest.raises(CorruptModelError):
        resolve("smollm2-135m")
    network = FakeNetwork(monkeypatch)
    (weights,) = resolve("smollm2-135m").weights
    assert network.fetches == 1
    assert weights.read_text() == "weights"


# names that are nothing


@pytest.mark.parametrize("name", ["smollm2-1.7b", "no/such/directory", "", "./no-directory"])
def test_unknown_name_says_what_is_allowed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(name)
    message = str(caught.value)
    assert repr(name) in message
    assert "smollm2-135m" in message
    assert "Hugging Face directory" in message
    assert "GGUF file" in message


def test_near_miss_is_suggested() -> None:
    with pytest.raises(ModelNotFoundError, match="did you mean 'smollm2-135m'"):
        resolve("smollm-135m")


def test_file_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ModelNotFoundError):
        resolve(str(tmp_path / "notes.txt"))


# Hugging Face directories


def test_directory(tiny_llama_dir: Path) -> None:
    assert resolve(str(tiny_llama_dir)) == ModelFiles(
        name=str(tiny_llama_dir),
        format="safetensors",
        weights=(tiny_llama_dir / "model.safetensors",),
        tokenizer_dir=tiny_llama_dir,
        config=tiny_llama_dir / "config.json",
    )


def test_relative_directory_gives_absolute_files(
    tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny_llama_dir.parent)
    assert resolve(tiny_llama_dir.name).tokenizer_dir == tiny_llama_dir


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_incomplete_directory_says_what_is_missing(
    tiny_llama_dir: Path, tmp_path: Path, missing: str
) -> None:
    directory = shutil.copytree(tiny_llama_dir, tmp_path / "model")
    (directory / missing).unlink()
    what = "*.safetensors" if missing == "model.safetensors" else missing
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(str(directory))
    assert f"and {what} is missing" in str(caught.value)


def test_empty_directory_lacks_everything(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"tokenizer\.json and \*\.safetensors are missing"):
        resolve(str(tmp_path))


def _sharded(directory: Path, index: object) -> Path:
    for name in (
        "config.json",
        "tokenizer.json",
        "a.safetensors",
        "b.safetensors",
        "consolidated.safetensors",
    ):
        (directory / name).write_text("{}")
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def test_index_says_which_shards_count(tmp_path: Path) -> None:
    _sharded(tmp_path, {"weight_map": {"x": "b.safetensors", "y": "a.safetensors", "z": "b.safetensors"}})
    assert resolve(str(tmp_path)).weights == (tmp_path / "a.safetensors", tmp_path / "b.safetensors")


def test_missing_shard_is_named(tmp_path: Path) -> None:
    _sharded(tmp_path, {"weight_map": {"x": "c.safetensors"}})
    with pytest.raises(CorruptModelError, match=r"c\.safetensors is missing although .* names it"):
        resolve(str(tmp_path))


@pytest.mark.parametrize("index", [[], {}, {"weight_map": 3}, "index"])
def test_senseless_index(tmp_path: Path, index: object) -> None:
    _sharded(tmp_path, index)
    with pytest.raises(CorruptModelError, match="is not an index of safetensors files"):
        resolve(str(tmp_path))


# GGUF files


def test_gguf_tokenizer_is_converted_once_into_the_cache(write_gguf, cache: Path) -> None:
    path = write_gguf()
    progress = Progress(disable=True)
    files = resolve(str(path), progress=progress)
    assert files.format == "gguf"
    assert files.weights == (path,)
    assert files.tokenizer_dir.parent == cache / "tokenizers"
    assert [task.finished for task in progress.tasks] == [True]
    tokenizer = Tokenizer.from_file(str(files.tokenizer_dir / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode("It is 12:30, né?").ids) == "It is 12:30, né?"

    copy = path.with_name("renamed.GGUF")
    path.rename(copy)
    again = Progress(disable=True)
    assert resolve(str(copy), progress=again).tokenizer_dir == files.tokenizer_dir
    assert again.tasks == []


def test_tokenizer_beside_the_file_is_used(write_gguf, cache: Path) -> None:
    path = write_gguf()
    (path.parent / "tokenizer.json").write_text("{}")
    assert resolve(str(path)).tokenizer_dir == path.parent
    assert not cache.exists()


@pytest.mark.parametrize(
    ("code", "error"), [(3, CorruptModelError), (4, UnsupportedModelError), (1, ModelError), (-9, ModelError)]
)
def test_converter_exit_codes(
    write_gguf, cache: Path, monkeypatch, code: int, error: type[ModelError]
) -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, code, "", "some noise\nthe reason\n")

    path = write_gguf()
    monkeypatch.setattr(source.subprocess, "run", run)
    with pytest.raises(error) as caught:
        resolve(str(path))
    assert str(caught.value).endswith("the reason")
    assert "noise" not in str(caught.value)
    assert list((cache / "tokenizers").glob("*/")) == []


@pytest.mark.parametrize("content", [b"", b"just a text\n"])
def test_text_file_named_gguf(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(CorruptModelError, match="is not a GGUF file"):
        resolve(str(path))


def test_no_torch_to_find_a_model(tiny_llama_dir: Path) -> None:
    program = (
        "import sys; from headstart.model.spec import read_spec; from headstart.model.source import resolve;"
        "read_spec(resolve(sys.argv[1])); print({'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tiny_llama_dir)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
