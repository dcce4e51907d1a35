"""The per-user cache directory: entries that are whole or not there at all."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from headstart.errors import DownloadError

_MANIFEST = "manifest.json"


def cache_root() -> Path:
    """Where headstart keeps fetched models: ``$HEADSTART_CACHE_DIR``, or the platform's cache directory."""
    return Path(os.environ.get("HEADSTART_CACHE_DIR") or platformdirs.user_cache_dir("headstart"))


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def entry(directory: Path, recipe: str, build: Callable[[Path], None], *, verify: bool = False) -> Path:
    """``directory``, after ``build`` has filled it if it was not there or not whole.

    ``build`` writes into a temporary directory on the same file system; only after it returned is a
    manifest of sizes and checksums written and the directory renamed into place.  A killed process
    therefore never leaves an entry that looks finished, nor does a power cut, which sizes betray.
    Processes that want the same entry at once take turns, and the later ones find it done.

    ``recipe`` says what was made and how; an entry made by another recipe is made anew.  With
    ``verify`` checksums are compared, not sizes only.  Raises `DownloadError` where the cache
    directory cannot be written; what ``build`` raises passes through.
    """
    if _is_whole(directory, recipe, verify=verify):
        return directory
    try:
        with _locked(directory.with_name(f"{directory.name}.lock")):
            # Another process may have made it while this one waited.
            if not _is_whole(directory, recipe, verify=verify):
                _make(directory, recipe, build)
    except OSError as error:
        raise DownloadError(
            f"cannot write {directory} in the model cache: {error.strerror or error}"
        ) from error
    return directory


def _make(directory: Path, recipe: str, build: Callable[[Path], None]) -> None:
    for stale in directory.parent.glob(f"{directory.name}.partial-*"):
        shutil.rmtree(stale, ignore_errors=True)  # of a killed process: the lock says nobody works in it
    # A name of its own, because a killed process may have left a child that still writes.
    partial = directory.with_name(f"{directory.name}.partial-{os.getpid()}")
    partial.mkdir()
    try:
        build(partial)
        files = {
            path.name: {"size": path.stat().st_size, "sha256": sha256(path)}
            for path in sorted(partial.iterdir())
        }
        (partial / _MANIFEST).write_text(json.dumps({"recipe": recipe, "files": files}, indent=2) + "\n")
        if directory.exists():
            shutil.rmtree(directory)
        partial.replace(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _is_whole(directory: Path, recipe: str, *, verify: bool) -> bool:
    try:
        manifest = json.loads((directory / _MANIFEST).read_text())
        return manifest["recipe"] == recipe and all(
            (directory / name).stat().st_size == facts["size"]
            and (not verify or sha256(directory / name) == facts["sha256"])
            for name, facts in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False  # absent or damaged in any way: to be made again


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed, also by a killed process
        yield
