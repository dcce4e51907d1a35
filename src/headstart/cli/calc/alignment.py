"""``headstart calc alignment``: what block boundaries lose."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from headstart.cli.calc.show_alignment import show
from headstart.errors import ConfigError, HeadstartError
from headstart.lab.calc.alignment import losses


def alignment(
    shared: Annotated[
        str, typer.Option(metavar="N,N,…", help="Lengths of a shared prefix in tokens.")
    ] = "100,500,1000,1024,2000,4097",
    block_size: Annotated[
        str, typer.Option(metavar="N,N,…", help="Tokens of one block.")
    ] = "16,32,64,128,256,512",
    ends_there: Annotated[
        bool, typer.Option("--ends-there", help="Prompts end with the shared part: nothing comes behind it.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all of it as JSON, and nothing else.")
    ] = False,
) -> None:
    """Tokens of a shared prefix that are computed again because a block is not full.

    The hash index (vLLM's) finds whole blocks; what is left over of the last one is lost
    each time. The radix index matches to the token and loses none; where a prompt ends
    with the shared part its last token is computed again by either, for the logits.

    For example:

        headstart calc alignment

        headstart calc alignment --shared 1000,1023,1024 --block-size 16,256 --ends-there
    """
    try:
        lengths, sizes = _numbers(shared, "--shared"), _numbers(block_size, "--block-size")
    except HeadstartError as error:
        typer.echo(f"headstart calc alignment: {error}", err=True)
        raise typer.Exit(1) from error
    found = losses(lengths, sizes, ends_there=ends_there)
    if as_json:
        rows = [asdict(one) | {"hash_share": one.hash_share} for one in found]
        typer.echo(json.dumps({"ends_there": ends_there, "losses": rows}, indent=2))
        return
    show(found, sizes, ends_there=ends_there, console=Console(highlight=False))


def _numbers(text: str, option: str) -> list[int]:
    """``16,32`` as numbers, each once, ascending."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and 0 < int(word) < 2**31 for word in words):
        raise ConfigError(f"{option} must be numbers of tokens with commas between them, not {text!r}")
    return sorted({int(word) for word in words})
