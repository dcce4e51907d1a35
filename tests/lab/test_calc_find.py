from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

from headstart.errors import CorruptModelError, DownloadError, ModelNotFoundError
from headstart.lab.calc.find import find_shape, table
from headstart.model.source import ModelFiles


def test_the_table_names_its_sources() -> None:
    assert table()["date"] == "2026-12-01"
    for name, entry in table()["models"].items():
        assert entry["source"].startswith("config.json of https://huggingface.co/"), name
        assert entry["parameters_source"], name
        assert name == name.lower()
    assert "(table of 2026-12-01)" in find_shape("Llama-3.1-8B").source


def test_a_config_and_its_directory(tiny_llama_dir: Path) -> None:
    of_directory, of_file = find_shape(str(tiny_llama_dir)), find_shape(str(tiny_llama_dir / "config.json"))
    assert of_directory.groups == of_file.groups
    assert of_directory.stored_bytes == (tiny_llama_dir / "model.safetensors").stat().st_size
    assert of_file.stored_bytes is None


def test_the_index_of_shards_knows_the_size(tiny_llama_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((tiny_llama_dir / "config.json").read_bytes())
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1234}, "weight_map": {"a": "b.safetensors"}}))
    assert find_shape(str(tmp_path)).stored_bytes == 1234
    index.write_text(json.dumps({"weight_map": {"a": "b.safetensors"}}))
    assert find_shape(str(tmp_path)).stored_bytes is None
    index.write_text(json.dumps({"metadata": {"total_size": "much"}}))
    with pytest.raises(CorruptModelError, match="total_size must be a number of bytes, not 'much'"):
        find_shape(str(tmp_path))


def test_a_gguf(smollm2: ModelFiles) -> None:
    assert find_shape(str(smollm2.weights[0])).architecture == "llama"


class FakeHub:
    """Stands in for ``snapshot_download``: what it is asked for, and a directory that it fills."""

    def __init__(self, directory: Path, content: dict[str, Any] | None) -> None:
        self.directory, self.content = directory, content
        self.asked: list[list[str]] = []
        self.failure: Exception | None = None

    def __call__(
        self,
        repo_id: str,
        *,
        allow_patterns: list[str],
        local_files_only: bool = False,
        tqdm_class: type | None = None,
    ) -> str:
        assert repo_id == "someone/model"
        if local_files_only:
            if not self.directory.exists():
                raise LocalEntryNotFoundError("not here")
            return str(self.directory)
        self.asked.append(allow_patterns)
        if self.failure is not None:
            raise self.failure
        self.directory.mkdir()
        if self.content is not None:
            (self.directory / "config.json").write_text(json.dumps(self.content))
        return str(self.directory)


def test_of_a_hubs_model_the_config_alone_is_fetched_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = FakeHub(tmp_path / "hub", table()["models"]["qwen3-8b"]["config"])
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    for _ in range(2):
        shape = find_shape("someone/model")
        assert (shape.name, shape.source) == ("someone/model", "config.json of someone/model")
        assert 2 * shape.elements_per_token() == 144 * 1024
    assert hub.asked == [["config.json", "model.safetensors.index.json"]]


def test_a_hub_that_has_no_such_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = FakeHub(tmp_path / "hub", None)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    for failure, kind, words in (
        (RepositoryNotFoundError.__new__(RepositoryNotFoundError), ModelNotFoundError, "no such repository"),
        (ConnectionError("no route"), DownloadError, "cannot be fetched from the Hugging Face hub: no route"),
    ):
        hub.failure = failure
        with pytest.raises(kind, match=words):
            find_shape("someone/model")
    hub.failure = None
    with pytest.raises(ModelNotFoundError, match=r"has no config\.json on the Hugging Face hub"):
        find_shape("someone/model")


def test_no_such_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no model 'llama-3.1-9b'.*did you mean 'llama-3.1-8b'\?"):
        find_shape("llama-3.1-9b")
    with pytest.raises(ModelNotFoundError, match=r"has no config\.json, and is no GGUF file"):
        find_shape(str(tmp_path))
    (tmp_path / "text").write_text("hello")
    with pytest.raises(CorruptModelError, match="is not a GGUF file"):
        find_shape(str(tmp_path / "text"))
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CorruptModelError, match="is not a JSON object"):
        find_shape(str(tmp_path))
