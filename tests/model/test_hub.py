from __future__ import annotations

import fnmatch
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError
from rich.progress import Progress

from headstart.errors import CorruptModelError, DownloadError, ModelError, ModelNotFoundError
from headstart.model.hub import is_repo_id
from headstart.model.source import pull, resolve

NAME = "someone/tiny-llama"
REVISION = "a" * 40


class FakeHub:
    """Stands in for ``snapshot_download``: a directory plays the repository, another one the cache."""

    def __init__(self, repository: Path, cache: Path) -> None:
        self.repository, self.cache = repository, cache / REVISION
        self.downloads = 0
        self.failure: Exception | None = None
        self.cut_after: str | None = None

    def __call__(
        self,
        repo_id: str,
        *,
        allow_patterns: list[str],
        local_files_only: bool = False,
        revision: str = "main",
        tqdm_class: type | None = None,
    ) -> str:
        assert repo_id == NAME
        assert revision in ("main", REVISION)
        if local_files_only:
            if not self.cache.is_dir():
                raise LocalEntryNotFoundError("not here")
            return str(self.cache)
        self.downloads += 1
        if self.failure is not None:
            raise self.failure
        assert tqdm_class is not None
        self.cache.mkdir(parents=True, exist_ok=True)
        bar = tqdm_class(desc="files", unit="B", total=0, name="huggingface_hub.snapshot_download")
        for path in sorted(self.repository.iterdir()):
            if any(fnmatch.fnmatch(path.name, pattern) for pattern in allow_patterns):
                shutil.copy(path, self.cache)
                bar.update(path.stat().st_size)
                if path.name == self.cut_after:
                    raise ConnectionResetError("connection reset")
        bar.close()
        return str(self.cache)


@pytest.fixture
def hub(tiny_llama_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    repository = shutil.copytree(tiny_llama_dir, tmp_path / "repository")
    for name in ("README.md", "pytorch_model.bin", "consolidated.safetensors", "modeling_evil.py"):
        (repository / name).write_text("not wanted")
    fake = FakeHub(repository, tmp_path / "cache")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake)
    monkeypatch.chdir(tmp_path)
    return fake


def shard(repository: Path) -> None:
    """Two shards and their index in place of the one file."""
    (repository / "model.safetensors").rename(repository / "model-1-of-2.safetensors")
    (repository / "model-2-of-2.safetensors").write_text("more")
    index = {"weight_map": {"x": "model-1-of-2.safetensors", "y": "model-2-of-2.safetensors"}}
    (repository / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "a/b", "meta-llama/Llama-3.2-1B"])
def test_names_of_repositories(name: str) -> None:
    assert is_repo_id(name)


@pytest.mark.parametrize("name", ["", "smollm2-135m", "a/b/c", "./a", "../a", "/a", "a/", "~/a", "a b/c"])
def test_names_that_are_no_repositories(name: str) -> None:
    assert not is_repo_id(name)


def test_only_what_is_needed_is_fetched_and_only_once(hub: FakeHub) -> None:
    progress = Progress(disable=True)
    files = resolve(NAME, progress=progress)
    assert files.name == NAME
    assert files.format == "safetensors"
    assert files.weights == (hub.cache / "model.safetensors",)
    assert files.config == hub.cache / "config.json"
    assert files.tokenizer_dir == hub.cache
    fetched = {path.name for path in hub.cache.iterdir()}
    assert {"config.json", "tokenizer.json", "tokenizer_config.json"} <= fetched
    assert not fetched & {"README.md", "pytorch_model.bin", "consolidated.safetensors", "modeling_evil.py"}
    assert [task.finished for task in progress.tasks] == [True]

    before = hub.downloads
    assert resolve(NAME) == files
    assert hub.downloads == before


def test_pull_asks_the_hub_again(hub: FakeHub) -> None:
    resolve(NAME)
    before = hub.downloads
    pull(NAME)
    assert hub.downloads > before


