"""``headstart serve``: an OpenAI-compatible server with prefix caching."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shlex
import signal
import socket
from contextlib import ExitStack
from importlib.metadata import version
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from starlette.types import ASGIApp

from headstart.cli.access import access_rows, hide_keys, keys_of, warn_if_open
from headstart.cli.pull import fetch_progress
from headstart.config import (
    PLAIN_SERVER,
    DtypeName,
    EngineConfig,
    HashAlgorithm,
    KernelsName,
    KVEventsConfig,
    PolicyName,
    PrefixIndexName,
    SchedulingPolicy,
    ServerConfig,
    ToolCallParserName,
)
from headstart.engine.messages import EngineInfo
from headstart.engine.supervisor import EngineSupervisor
from headstart.errors import ConfigError, HeadstartError
from headstart.model import source
from headstart.server import access_log as log_of_requests
from headstart.server import private_log
from headstart.server.access import Access
from headstart.server.app import build_apps
from headstart.server.listen import GRACE_SECONDS, HttpServer, allow_connections, bind, url_of
from headstart.server.ports import ByPort
from headstart.server.private_log import PrivateFormatter
from headstart.text import ChatTemplate, Tokenizer

DEFAULT_MODEL = "smollm2-135m"

_SERVER = "Server"
_TEMPLATES = "Chat templates and tools"
_ACCESS = "Who may ask, and who shares"
_MODEL = "Model"
_MEMORY = "KV memory"
_CACHE = "Prefix cache"
_EVICTION = "What is forgotten first"
_STEPS = "What one step may hold"
_DEBUGGING = "Debugging"

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_DECIMAL_UNITS = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


def parse_bytes(text: str) -> int:
    """``512MiB``, ``2G`` (both binary), ``2GB`` (decimal) or a plain number of bytes, as a number."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *(([kmgt]?)(?:i?b)?)", text.strip().lower())
    if not match:
        raise typer.BadParameter(f"{text!r} is no size; write 512MiB, 2G or a plain number of bytes")
    number, unit, prefix = match.groups()
    return int(float(number) * _DECIMAL_UNITS.get(unit, _UNITS[prefix]))


