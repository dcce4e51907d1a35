"""From what a user calls a model to its shape: a file, a directory, a hub id or the built-in table's name."""

from __future__ import annotations

import difflib
import json
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from rich.progress import Progress

from headstart.errors import CorruptModelError, ModelNotFoundError
from headstart.lab.calc.read_config import read_config
from headstart.lab.calc.read_gguf import read_gguf
from headstart.lab.calc.shape import Shape
from headstart.model import hub
from headstart.model.checked import read_json_object
from headstart.model.gguf_file import GGUFFile
from headstart.model.shards import INDEX_NAME, find_weights


@cache
def table() -> dict[str, Any]:
    """The built-in table: its ``date``, and ``models`` by name, each with its ``source`` and ``config``."""
    text = resources.files("headstart.lab.calc").joinpath("models.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def find_shape(name: str, progress: Progress | None = None) -> Shape:
    """The shape of the model called ``name``; of a hub's model its configuration alone is fetched.

    Raises ``ModelNotFoundError``, ``DownloadError``, ``CorruptModelError`` or ``UnsupportedModelError``.
    """
    models = table()["models"]
    entry = models.get(name.lower())
    if entry is not None:
        return read_config(entry["config"], name.lower(), f"{entry['source']} (table of {table()['date']})")
    path = Path(name).expanduser()
    if path.is_dir() and (path / "config.json").is_file():
        return _of_directory(path, name)
    if path.suffix == ".json" and path.is_file():
        return read_config(read_json_object(path), path.parent.resolve().name, str(path))
    if path.is_file():
        return read_gguf(GGUFFile.read(path), path.stem)
    if hub.is_repo_id(name):
        directory = hub.fetch_config(name, progress or Progress(disable=True))
        return replace(_of_directory(directory, name), name=name, source=f"config.json of {name}")
    if path.exists():
        raise ModelNotFoundError(f"{path} has no config.json, and is no GGUF file")
    near = difflib.get_close_matches(name.lower(), models, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ModelNotFoundError(
        f"there is no model {name!r}: give a config.json or its directory, a GGUF file, a hub's "
        f"organisation/model or one of {', '.join(models)}{hint}"
    )


def _of_directory(directory: Path, name: str) -> Shape:
    shape = read_config(read_json_object(directory / "config.json"), name, str(directory / "config.json"))
    return replace(shape, stored_bytes=_stored_bytes(directory))


def _stored_bytes(directory: Path) -> int | None:
    """Of all weights: what the index of shards says, else how large the files are; None without either."""
    index = directory / INDEX_NAME
    if index.is_file():
        size = (read_json_object(index).get("metadata") or {}).get("total_size")
        if size is not None:
            if not isinstance(size, int | float) or size < 1:
                raise CorruptModelError(f"{index}: total_size must be a number of bytes, not {size!r}")
            return int(size)
        return None
    return sum(path.stat().st_size for path in find_weights(directory)) or None
