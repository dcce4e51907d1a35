from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headstart.errors import DownloadError
from headstart.model import store


def test_cache_root_can_be_moved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADSTART_CACHE_DIR", str(tmp_path))
    assert store.cache_root() == tmp_path
    monkeypatch.setenv("HEADSTART_CACHE_DIR", "")
    assert store.cache_root().name == "headstart"


def test_entry_is_built_once_and_then_used_as_it_is(tmp_path: Path) -> None:
    builds = []

    def build(directory: Path) -> None:
        builds.append(directory)
        (directory / "file").write_text("content")

    for _ in range(3):
        assert store.entry(tmp_path / "a" / "entry", "recipe", build) == tmp_path / "a" / "entry"
    assert len(builds) == 1
    assert (tmp_path / "a" / "entry" / "file").read_text() == "content"


def test_finished_entry_needs_no_writable_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.entry(tmp_path / "entry", "recipe", lambda directory: None)

    def no_lock(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(store, "_locked", no_lock)
    store.entry(tmp_path / "entry", "recipe", lambda directory: None)
    with pytest.raises(DownloadError, match=r"cannot write .*other in the model cache: Permission denied"):
        store.entry(tmp_path / "other", "recipe", lambda directory: None)


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: (entry / "file").write_text("conten"),
        lambda entry: (entry / "file").unlink(),
        lambda entry: (entry / "manifest.json").unlink(),
        lambda entry: (entry / "manifest.json").write_text(""),
        lambda entry: (entry / "manifest.json").write_text("[]"),
        lambda entry: (entry / "manifest.json").write_text(json.dumps({"recipe": "recipe"})),
    ],
    ids=["cut short", "missing", "no manifest", "empty manifest", "odd manifest", "half a manifest"],
)
def test_damaged_entry_is_made_anew(tmp_path: Path, damage) -> None:
    def build(directory: Path) -> None:
        (directory / "file").write_text("content")

    entry = store.entry(tmp_path / "entry", "recipe", build)
    damage(entry)
    store.entry(entry, "recipe", build)
    assert (entry / "file").read_text() == "content"
    assert set(json.loads((entry / "manifest.json").read_text())["files"]) == {"file"}


def test_same_size_damage_is_found_by_verify(tmp_path: Path) -> None:
    def build(directory: Path) -> None:
        (directory / "file").write_text("content")

    entry = store.entry(tmp_path / "entry", "recipe", build)
    (entry / "file").write_text("CONTENT")
    store.entry(entry, "recipe", build)
    assert (entry / "file").read_text() == "CONTENT"
    store.entry(entry, "recipe", build, verify=True)
    assert (entry / "file").read_text() == "content"


def test_another_recipe_makes_it_anew(tmp_path: Path) -> None:
    entry = store.entry(tmp_path / "entry", "one", lambda directory: (directory / "1").touch())
    store.entry(entry, "two", lambda directory: (directory / "2").touch())
    assert sorted(path.name for path in entry.iterdir()) == ["2", "manifest.json"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_failed_build_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def build(directory: Path) -> None:
        (directory / "half").write_text("of it")
        raise error

    with pytest.raises(error):
        store.entry(tmp_path / "entry", "recipe", build)
    assert [path.name for path in tmp_path.iterdir()] == ["entry.lock"]


def test_failed_build_leaves_the_old_entry(tmp_path: Path) -> None:
    entry = store.entry(tmp_path / "entry", "one", lambda directory: (directory / "1").touch())

    def build(directory: Path) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        store.entry(entry, "two", build)
    assert (entry / "1").exists()


_DIE_HALFWAY = """
import os, pathlib, signal, sys
from headstart.model import store

def build(directory):
    (directory / "half").write_text("of it")
    os.kill(os.getpid(), signal.SIGKILL)

store.entry(pathlib.Path(sys.argv[1]), "recipe", build)
"""


def test_killed_build_does_not_look_finished_and_is_cleared_away(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", _DIE_HALFWAY, str(tmp_path / "entry")], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [path.name for path in tmp_path.glob("entry.partial-*/*")] == ["half"]
    assert not (tmp_path / "entry").exists()
    entry = store.entry(tmp_path / "entry", "recipe", lambda directory: (directory / "whole").touch())
    assert sorted(path.name for path in entry.iterdir()) == ["manifest.json", "whole"]
    assert list(tmp_path.glob("*.partial-*")) == []


_BUILD_WITH_OTHERS = """
import os, pathlib, sys
from headstart.model import store

root, others = pathlib.Path(sys.argv[1]), int(sys.argv[2])

def build(directory):
    with open(root / "builds", "a") as log:
        log.write("built\\n")
    for index in range(20):
        (directory / str(index)).write_bytes(bytes(100_000))

(root / f"ready-{os.getpid()}").touch()
while len(list(root.glob("ready-*"))) < others:
    pass
entry = store.entry(root / "entry", "recipe", build)
assert len(list(entry.iterdir())) == 21
"""


def test_processes_that_want_the_same_entry_build_it_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _BUILD_WITH_OTHERS, str(tmp_path), "4"]
    processes = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0, 0, 0, 0]
    assert (tmp_path / "builds").read_text() == "built\n"
