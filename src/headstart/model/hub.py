"""Models of the Hugging Face hub, in the cache that all Hugging Face libraries share (``HF_HOME``).

Of a repository come its configuration, tokenizer, templates and safetensors, and nothing else: no code,
no second copy of the weights.  ``huggingface_hub`` resumes what was interrupted and reads ``HF_TOKEN``,
``HF_ENDPOINT`` and ``HF_HUB_OFFLINE``; it is imported when a hub name is used, and brings no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.progress import Progress, TaskID

from headstart.errors import DownloadError, ModelError, ModelNotFoundError
from headstart.model.shards import INDEX_NAME, USUAL_NAME, shard_names

_REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_DESCRIPTION = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
    INDEX_NAME,
]


def is_repo_id(name: str) -> bool:
    """Whether ``name`` has the form ``organisation/model``."""
    return _REPO_ID.fullmatch(name) is not None


def cached(repo_id: str) -> Path | None:
    """The directory of a repository that is whole in the cache, without network; ``None`` otherwise."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        directory = _snapshot(repo_id, local_files_only=True)
    except LocalEntryNotFoundError:
        return None
    needed = ("config.json", "tokenizer.json", *_weights(directory))
    return directory if all((directory / name).is_file() for name in needed) else None


def download(repo_id: str, progress: Progress) -> Path:
    """The directory of a repository in its newest revision, fetched as far as it is not here yet.

    Raises `ModelNotFoundError` (no such repository) or `DownloadError` (gated, no network, any other
    reason for which the files cannot be had).
    """
    bar = progress.add_task(f"fetching {repo_id}", total=None)
    with _told(repo_id):
        directory = _snapshot(repo_id, tqdm_class=_silent_bar(progress, bar))
    progress.update(bar, total=1, completed=1)
    return directory


def fetch_config(repo_id: str, progress: Progress) -> Path:
    """A directory with the repository's ``config.json`` and its index of shards, and no weights.

    From the cache if it is there, else fetched; raises as `download`.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    wanted = ["config.json", INDEX_NAME]
    with suppress(LocalEntryNotFoundError):
        directory = Path(snapshot_download(repo_id, allow_patterns=wanted, local_files_only=True))
        if (directory / "config.json").is_file():
            return directory
    bar = progress.add_task(f"fetching {repo_id}'s configuration", total=None)
    with _told(repo_id):
        tqdm_class = _silent_bar(progress, bar)
        directory = Path(snapshot_download(repo_id, allow_patterns=wanted, tqdm_class=tqdm_class))
    progress.update(bar, total=1, completed=1)
    if not (directory / "config.json").is_file():
        raise ModelNotFoundError(f"{repo_id!r} has no config.json on the Hugging Face hub")
    return directory


@contextmanager
def _told(repo_id: str) -> Iterator[None]:
    """What can go wrong with the hub, as our errors."""
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        yield
    except GatedRepoError as error:
        raise DownloadError(
            f"{repo_id!r} is gated on the Hugging Face hub: accept its terms on its page there, "
            "then set HF_TOKEN to a token of your account"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelNotFoundError(
            f"there is no model {repo_id!r}: no such directory or file here, and no such repository on the "
            "Hugging Face hub (a private one needs HF_TOKEN)"
        ) from error
    except LocalEntryNotFoundError as error:
        raise DownloadError(
            f"{repo_id!r} is not (or not wholly) in the Hugging Face cache and the hub cannot be reached; "
            "connect to the network and try again, what was fetched already is kept"
        ) from error
    except ModelError:
        raise
    except Exception as error:  # the HTTP library of huggingface_hub, and so its errors, vary by version
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise DownloadError(f"{repo_id!r} cannot be fetched from the Hugging Face hub: {reason}") from error


def _snapshot(repo_id: str, **options: Any) -> Path:
    """Both calls of one revision, weights last: so a cut download never lacks the index of its shards."""
    from huggingface_hub import snapshot_download

    directory = Path(snapshot_download(repo_id, allow_patterns=_DESCRIPTION, **options))
    weights = list(_weights(directory))
    snapshot_download(repo_id, revision=directory.name, allow_patterns=weights, **options)
    return directory


def _weights(directory: Path) -> tuple[str, ...]:
    return shard_names(directory) or (USUAL_NAME,)


def _silent_bar(progress: Progress, task: TaskID) -> type:
    """A tqdm class that draws nothing and reports the bytes on disk to our own bar."""
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]  # its documented place

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            name = options.get("name") or ""
            self._counts = options.get("unit") == "B" and not name.endswith("transfer")
            super().__init__(*args, **(options | {"disable": True}))  # type: ignore[no-untyped-call]  # theirs

        def update(self, n: float | None = 1) -> None:
            if self._counts:
                progress.update(task, total=self.total or None, advance=n or 0)

    return Bar
