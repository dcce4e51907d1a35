"""An explanation for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from headstart.lab.explain.finding import Evidence, Explanation, Finding
from headstart.lab.explain.report import DEFINITIONS
from headstart.lab.replay.outcome import Setting

_BAR = 30


def print_explanation(explanation: Explanation, console: Console, *, most: int | None = None) -> None:
    """The hit rate, where the other tokens went, and the ``most`` dearest findings."""
    rates = explanation.rates
    console.print(
        f"[bold]{escape(explanation.trace_name)}[/]: {rates.num_requests:,} requests, "
        f"{rates.num_prompt_tokens:,} prompt tokens, replayed with {_setting(explanation.setting)}"
    )
    console.print(
        f"\n[bold]Token hit rate {rates.token_hit_rate:.1%}[/]  (full hits "
        f"{rates.request_full_hit_rate:.1%} of requests, any hit {rates.request_any_hit_rate:.1%})\n"
    )
    console.print(_tokens(explanation))
    findings = explanation.findings[:most]
    for number, finding in enumerate(findings, 1):
        _print_finding(number, finding, rates.token_hit_rate, console)
    if not findings:
        console.print("\nNothing that costs hits was found.")
    left = len(explanation.findings) - len(findings)
    if left:
        console.print(f"\n{left} more {'finding is' if left == 1 else 'findings are'} not shown (--top).")
    _print_sentences("What is counted", DEFINITIONS, console)
    _print_sentences("To know", explanation.notes, console)


def _setting(setting: Setting) -> str:
    capacity = setting.capacity_blocks
    room = "unbounded capacity" if capacity is None else f"{capacity:,} blocks"
    words = f"{room}, blocks of {setting.block_size} tokens, {setting.prefix_index} index"
    words += f", {setting.policy}" if capacity is not None else ""
    words += f", {setting.max_num_seqs:,} at once" if setting.max_num_seqs is not None else ""
    return words + (f", {setting.replicas:,} replicas ({setting.routing})" if setting.replicas > 1 else "")


def _tokens(explanation: Explanation) -> Table:
    """What became of all prompt tokens, as bars."""
    total = explanation.rates.num_prompt_tokens
    rows: dict[str, int] = {"hit": explanation.rates.num_hit_tokens}
    rows.update({str(reason): count for reason, count in explanation.misses.items()})
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(justify="right")
    for name, count in rows.items():
        share = count / total if total else 0.0
        colour = "green" if name == "hit" else "red"
        bar = "█" * round(_BAR * share) or "▏"
        table.add_row(f"  {name.replace('_', ' ')}", f"{count:,}", f"{share:.1%}", f"[{colour}]{bar}[/]")
    return table


def _print_finding(number: int, finding: Finding, before: float, console: Console) -> None:
    after = finding.token_hit_rate_after
    promise = "" if after is None else f"; with this fix: [bold]{before:.1%} → {after:.1%}[/]"
    requests = f"{finding.num_requests:,} request{'s' if finding.num_requests != 1 else ''}"
    console.print(
        f"\n[bold]{number}. {finding.kind.replace('_', ' ')}[/]: {finding.num_tokens_lost:,} tokens lost "
        f"({finding.share_lost:.1%}) in {requests}{promise}"
    )
    _indented(escape(f"{finding.what[0].upper()}{finding.what[1:].rstrip('.')}."), console)
    _indented(f"[green]Fix:[/] {escape(finding.fix[0].upper() + finding.fix[1:].rstrip('.'))}.", console)
    for evidence in finding.evidence:
        _indented(_evidence(evidence), console)


def _evidence(evidence: Evidence) -> str:
    where = f"[dim]{escape(evidence.file)}:{evidence.line}, token {evidence.position:,}[/]"
    return where if evidence.text is None else f"{where}  {escape(_on_one_line(evidence.text))}"


def _on_one_line(text: str) -> str:
    """Line ends and control characters as escapes: a log must not move the reader's cursor."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _print_sentences(title: str, sentences: tuple[str, ...] | list[str], console: Console) -> None:
    if sentences:
        console.print(f"\n[bold]{title}[/]")
    for sentence in sentences:
        _indented(escape(sentence), console)


def _indented(text: str, console: Console) -> None:
    console.print(Padding(text, (0, 0, 0, 3)))
