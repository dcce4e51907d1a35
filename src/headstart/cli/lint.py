"""``headstart lint``: what in a request's body or a prompt's template will cost cache hits."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from headstart.cli.serve import DEFAULT_MODEL
from headstart.errors import HeadstartError, LintError
from headstart.lab.prompts.lint import Kind, Linter
from headstart.lab.prompts.problem import LintReport, Problem, Severity, Sharing
from headstart.lab.prompts.rules import RULES
from headstart.lab.traces.texts import PromptReader
from headstart.model.store import cache_root


class FailOn(StrEnum):
    """From which severity on the exit code is 2."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    NEVER = "never"


class FileKind(StrEnum):
    """What a file is."""

    BODY = "body"
    TEMPLATE = "template"


def lint(
    file: Annotated[
        str | None,
        typer.Argument(
            help="A request's JSON body, a file with one on each line, a chat template (also within a "
            "tokenizer_config.json), or a prompt with {placeholders}; - is the standard input.",
            show_default=False,
        ),
    ] = None,
    kind: Annotated[FileKind | None, typer.Option(help="What the file is.", show_default="found out")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Count with this model's tokenizer, and render bodies with its chat template: a directory, "
            "a GGUF file, a hub id or a built-in name.",
            show_default="the embedded model's tokenizer if it was fetched before, else characters",
        ),
    ] = None,
    block_size: Annotated[
        int, typer.Option(min=1, help="Tokens of a block of the engine's prefix cache.")
    ] = 16,
    fail_on: Annotated[
        FailOn, typer.Option(help="The mildest severity with which the exit code is 2.")
    ] = FailOn.WARNING,
    privacy: Annotated[bool, typer.Option("--privacy", help="Write no text of prompts.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON for programs.")] = False,
    explain: Annotated[
        str | None,
        typer.Option(metavar="RULE", help="Tell what a rule is about, HS001 say.", show_default=False),
    ] = None,
) -> None:
    """Find what will cost prefix-cache hits, before any request is sent.

    It looks for text that varies in front of text that could be shared (clocks,
    ids, names), for tools and JSON in no fixed order, for characters nobody sees,
    and for layouts and fields that keep prompts apart; chat templates are tried
    out with two clocks, with switches, and with one more turn.

    The exit code is 0 if there is nothing to say, 2 if there is (see --fail-on),
    and 1 if the file is neither a body nor a template.  All rules: docs/lint.md.

    For example:

        headstart lint request.json

        headstart lint chat_template.jinja --fail-on error
    """
    if explain is not None:
        typer.echo(_documentation(explain), nl=False)
        return
    if file is None:
        raise typer.BadParameter("a file is needed, or --explain with a rule", param_hint="FILE")
    try:
        linter = Linter(_reader(model), with_template=model is not None, block_size=block_size)
        report = _checked(linter, file, kind.value if kind is not None else None)
    except HeadstartError as error:
        why = f"{file} cannot be checked; without --privacy it is said why" if privacy else error
        typer.echo(f"headstart lint: {why}", err=True)
        raise typer.Exit(1) from error
    if privacy:
        report = replace(report, problems=[_without_text(problem) for problem in report.problems])
    typer.echo(json.dumps(_as_json(report), indent=2) if as_json else _as_text(report))
    if fail_on is not FailOn.NEVER and report.at_least(Severity(fail_on.value)):
        raise typer.Exit(2)


def _documentation(rule: str) -> str:
    if rule.upper() not in RULES:
        raise typer.BadParameter(
            f"there is no rule {rule}; the rules are {', '.join(RULES)}", param_hint="--explain"
        )
    return RULES[rule.upper()].documentation()


def _reader(model: str | None) -> PromptReader | None:
    """The one asked for, else the embedded model's if it is here already: nothing is fetched unasked."""
    if model is None and not (cache_root() / "models" / DEFAULT_MODEL).is_dir():
        return None
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        return PromptReader.of(model, bars)


def _checked(linter: Linter, file: str, kind: Kind | None) -> LintReport:
    console = Console(stderr=True)
    columns = (TextColumn("checking"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        return linter.lint(
            file, _text(file), kind, lambda done, total: bar.update(task, completed=done, total=total)
        )


def _text(file: str) -> str:
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return data.decode()
    except OSError as error:
        raise LintError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise LintError(f"{file} is not UTF-8: byte {error.start} cannot be read") from error


def _without_text(problem: Problem) -> Problem:
    """Names of keys are text, too: of the place no more than the message or the tool is told."""
    head, dot, _ = problem.part.partition("]")
    return replace(problem, excerpt=None, part=head + dot)


def _as_json(report: LintReport) -> dict[str, Any]:
    return {
        "file": report.file,
        "kind": report.kind,
        "unit": report.unit,
        "problems": [asdict(problem) for problem in report.problems],
        "sharing": [asdict(sharing) for sharing in report.sharing],
    }


def _as_text(report: LintReport) -> str:
    lines = []
    for problem in report.problems:
        place = f"{report.file}:{problem.line}:{problem.column}"
        colour = _COLOURS[problem.severity]
        severity = typer.style(f"{problem.rule} {problem.severity}", fg=colour, bold=True)
        lines.append(f"{place}: {severity}: {_sentence(problem)}")
        if problem.num_lost:
            lines.append(f"    cost: {problem.num_lost:,} {report.unit} cannot be shared")
        lines.append(f"    fix:  {problem.fix}")
    counts = [
        f"{count} {severity}{'s' if count > 1 and severity is not Severity.INFO else ''}"
        for severity in reversed(Severity)
        if (count := sum(problem.severity is severity for problem in report.problems))
    ]
    lines.append(
        f"{report.file}: {', '.join(counts) or 'nothing found'}; {_shared(report)}".removesuffix("; ")
    )
    return "\n".join(lines)


def _sentence(problem: Problem) -> str:
    words = problem.what
    if problem.excerpt:
        words += f': "{_visible(problem.excerpt)}"'
    if problem.part:
        words += f" [{_visible(problem.part)}]"
    if problem.num_bodies > 1:
        words += f" (in {problem.num_bodies:,} bodies)"
    return words


def _visible(text: str) -> str:
    """Without what would change the terminal or the direction of its lines."""
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


_COLOURS = {
    Severity.INFO: typer.colors.CYAN,
    Severity.WARNING: typer.colors.YELLOW,
    Severity.ERROR: typer.colors.RED,
}


def _shared(report: LintReport) -> str:
    unit, all_ = report.unit, report.sharing
    if not all_:
        return ""
    if len(all_) > 1:
        now, after = ([getattr(one, name) for one in all_] for name in ("num_now", "num_after"))
        total = sum(one.num_total for one in all_)
        return (
            f"of {total:,} {unit} in {len(all_):,} bodies {sum(now):,} stand before anything that varies, "
            f"{sum(after):,} if that moves behind"
        )
    return _of_one(all_[0], unit, is_template="template" in report.kind)


def _of_one(sharing: Sharing, unit: str, *, is_template: bool) -> str:
    if sharing.first_variable is None:
        return f"{sharing.num_now:,} of {sharing.num_total:,} {unit} can be shared"
    rest = "the rest" if is_template else "the instructions"
    return (
        f"first variable at {unit[:-1]} {sharing.first_variable + 1:,} of {sharing.num_total:,}: "
        f"{sharing.num_now:,} {unit} can be shared; "
        f"{sharing.num_after:,} if it moves behind {rest}"
    )
