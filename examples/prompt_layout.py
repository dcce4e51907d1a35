"""What the order of a prompt's parts costs, on the real cache core.

    python examples/prompt_layout.py

First a system prompt of 1,024 tokens with something that varies at token 500, then a prompt with all that
prompts have, badly and well laid out.  Figures are of each request after the first.  The script ends with an
error if one of its claims does not hold.
"""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headstart.lab.prompts.layout import Layout, LayoutOutcome, measure, split_system_prompt, typical_prompt
from headstart.lab.replay.outcome import Setting

WIDTH = 48  # characters of a prompt's picture
SETTINGS = (Setting(prefix_index="radix"), Setting(prefix_index="hash", block_size=16))


def main() -> None:
    """Both examples."""
    argparse.ArgumentParser(description=main.__doc__).parse_args()
    console = Console(highlight=False)
    console.print("A system prompt of 1,024 tokens with a variable of one token, and a question\n")
    radix, hashed = show(split_system_prompt(), console)
    assert [outcome.num_lost for outcome in radix] == [524, 0]
    assert [outcome.num_lost for outcome in hashed] == [528, 0]  # 500 tokens are 31 whole blocks and a bit
    console.print("\nA prompt with all that prompts have\n")
    radix, hashed = show(typical_prompt(), console)
    assert [outcome.num_hit for outcome in radix] == [0, 1850]
    assert [outcome.num_hit for outcome in hashed] == [0, 1840]
    console.print("\n█ hits   ▒ stable, and computed again   ░ varies")


def show(layouts: tuple[Layout, Layout], console: Console) -> list[list[LayoutOutcome]]:
    """Prints a pair side by side; returns the outcomes of each setting."""
    outcomes = [[measure(layout, setting) for layout in layouts] for setting in SETTINGS]
    for outcome in outcomes[0]:
        layout = outcome.layout
        order = " · ".join(f"{segment.name} {segment.num_tokens:,}" for segment in layout.segments)
        console.print(f"  {layout.name:17} {picture(outcome)}\n  {'':17} {order}\n", soft_wrap=True)
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    table.add_column("  index")
    for heading in ("block", *(f"{layout.name}: hit / lost" for layout in layouts), "token hit rates"):
        table.add_column(heading, justify="right")
    for setting, pair in zip(SETTINGS, outcomes, strict=True):
        cells = [f"{one.num_hit:,} / {one.num_lost:,}" for one in pair]
        rates = " → ".join(f"{one.token_hit_rate:.1%}" for one in pair)
        table.add_row(f"  {setting.prefix_index}", str(setting.block_size), *cells, rates)
    console.print(table)
    return outcomes


def picture(outcome: LayoutOutcome) -> Text:
    """A prompt as a bar; something short is one character wide all the same."""
    bar, at = Text(), 0
    for segment in outcome.layout.segments:
        width = max(1, round(WIDTH * segment.num_tokens / outcome.layout.num_tokens))
        if segment.varies:
            bar.append("░" * width, style="red")
        else:
            bar.append(*(("█" * width, "green") if at < outcome.num_hit else ("▒" * width, "yellow")))
        at += segment.num_tokens
    return bar


if __name__ == "__main__":
    main()