def test_shards_are_those_of_the_index(hub: FakeHub) -> None:
    shard(hub.repository)
    names = [path.name for path in resolve(NAME).weights]
    assert names == ["model-1-of-2.safetensors", "model-2-of-2.safetensors"]
    assert not (hub.cache / "consolidated.safetensors").exists()


@pytest.mark.parametrize(
    "cut_after", ["config.json", "model.safetensors.index.json", "model-1-of-2.safetensors"]
)
def test_a_cut_download_does_not_look_finished_and_is_taken_up_again(hub: FakeHub, cut_after: str) -> None:
    shard(hub.repository)
    hub.cut_after = cut_after
    with pytest.raises(DownloadError, match="cannot be fetched from the Hugging Face hub: connection reset"):
        resolve(NAME)
    hub.cut_after = None
    assert len(resolve(NAME).weights) == 2


def test_a_directory_of_that_name_comes_first(hub: FakeHub, tiny_llama_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_llama_dir, tmp_path / NAME)
    assert resolve(NAME).weights == (tmp_path / NAME / "model.safetensors",)
    assert hub.downloads == 0


def test_repository_without_safetensors(hub: FakeHub) -> None:
    (hub.repository / "model.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match=r"\*\.safetensors is missing"):
        resolve(NAME)


def test_index_that_leaves_its_directory(hub: FakeHub) -> None:
    index = {"weight_map": {"x": "../../secrets.safetensors"}}
    (hub.repository / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CorruptModelError, match="names files outside of its directory"):
        resolve(NAME)


def http_error(kind: type[Exception]) -> Exception:
    error = kind.__new__(kind)  # its constructor wants a response of the HTTP library of the day
    error.args = ("first line\nsecond line",)
    return error


@pytest.mark.parametrize(
    ("failure", "error", "message"),
    [
        (http_error(GatedRepoError), DownloadError, "is gated on the Hugging Face hub: accept its terms"),
        (
            http_error(RepositoryNotFoundError),
            ModelNotFoundError,
            "no such repository on the Hugging Face hub",
        ),
        (LocalEntryNotFoundError("x\ny"), DownloadError, "the hub cannot be reached"),
        (
            OSError("disk full\nreally"),
            DownloadError,
            "cannot be fetched from the Hugging Face hub: disk full",
        ),
        (RuntimeError(), DownloadError, "cannot be fetched from the Hugging Face hub: RuntimeError"),
    ],
    ids=["gated", "unknown", "offline", "disk", "no reason"],
)
def test_failures_are_one_sentence(
    hub: FakeHub, failure: Exception, error: type[ModelError], message: str
) -> None:
    hub.failure = failure
    with pytest.raises(error) as caught:
        resolve(NAME)
    assert NAME in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# The real library, in a process of its own because it reads its environment when imported.

PROGRAM = """
import sys
from headstart.errors import ModelError
from headstart.model.source import resolve
try:
    print(*resolve(sys.argv[1]).weights)
except ModelError as error:
    print(type(error).__name__, error)
assert "torch" not in sys.modules
"""


def offline(home: Path, name: str, **environment: Any) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, name],
        env={**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1", **environment},
        capture_output=True,
        text=True,
        check=True,
        cwd=home,
    )
    return done.stdout.strip()


def test_a_whole_cache_needs_no_network(tiny_llama_dir: Path, tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--someone--tiny-llama"
    snapshot = repository / "snapshots" / REVISION
    shutil.copytree(tiny_llama_dir, snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(REVISION)
    assert offline(tmp_path, NAME) == str(snapshot / "model.safetensors")


def test_no_network_and_no_cache(tmp_path: Path) -> None:
    assert offline(tmp_path, NAME).startswith(f"DownloadError '{NAME}' is not (or not wholly) in the")


def test_hub_that_cannot_be_reached(tmp_path: Path) -> None:
    said = offline(tmp_path, NAME, HF_HUB_OFFLINE="0", HF_ENDPOINT="http://127.0.0.1:9")
    assert said.startswith("DownloadError")
    assert "the hub cannot be reached" in said
