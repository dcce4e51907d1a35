"""Which weight files of a Hugging Face directory count."""

from __future__ import annotations

import json
from pathlib import Path

from headstart.errors import CorruptModelError

INDEX_NAME = "model.safetensors.index.json"
USUAL_NAME = "model.safetensors"


def shard_names(directory: Path) -> tuple[str, ...] | None:
    """The file names in the directory's index of shards, or ``None`` where it has no index.

    Raises `CorruptModelError` for an index that is none.
    """
    index = directory / INDEX_NAME
    if not index.is_file():
        return None
    try:
        names = tuple(sorted(set(json.loads(index.read_text())["weight_map"].values())))
        if any(Path(name).name != name for name in names):
            raise ValueError("it names files outside of its directory")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptModelError(f"{index} is not an index of safetensors files ({error})") from error
    return names


def find_weights(directory: Path) -> tuple[Path, ...]:
    """The weight files: those of the index if there is one, else the one with the usual name, else all.

    A directory may hold the same weights twice (a consolidated file beside the shards).  Raises
    `CorruptModelError` for a file that the index names and that is not there.
    """
    names = shard_names(directory)
    if names is not None:
        shards = tuple(directory / name for name in names)
        for shard in shards:
            if not shard.is_file():
                raise CorruptModelError(f"{shard} is missing although {INDEX_NAME} names it")
        return shards
    usual = directory / USUAL_NAME
    return (usual,) if usual.is_file() else tuple(sorted(directory.glob("*.safetensors")))
