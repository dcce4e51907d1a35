"""``headstart bench``: put load on an OpenAI-compatible server and say how fast it was."""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import Annotated

import typer
from rich.console import Console

from headstart.errors import ConfigError, HeadstartError
from headstart.lab.load.client import connect
from headstart.lab.load.machine import describe_machine
from headstart.lab.load.progress import collect
from headstart.lab.load.prompts import PromptSource, parse_vocab
from headstart.lab.load.report import Report, Setup
from headstart.lab.load.scenarios import Scenario, Workload, run

_LOAD = "Load"
_SERVER = "Server"

# What makes a scenario say something, where the user gives nothing.
_OUTPUT_TOKENS = {Scenario.FIRST_TOKEN: 1}
_CONCURRENCY = {Scenario.SHARED_PREFIX: 8, Scenario.UNSHARED: 8}
_REPEATS = {Scenario.FIRST_TOKEN: 7}
_SHARES_NOTHING = (Scenario.DECODE, Scenario.UNSHARED)


def bench(
    base_url: Annotated[
        str,
        typer.Option(help="Address of the server, with or without /v1.", rich_help_panel=_SERVER),
    ] = "http://127.0.0.1:8000",
    scenario: Annotated[
        Scenario, typer.Option(help="What to measure; see above.", rich_help_panel=_LOAD)
    ] = Scenario.FIRST_TOKEN,
    model: Annotated[
        str | None,
        typer.Option(
            help="Model to ask for.",
            show_default="the first that the server lists",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(help="Sent as bearer token.", rich_help_panel=_SERVER),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(help="Seconds that may pass without a byte.", min=0.001, rich_help_panel=_SERVER),
    ] = 300.0,
    prompt_tokens: Annotated[int, typer.Option(help="Length of every prompt.", rich_help_panel=_LOAD)] = 1211,
    shared_tokens: Annotated[
        int | None,
        typer.Option(
            help="How many of them, from the start, a warm prompt shares with what went before.",
            show_default="all but 11; none for decode",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    output_tokens: Annotated[
        int | None,
        typer.Option(
            help="Most tokens to generate per request.",
            show_default="1 for first-token, else 64",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            "--streams",
            help="Requests sent at once; not for first-token.",
            show_default="1 for decode, else 8",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(
            help="How often to measure, after one warm-up.",
            show_default="7 for first-token, else 3",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    ignore_eos: Annotated[
        bool,
        typer.Option(
            "--ignore-eos",
            help="Ask for answers of full length (headstart, vLLM, llama.cpp; others may refuse).",
            rich_help_panel=_LOAD,
        ),
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Same seed, same prompts: then the server must not have seen them before.",
            show_default="a new one",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    vocab_range: Annotated[
        str,
        typer.Option(
            metavar="LOW:HIGH",
            help="Token ids to draw prompts from, HIGH not among them.",
            rich_help_panel=_LOAD,
        ),
    ] = "1000:20000",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything measured as JSON, and nothing else.")
    ] = False,
) -> None:
    """Measure any OpenAI-compatible server with token-exact prompts.

    headstart, vLLM, llama.cpp and others take prompts of random token ids at
    /v1/completions and stream their greedy answers back.  Each repeat of

    [bold]first-token[/bold] sends one prompt that the server has never seen (cold), then one
    that differs from it in the last tokens only (warm): what a prefix cache saves;

    [bold]decode[/bold] sends prompts all at once: how fast tokens come while all streams decode.
    They share nothing, or with --shared-tokens a prefix that is in the cache already;

    [bold]shared-prefix[/bold] sends many prompts at once behind one long prefix, new to the
    server (cold), then as many others behind the same one (warm): many chats
    with one system prompt;

    [bold]unshared[/bold] sends prompts that share nothing, all at once, and takes the time until
    the last answer is complete: what no cache helps with.

    For example:

        headstart bench

        headstart bench --scenario decode --streams 16 --shared-tokens 1200

        headstart bench --base-url http://gpu-box:8000 --prompt-tokens 8000

        headstart bench --scenario shared-prefix --json > shared.json
    """

    async def measure(prompts: PromptSource) -> Report:
        async with connect(
            base_url, model=model, api_key=api_key, timeout=timeout, ignore_eos=ignore_eos
        ) as server:
            rounds = await collect(
                run(scenario, server.complete, prompts, load),
                total=scenario.num_rounds(load),
                label=scenario,
                console=Console(stderr=True),
            )
            machine = describe_machine()
            return Report.of(Setup(scenario, base_url, server.model, load, drawn, machine), rounds)

    drawn = secrets.randbits(32) if seed is None else seed
    try:
        if scenario is Scenario.FIRST_TOKEN and concurrency is not None:
            raise ConfigError("first-token sends one request at a time: leave --concurrency out")
        if scenario is Scenario.UNSHARED and shared_tokens is not None:
            raise ConfigError("unshared's prompts share nothing: leave --shared-tokens out")
        unshared = prompt_tokens if scenario in _SHARES_NOTHING else 11
        load = Workload(
            prompt_tokens=prompt_tokens,
            shared_tokens=max(0, prompt_tokens - unshared) if shared_tokens is None else shared_tokens,
            output_tokens=_OUTPUT_TOKENS.get(scenario, 64) if output_tokens is None else output_tokens,
            concurrency=_CONCURRENCY.get(scenario, 1) if concurrency is None else concurrency,
            repeats=_REPEATS.get(scenario, 3) if repeats is None else repeats,
        )
        report = asyncio.run(measure(PromptSource(parse_vocab(vocab_range), drawn)))
    except HeadstartError as error:
        typer.echo(f"headstart bench: {error}", err=True)
        raise typer.Exit(1) from error
    if as_json:
        typer.echo(json.dumps(report.fields(), indent=2))
        return
    Console().print(report.table())
    for warning in report.warnings:
        typer.echo(f"warning: {warning}", err=True)
