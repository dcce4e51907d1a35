"""The small JSON files that lie beside a model's weights, as Hugging Face lays them out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headstart.errors import CorruptModelError, ModelNotFoundError


def require_directory(path: str | Path) -> Path:
    """The path, if it is a directory; raises ``ModelNotFoundError`` if not."""
    directory = Path(path)
    if not directory.is_dir():
        raise ModelNotFoundError(f"{directory} is not a directory with a model's tokenizer files")
    return directory


def read_text(path: Path) -> str | None:
    """The file's text, or ``None`` if there is no such file.

    Raises ``CorruptModelError`` if it is there and cannot be read as UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CorruptModelError(f"{path} cannot be read: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The file's JSON object, empty if there is no such file.

    Raises ``CorruptModelError`` if the file holds anything else.
    """
    text = read_text(path)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CorruptModelError(f"{path} must hold a JSON object, not {type(value).__name__}")
    return value


def special_tokens(directory: Path) -> dict[str, str]:
    """The model's named tokens (``{"bos_token": "<s>", …}``), as its chat template knows them.

    ``tokenizer_config.json`` speaks first; ``special_tokens_map.json``, where older models keep them,
    fills in what it does not name.
    """
    found: dict[str, str] = {}
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        for key, value in read_json(directory / name).items():
            content = value.get("content") if isinstance(value, dict) else value
            # add_bos_token and the like end the same way; only strings are tokens.
            if key.endswith("_token") and isinstance(content, str):
                found.setdefault(key, content)
    return found


def eos_ids(directory: Path) -> frozenset[int]:
    """Every ``eos_token_id`` of ``generation_config.json`` and ``config.json``, which may be a list."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        value = read_json(directory / name).get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(item, int) for item in ids):
            raise CorruptModelError(
                f"eos_token_id in {directory / name} must be an integer or a list of them, not {value!r}"
            )
        found.update(ids)
    return frozenset(found)