def _batched_tokens(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _no_share_of_memory(value: str | None) -> None:
    if value is not None:
        raise typer.BadParameter("headstart takes a size and no share: give --kv-cache-memory-bytes 2G, say")


def serve(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A built-in name (smollm2-135m), a directory or organisation/model of Hugging Face, or a "
            "GGUF file.",
            show_default=DEFAULT_MODEL,
        ),
    ] = None,
    model_option: Annotated[
        str | None, typer.Option("--model", help="The same, as other servers have it.", hidden=True)
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on; 0.0.0.0 is every one. Without API keys whoever reaches it is served.",
            rich_help_panel=_SERVER,
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            help="Port to listen on; 0 takes any free one.", min=0, max=65535, rich_help_panel=_SERVER
        ),
    ] = 8000,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Refuse requests with fields that this server does not know, where it else ignores them and "
            "names them in the header X-Headstart-Ignored-Fields.",
            rich_help_panel=_SERVER,
        ),
    ] = False,
    tool_call_parser: Annotated[
        ToolCallParserName,
        typer.Option(
            metavar="FORM",
            help="The form that the model writes tool calls in: hermes, llama3_json, mistral or qwen3_coder; "
            "auto finds it in its chat template.",
            rich_help_panel=_TEMPLATES,
        ),
    ] = "auto",
    enable_auto_tool_choice: Annotated[  # noqa: ARG001 - other servers want it, here it is always so
        bool, typer.Option("--enable-auto-tool-choice", hidden=True)
    ] = False,
    trust_request_chat_template: Annotated[
        bool | None,
        typer.Option(
            help="Take chat_template from requests. Templates are programs: a sandbox bounds their "
            "time and output, but not their memory.",
            show_default="only while all callers share one cache",
            rich_help_panel=_TEMPLATES,
        ),
    ] = None,
    shutdown_timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="After Ctrl-C or SIGTERM running requests may go on for so long; then they end with an "
            "error.",
            min=0.0,
            rich_help_panel=_SERVER,
        ),
    ] = GRACE_SECONDS,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="A key that callers must send (Authorization: Bearer, or x-api-key); repeatable. Shells' "
            "histories keep it: a file, or the variable HEADSTART_API_KEY, is better.",
            show_default="nobody needs one",
            rich_help_panel=_ACCESS,
        ),
    ] = None,
    api_key_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Keys, one a line; # begins a comment. It is read again whenever it changes.",
            show_default="none",
            rich_help_panel=_ACCESS,
        ),
    ] = None,
    isolate_by: Annotated[
        str,
        typer.Option(
            metavar="none|api-key|header:NAME",
            help="Who shares a cache: everybody, the holders of one key, or the requests with one value of "
            "a header that your proxy sets (docs/isolation.md). A client's cache_salt divides further.",
            rich_help_panel=_ACCESS,
        ),
    ] = "none",
    isolation_secret_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="At least 32 random bytes that tenants' salts are derived from; give replicas the same.",
            show_default="one of your own, made on first use",
            rich_help_panel=_ACCESS,
        ),
    ] = None,
    admin_api_key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="A key for operators, which /metrics and /reset_prefix_cache then need; repeatable. As "
            "HEADSTART_ADMIN_API_KEY it stands in no process list.",
            show_default="none",
            rich_help_panel=_ACCESS,
        ),
    ] = None,
    admin_api_key_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The same, as --api-key-file.",
            show_default="none",
            rich_help_panel=_ACCESS,
        ),
    ] = None,
    admin_port: Annotated[
        int | None,
        typer.Option(
            help="Serve /metrics and /reset_prefix_cache at this port, and no more at --port; 0 takes any.",
            min=0,
            max=65535,
            show_default="the same port",
            rich_help_panel=_ACCESS,
        ),
    ] = None,
    admin_host: Annotated[
        str | None,
        typer.Option(
            help="Address to listen on with --admin-port.", show_default="--host", rich_help_panel=_ACCESS
        ),
    ] = None,
    served_model_name: Annotated[
        str | None,
        typer.Option(
            help="What clients call the model.", show_default="the name given", rich_help_panel=_SERVER
        ),
    ] = None,
    dtype: Annotated[
        DtypeName,
        typer.Option(
            help="Number format; auto is bfloat16 where the device computes it natively, else float32.",
            rich_help_panel=_MODEL,
        ),
    ] = "auto",
    device: Annotated[
        str, typer.Option(help="Where the model runs: auto, cpu, cuda, cuda:1, …", rich_help_panel=_MODEL)
    ] = "auto",
    kernels: Annotated[
        KernelsName,
        typer.Option(
            help="auto compiles and uses kernels of our own where that is faster; torch does without.",
            rich_help_panel=_MODEL,
        ),
    ] = "auto",
    max_model_len: Annotated[
        int | None,
        typer.Option(
            help="Most tokens of prompt and answer together.",
            show_default="the model's own context",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seed for requests that bring none of their own.", rich_help_panel=_MODEL)
    ] = 0,
    kv_cache_memory_bytes: Annotated[
        int | None,
        typer.Option(
            parser=parse_bytes,
            metavar="SIZE",
            help="Memory for keys and values: 512MiB, 2G or a number of bytes.",
            show_default="a share of what is free",
            rich_help_panel=_MEMORY,
        ),
    ] = None,
    gpu_memory_utilization: Annotated[  # noqa: ARG001 - it only says what to give instead
        str | None, typer.Option(callback=_no_share_of_memory, expose_value=False, hidden=True)
    ] = None,
    num_blocks: Annotated[
        int | None,
        typer.Option(
            "--num-blocks",
            "--num-gpu-blocks-override",
            help="The same as a number of blocks.",
            show_default="as many as fit",
            rich_help_panel=_MEMORY,
        ),
    ] = None,
    block_size: Annotated[int, typer.Option(help="Tokens per block.", rich_help_panel=_MEMORY)] = 16,
    prefix_index: Annotated[
        PrefixIndexName,
        typer.Option(
            metavar="INDEX",
            help="How cached prefixes are found: radix matches to the token, hash to the block (as vLLM).",
            rich_help_panel=_CACHE,
        ),
    ] = "radix",
    enable_prefix_caching: Annotated[
        bool,
        typer.Option(
            help="Keep what was computed and use it again.",
            show_default="on",
            rich_help_panel=_CACHE,
        ),
    ] = True,
    eviction_policy: Annotated[
        PolicyName,
        typer.Option(
            metavar="POLICY",
            help="What is forgotten first: lru what was not used for longest, fifo the oldest, lfu what is "
            "used least, lrfu something between the two, slru what was used once only, ttl what was not "
            "used for a given time, cost what is cheap to compute again.",
            rich_help_panel=_EVICTION,
        ),
    ] = "lru",
    eviction_ttl_seconds: Annotated[
        float,
        typer.Option(
            help="With ttl: after so many seconds without use, whatever its priority.",
            rich_help_panel=_EVICTION,
        ),
    ] = 300.0,
    eviction_half_life_seconds: Annotated[
        float,
        typer.Option(
            help="With lrfu: after so many seconds a use counts half; the shorter, the more like lru.",
            rich_help_panel=_EVICTION,
        ),
    ] = 100.0,
    eviction_protected_share: Annotated[
        float,
        typer.Option(
            help="With slru: how much of the KV memory may be kept for what was used more than once, 0 to 1.",
            rich_help_panel=_EVICTION,
        ),
    ] = 0.8,
    evict_generated_first: Annotated[
        bool,
        typer.Option(
            "--evict-generated-first",
            help="Forget answers before prompts.",
            rich_help_panel=_EVICTION,
        ),
    ] = False,
    max_pinned_share: Annotated[
        float,
        typer.Option(help="How much of the KV memory can be pinned, 0 to 1.", rich_help_panel=_EVICTION),
    ] = 0.5,
    tenant_cache_share: Annotated[
        float | None,
        typer.Option(
            help="How much of the KV memory a tenant may fill before what it holds is forgotten first, above "
            "0 to 1. What others leave unused anyone may use. Where tenants are not told apart, all are one "
            "and nothing changes.",
            show_default="no share",
            rich_help_panel=_EVICTION,
        ),
    ] = None,
    prefix_caching_hash_algo: Annotated[
        HashAlgorithm,
        typer.Option(
            metavar="ALGO",
            help="How blocks are named in the hash index and in KV events: sha256, sha256_cbor, xxhash or "
            "xxhash_cbor; the names and the bytes are vLLM's. The xxhash ones are faster, and no protection "
            "against prompts made to collide.",
            rich_help_panel=_CACHE,
        ),
    ] = "sha256_cbor",
    explain_misses: Annotated[
        bool,
        typer.Option(
            help="Say in /metrics and in the log for every computed prompt token why it was not a hit; keeps "
            "the text of as many evicted blocks as there are blocks.",
            show_default="on",
            rich_help_panel=_CACHE,
        ),
    ] = True,
    estimate_hit_rates: Annotated[
        bool,
        typer.Option(
            help="Estimate in /metrics what half, twice and four times the KV memory would hit.",
            show_default="on",
            rich_help_panel=_CACHE,
        ),
    ] = True,
    max_num_batched_tokens: Annotated[
        str,
        typer.Option(
            metavar="<int|auto>",
            help="Most tokens computed at once; longer prompts are cut into chunks. With auto the chunks "
            "are smaller while other requests decode, so that those do not stall.",
            rich_help_panel=_STEPS,
        ),
    ] = "2048",
    max_num_seqs: Annotated[
        int, typer.Option(help="Most requests served at once; others wait.", rich_help_panel=_STEPS)
    ] = 128,
    scheduling_policy: Annotated[
        SchedulingPolicy,
        typer.Option(
            help="Who is served first: fcfs by arrival, priority by the requests' own priority "
            "(smaller first), then by arrival.",
            rich_help_panel=_STEPS,
        ),
    ] = "fcfs",
    max_queue: Annotated[
        int,
        typer.Option(
            "--max-queue",
            "--max-queued-requests",
            help="Most requests that wait; others are turned away with status 429. Each prompt of a body and "
            "each choice of a prompt counts as one.",
            rich_help_panel=_STEPS,
        ),
    ] = 1024,
    kv_events_config: Annotated[
        str,
        typer.Option(
            metavar="JSON",
            help="Publish what the cache holds, for routers, in vLLM's form: a JSON object with "
            "enable_kv_cache_events, endpoint, replay_endpoint, topic and others (docs/kv-events.md). "
            "Whoever subscribes can read what was said, and salts.",
            show_default="nothing is published",
            rich_help_panel=_CACHE,
        ),
    ] = "{}",
    access_log: Annotated[
        bool,
        typer.Option(
            help="One line on standard error for each request: its prompt tokens, how many were cached and "
            "why the others were not, and how long it took. No prompt, salt or key is told.",
            show_default="on",
            rich_help_panel=_DEBUGGING,
        ),
    ] = True,
    enable_log_requests: Annotated[  # noqa: ARG001 - vLLM's name for what is on anyway
        bool, typer.Option("--enable-log-requests", hidden=True)
    ] = False,
    otlp_endpoint: Annotated[
        str | None,
        typer.Option(
            "--otlp-endpoint",
            "--otlp-traces-endpoint",
            metavar="URL",
            help="Send a trace for each request, and metrics, to this OpenTelemetry collector "
            "(http://127.0.0.1:4318, say). Needs pip install 'headstart\\[otlp]'.",
            show_default="nothing is sent",
            rich_help_panel=_DEBUGGING,
        ),
    ] = None,
    decision_log: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write every decision of the cache to a new FILE (or FILE.1, …), for bug reports and "
            "headstart verify-log. It holds the token ids of all prompts and answers: whoever reads it "
            "can read what was said.",
            show_default="none is written",
            rich_help_panel=_DEBUGGING,
        ),
    ] = None,
) -> None:
    """Serve a model over HTTP and never compute the same prompt prefix twice.

    OpenAI's chat completions, completions and responses and Anthropic's messages,
    streamed or whole, are at /v1; /docs shows every route.  The usage of every
    answer says how much of its prompt came from the cache.

    /health, /metrics (Prometheus, vLLM's names) and POST /reset_prefix_cache
    are for operators; with --isolate-by the latter two need an admin key or a
    port of their own.  /health says 503 while no engine serves, and when one has
    said nothing for five minutes though requests wait for it.

    Ctrl-C or SIGTERM lets running requests finish for a few seconds; a second
    Ctrl-C does not wait.

    For example:

        headstart serve

        headstart serve ./models/my-llama --port 9000 --kv-cache-memory-bytes 2G

        headstart serve --num-blocks 256 --prefix-index hash

        headstart serve --api-key-file keys --isolate-by api-key --admin-port 9001
    """
    try:
        server = ServerConfig(
            api_keys=keys_of("HEADSTART_API_KEY", api_key, api_key_file),
            admin_api_keys=keys_of("HEADSTART_ADMIN_API_KEY", admin_api_key, admin_api_key_file),
            isolate_by=isolate_by,
            isolation_secret_file=isolation_secret_file,
            has_admin_port=admin_port is not None,
            strict=strict,
            tool_call_parser=tool_call_parser,
            trust_request_chat_template=trust_request_chat_template,
            otlp_endpoint=otlp_endpoint,
            shutdown_timeout=shutdown_timeout,
        )
        if admin_port is None and admin_host is not None:
            raise ConfigError("--admin-host is for --admin-port: give both, or neither")
        if model is not None and model_option is not None:
            raise ConfigError(f"give the model once: {model!r} or --model {model_option}")
        if model is None:
            model = DEFAULT_MODEL if model_option is None else model_option
        config = EngineConfig.from_options(
            model=model,
            served_model_name=served_model_name,
            dtype=dtype,
            device=device,
            kernels=kernels,
            max_model_len=max_model_len,
            seed=seed,
            kv_cache_memory_bytes=kv_cache_memory_bytes,
            num_blocks=num_blocks,
            block_size=block_size,
            prefix_index=prefix_index,
            enable_prefix_caching=enable_prefix_caching,
            eviction_policy=eviction_policy,
            eviction_ttl_seconds=eviction_ttl_seconds,
            eviction_half_life_seconds=eviction_half_life_seconds,
            eviction_protected_share=eviction_protected_share,
            evict_generated_first=evict_generated_first,
            max_pinned_share=max_pinned_share,
            tenant_cache_share=tenant_cache_share,
            prefix_caching_hash_algo=prefix_caching_hash_algo,
            estimate_hit_rates=estimate_hit_rates,
            explain_misses=explain_misses,
            max_num_batched_tokens=_batched_tokens(max_num_batched_tokens),
            scheduling_policy=scheduling_policy,
            max_queued_requests=max_queue,
            max_num_seqs=max_num_seqs,
            decision_log=decision_log,
            kv_events_config=KVEventsConfig.from_json(kv_events_config),
        )
        server.check_engine(config)
        _start_logging(requests=access_log)
        hide_keys([*(api_key or ()), *(admin_api_key or ())])
        access = Access(server)
        allow_connections()
        with ExitStack() as until_the_end:
            sock = until_the_end.enter_context(bind(host, port))
            admin_sock = None
            if admin_port is not None:
                admin_sock = until_the_end.enter_context(bind(admin_host or host, admin_port, kind="admin-"))
                _require_two_ports(sock, admin_sock)
            warn_if_open(sock, server)
            asyncio.run(_serve(config, server, access, sock, admin_sock, _load_text(model)))
    except HeadstartError as error:
        typer.echo(f"headstart serve: {error}", err=True)
        raise typer.Exit(1) from error
    except (KeyboardInterrupt, asyncio.CancelledError) as stopped:
        raise typer.Exit(130) from stopped  # by Ctrl-C before it served


