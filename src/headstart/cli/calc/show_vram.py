"""What ``headstart calc vram`` prints for people."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headstart.lab.calc.shape import LayerGroup, Shape
from headstart.lab.calc.units import show_bytes
from headstart.lab.calc.vram import Fit, Footprint, Load, Machine, Storage


@dataclass(frozen=True, slots=True)
class Asked:
    """What was to be calculated."""

    shape: Shape
    storage: Storage
    load: Load
    machine: Machine | None
    tensor_parallel_size: int


def show(asked: Asked, taken: Footprint, room: Fit | None, console: Console) -> None:
    """The model's sizes, what fits, and what was not counted."""
    shape = asked.shape
    each = "" if asked.tensor_parallel_size == 1 else f" on each of {asked.tensor_parallel_size} GPUs"
    console.print(f"[bold]{escape(shape.name)}[/]  {escape(shape.architecture)}")
    console.print(f"[dim]{escape(shape.source)}[/]\n")
    console.print(_grid(_of_model(asked, taken, each)))
    if room is not None and asked.machine is not None:
        console.print(f"\nWhat fits{each}\n")
        console.print(_grid(_of_machine(asked, asked.machine, taken, room)))
        if room.num_sequences == 0:
            console.print("\n[bold]Not one sequence of this length fits.[/]")
    for note in _notes(asked):
        console.print(f"\n[dim]{escape(note)}[/]")


def _grid(rows: list[tuple[str, str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_column()
    for name, value, how in rows:
        table.add_row(name, value, escape(how))
    return table


def _of_model(asked: Asked, taken: Footprint, each: str) -> list[tuple[str, str, str]]:
    shape, load = asked.shape, asked.load
    rows = []
    count = shape.parameters
    if count is not None:
        active = f"{count.active:,} of them for one token" if count.active != count.total else ""
        rows.append(("parameters", f"{count.total:,}", active))
    rows.append(("weights", show_bytes(taken.weights), _weights_note(asked) + each))
    layers = "; ".join(_describe(group, taken.kv_element) for group in shape.groups)
    rows.append(("KV per token", show_bytes(taken.kv_per_token), layers))
    if shape.has_windows:
        beyond = show_bytes(taken.kv_per_token_beyond_windows)
        rows.append(("…beyond windows", beyond, "what a token takes that all windows have passed"))
    rows.append((f"{load.length:,} tokens", show_bytes(taken.sequence), "one sequence"))
    return rows


def _weights_note(asked: Asked) -> str:
    shape, storage = asked.shape, asked.storage
    if storage.weights_bytes is not None:
        return "as you say"
    if storage.dtype == storage.quantization == "auto" and shape.stored_bytes is not None:
        return "as stored in the files"
    dtype = shape.dtype if storage.dtype == "auto" else storage.dtype
    name = storage.quantization
    spared = False
    if name == "auto":
        name = shape.quantization.name if shape.quantization else "none"
        spared = bool(shape.quantization and shape.quantization.experts_only)
    if name == "none":
        return dtype
    return f"{name} {'experts' if spared else 'matrices'}, the rest {dtype}"


def _describe(group: LayerGroup, element: int) -> str:
    if group.is_latent:
        each = f"one vector of {group.elements_per_head}"
    else:
        each = f"{group.num_heads} KV head{_s(group.num_heads)} x {group.elements_per_head} elements"
    window = "" if group.window is None else f" with a window of {group.window:,}"
    return f"{group.num_layers} layer{_s(group.num_layers)}{window} x {each} x {element} byte{_s(element)}"


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _of_machine(asked: Asked, machine: Machine, taken: Footprint, room: Fit) -> list[tuple[str, str, str]]:
    load = asked.load
    usable = int(machine.memory * machine.utilization)
    rows = [
        ("usable", show_bytes(usable), f"{machine.utilization:.0%} of {show_bytes(machine.memory)}"),
        ("- weights", show_bytes(taken.weights), ""),
        ("- overhead", show_bytes(machine.overhead), "an allowance: activations, graphs, libraries"),
        ("= KV cache", show_bytes(room.kv_cache), ""),
        ("blocks", f"{room.num_blocks:,}", f"of {load.block_size} tokens, in all layers"),
        ("tokens", f"{room.num_tokens:,}", ""),
        ("sequences", f"{room.num_sequences:,}", f"of {load.length:,} tokens at once"),
    ]
    if asked.shape.has_windows:
        without = "if the engine keeps what lies before the windows too"
        rows.append(("", f"{room.num_sequences_all_kept:,}", without))
    if load.shared:
        how = f"if their first {load.shared:,} tokens are the same and kept once"
        rows.append(("sharing", f"{room.num_sharing:,}", how))
    return rows


def _notes(asked: Asked) -> list[str]:
    notes = list(asked.shape.notes)
    if asked.shape.has_windows:
        notes.append(
            "Layers with a window are counted with the blocks that reach into it; while a long prompt is "
            "computed in chunks they hold up to a chunk more."
        )
    return notes
