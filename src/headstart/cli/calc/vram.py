"""``headstart calc vram``: weights, KV bytes for a token, and how many sequences fit."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from headstart.cli.calc.show_vram import Asked, show
from headstart.errors import HeadstartError
from headstart.lab.calc.find import find_shape
from headstart.lab.calc.shape import Shape
from headstart.lab.calc.units import parse_bytes
from headstart.lab.calc.vram import Fit, Footprint, Load, Machine, Storage, fit, footprint

_MODEL, _LOAD, _MACHINE = "Model", "Load", "Machine"
_DEFAULT_LENGTH = 4096


def vram(
    model: Annotated[
        str,
        typer.Argument(
            help="A config.json or its directory, a GGUF file, a hub's organisation/model (its config.json "
            "alone is fetched), or a name of the built-in table, such as llama-3.1-8b."
        ),
    ],
    dtype: Annotated[
        str,
        typer.Option(help="auto, bfloat16, float16 or float32: of the weights.", rich_help_panel=_MODEL),
    ] = "auto",
    quantization: Annotated[
        str,
        typer.Option(
            help="auto, none, fp8, int8, int4 (AWQ and GPTQ, groups of 128), mxfp4 or nf4: of the layers' "
            "matrices; embeddings and norms keep the dtype.",
            rich_help_panel=_MODEL,
        ),
    ] = "auto",
    weights: Annotated[
        str | None,
        typer.Option(
            help="Size of the weights, such as 14GiB, where you know better.",
            show_default="counted",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    kv_cache_dtype: Annotated[
        str,
        typer.Option(
            help="auto (the model's), bfloat16, float16, float32, fp8, fp8_e4m3, fp8_e5m2 or int8.",
            rich_help_panel=_MODEL,
        ),
    ] = "auto",
    memory: Annotated[
        str | None,
        typer.Option(
            help="Memory of each GPU (or of the machine), such as 24GiB or 80GB.",
            show_default="only the model's own sizes",
            rich_help_panel=_MACHINE,
        ),
    ] = None,
    gpu_memory_utilization: Annotated[
        float,
        typer.Option(help="Share of it that may be used.", min=0.01, max=1.0, rich_help_panel=_MACHINE),
    ] = 0.9,
    overhead: Annotated[
        str,
        typer.Option(
            help="Allowance for activations, graphs and libraries; it is not measured.",
            rich_help_panel=_MACHINE,
        ),
    ] = "1.5GiB",
    tensor_parallel_size: Annotated[
        int,
        typer.Option(
            "--tensor-parallel-size",
            "-tp",
            help="GPUs that share the model.",
            min=1,
            rich_help_panel=_MACHINE,
        ),
    ] = 1,
    length: Annotated[
        int | None,
        typer.Option(
            "--max-model-len",
            "--length",
            help="Tokens of each sequence, prompt and answer.",
            min=1,
            show_default="the model's context length",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    shared: Annotated[
        int,
        typer.Option(help="How many of them all sequences begin with.", min=0, rich_help_panel=_LOAD),
    ] = 0,
    block_size: Annotated[int, typer.Option(help="Tokens of one block.", min=1, rich_help_panel=_LOAD)] = 16,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all of it as JSON, and nothing else.")
    ] = False,
) -> None:
    """Weights, KV cache bytes for each token, and what fits: of any engine.

    Counts grouped and multi-query attention, MLA's one vector, layers with a sliding window,
    layers without a KV cache, tied embeddings and experts from the model's configuration;
    nothing is loaded.

    For example:

        headstart calc vram llama-3.1-8b --memory 24GiB --length 8192

        headstart calc vram deepseek-v3 --memory 80GB -tp 16 --kv-cache-dtype fp8

        headstart calc vram ./config.json --memory 80GB --length 32768 --shared 24000
    """
    try:
        shape = _find(model)
        storage = Storage(
            dtype,
            quantization,
            kv_cache_dtype,
            None if weights is None else parse_bytes(weights, "--weights"),
        )
        load = Load(length or shape.context_length or _DEFAULT_LENGTH, shared, block_size)
        taken = footprint(shape, storage, load, tensor_parallel_size)
        machine = None
        if memory is not None:
            machine = Machine(
                parse_bytes(memory, "--memory"), gpu_memory_utilization, parse_bytes(overhead, "--overhead")
            )
        room = None if machine is None else fit(taken, machine, load)
    except HeadstartError as error:
        typer.echo(f"headstart calc vram: {error}", err=True)
        raise typer.Exit(1) from error
    asked = Asked(shape, storage, load, machine, tensor_parallel_size)
    if as_json:
        typer.echo(json.dumps(_fields(asked, taken, room), indent=2))
        return
    show(asked, taken, room, Console(highlight=False))


def _find(model: str) -> Shape:
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        return find_shape(model, progress)


def _fields(asked: Asked, taken: Footprint, room: Fit | None) -> dict[str, Any]:
    shape = asked.shape
    return {
        "model": shape.name,
        "source": shape.source,
        "architecture": shape.architecture,
        "num_layers": shape.num_layers,
        "layer_groups": [asdict(group) for group in shape.groups],
        "parameters": None if shape.parameters is None else shape.parameters.total,
        "active_parameters": None if shape.parameters is None else shape.parameters.active,
        "context_length": shape.context_length,
        "tensor_parallel_size": asked.tensor_parallel_size,
        "length": asked.load.length,
        "shared": asked.load.shared,
        "block_size": asked.load.block_size,
        "bytes": asdict(taken),
        "machine": None if asked.machine is None else asdict(asked.machine),
        "fit": None if room is None else asdict(room),
        "notes": list(shape.notes),
    }