def _require_two_ports(sock: socket.socket, admin_sock: socket.socket) -> None:
    """Two addresses may have one port, but requests are told apart by it."""
    if (port := sock.getsockname()[1]) == admin_sock.getsockname()[1]:
        raise ConfigError(f"--port and --admin-port must differ, whatever their hosts; both are {port}")


def _load_text(model: str) -> tuple[Tokenizer, ChatTemplate | None]:
    """The model's tokenizer and chat template; downloads the model first if it must."""
    with fetch_progress() as progress:
        files = source.resolve(model, progress=progress)
    return Tokenizer.from_directory(files.tokenizer_dir), ChatTemplate.from_directory(files.tokenizer_dir)


def _start_logging(*, requests: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(PrivateFormatter(private_log.FORMAT))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # its warnings are about what strangers send
    if requests:
        log_of_requests.logger.setLevel(logging.INFO)


async def _serve(
    config: EngineConfig,
    server_config: ServerConfig,
    access: Access,
    sock: socket.socket,
    admin_sock: socket.socket | None,
    text: tuple[Tokenizer, ChatTemplate | None],
) -> None:
    """Start the engine, serve until a signal, end the engine."""
    tokenizer, template = text
    client = EngineSupervisor(config)
    starting = asyncio.current_task()
    assert starting is not None
    private_log.log_privately(asyncio.get_running_loop())
    for sig in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(sig, starting.cancel)
    try:
        with Console(stderr=True).status(f"starting the engine and loading {escape(config.model.model)} …"):
            info = await client.start()
        apps = build_apps(client, tokenizer, template, server_config, access)
        admin_url = None if admin_sock is None else url_of(admin_sock)
        app: ASGIApp = apps.public
        if admin_sock is not None and apps.admin is not None:
            app = ByPort(apps.public, apps.admin, admin_sock.getsockname()[1])
        server = HttpServer(
            app,
            on_ready=lambda: print_banner(
                info, url_of(sock), chat=template is not None, server=server_config, admin_url=admin_url
            ),
            close_engine=client.shutdown,
            grace_s=server_config.shutdown_timeout,
        )
        server.handle_signals()
        await server.serve(sockets=[sock] if admin_sock is None else [sock, admin_sock])
    finally:
        await client.shutdown()


def print_banner(
    info: EngineInfo,
    url: str,
    *,
    chat: bool,
    server: ServerConfig = PLAIN_SERVER,
    admin_url: str | None = None,
    console: Console | None = None,
) -> None:
    """What is served, to whom, with how much memory, and a line to try; on standard output."""
    console = console or Console(highlight=False)
    caching = f"{info.prefix_index} index, {info.eviction_policy} eviction"
    rows = {
        "address": url,
        "model": f"{info.model_name} ({info.model_type}, {info.weights_bytes / 2**20:,.0f} MiB of weights)",
        "dtype": f"{info.dtype} on {info.device}",
        "KV capacity": f"{info.kv_capacity_tokens:,} tokens, {info.kv_pool_bytes / 2**20:,.1f} MiB"
        f" ({info.num_blocks:,} blocks of {info.block_size})",
        "prefix cache": caching if info.enable_prefix_caching else "off",
        "max_model_len": f"{info.max_model_len:,} tokens of prompt and answer together"
        + ("" if info.kv_capacity_tokens >= info.max_model_len else ", more than the KV memory holds"),
    }
    if info.kv_events_endpoint is not None:
        again = info.kv_events_replay_endpoint
        rows["KV events"] = info.kv_events_endpoint + ("" if again is None else f", replayed at {again}")
    rows |= access_rows(server, admin_url)
    console.print(f"[bold]headstart {version('headstart')}[/] is ready.  Ctrl-C stops it.\n")
    width = max(map(len, rows))
    for name, value in rows.items():  # whole, however narrow the terminal: names are there to be copied
        console.print(f"[dim]{name:<{width}}[/]  {escape(value)}", soft_wrap=True)
    if info.decision_log is not None:
        told = f"\nThe token ids of all prompts and answers go to {info.decision_log}"
        console.print(told, soft_wrap=True, markup=False)
    console.print("\nTry it:\n")
    curl = curl_line(info.model_name, url, chat=chat, key=server.api_keys.are_wanted)
    console.print(curl, soft_wrap=True, markup=False)
    console.file.flush()


def curl_line(model: str, url: str, *, chat: bool, key: bool = False) -> str:
    """A command that sends one request, to be pasted into a shell of the same machine.

    A ``key`` is what the shell's variable says.
    """
    question = "Why is the sky blue?"
    asked = {"messages": [{"role": "user", "content": question}]} if chat else {"prompt": question}
    path = "chat/completions" if chat else "completions"
    body = json.dumps({"model": model, **asked, "max_tokens": 64}, ensure_ascii=False)
    local = re.sub(r"//(0\.0\.0\.0|\[::\]):", "//localhost:", url)  # where "every address" is reached
    bearer = ' -H "Authorization: Bearer $HEADSTART_API_KEY"' if key else ""
    return f"curl {local}/v1/{path}{bearer} -H 'Content-Type: application/json' -d {shlex.quote(body)}"
