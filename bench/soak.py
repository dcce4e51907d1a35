"""Soak: a server under everything at once for ten minutes, and whether all of it is clean afterwards.

Starts headstart with a pool that is too small and a short queue, several tenants with keys of their own, and
sends it what people, programs and attackers send: chats and completions, whole and streamed, with tools,
schemas, several choices and salts, in OpenAI's and Anthropic's words; clients that leave before, amid and
after the prompt, that read slowly, that send nonsense; operators that look and reset.  In its first half the
engine is killed (SIGKILL) four times.  Afterwards:

* every answer was a 200 or one of the refusals that are meant for it, and no request hung;
* nothing runs or waits, and the pool is exactly free;
* the server has the processes, sockets and files that it had before;
* over the second half its memory stayed within 5 %;
* a sample of the answers, many of them from the cache, equals what a cold run answers to the same prompt;
* it ends within its time when it is told to.

    python bench/soak.py                 # ten minutes
    python bench/soak.py --minutes 1     # the form that runs among the tests
    python bench/soak.py --write         # and put it into docs/benchmarks.md and bench/results/

Exits with 1 if anything of this does not hold.  Reads /proc, so it needs Linux.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from headstart.lab.load.family import family
from headstart.lab.load.local import running_server, serve_command
from headstart.lab.load.machine import describe_machine
from headstart.lab.load.publish import record
from headstart.lab.load.report import markdown_table

ROOT = Path(__file__).resolve().parent.parent
GROWTH_GOAL = 0.05
VISITORS = 24
TENANTS = 3
KILLS = 4
SAMPLES = 60
PATIENCE_S = 300.0  # in which every answer must have come, on any machine
KILLED = {500, 502, 503}  # what requests are told whose engine is gone
BUSY = {429}

TOOL = {
    "type": "function",
    "function": {
        "name": "find_book",
        "description": "Find a book by its title.",
        "parameters": {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]},
    },
}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@dataclass(frozen=True, slots=True)
class Twin:
    """A greedy request and what it was answered, from the cache or not."""

    path: str
    body: dict[str, Any]
    text: str
    cached: int


@dataclass(slots=True)
class Findings:
    """What came of it; ``faults`` are sentences, and there should be none."""

    minutes: float
    requests: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    left: int = 0
    kills: int = 0
    twins: int = 0
    twins_with_hits: int = 0
    memory_mib: tuple[float, float] = (0.0, 0.0)
    processes: tuple[int, int] = (0, 0)
    descriptors: tuple[int, int] = (0, 0)
    seconds_to_end: float = 0.0
    faults: list[str] = field(default_factory=list)

    def demand(self, condition: bool, fault: str) -> None:
        """Note the fault unless the condition holds."""
        if not condition and len(self.faults) < 50:
            self.faults.append(fault)

    @property
    def growth(self) -> float:
        """Of the memory, over the second half."""
        before, after = self.memory_mib
        return after / before - 1

    def markdown(self, model: str, date: datetime) -> str:
        """The table, and what it is about."""
        kinds = [[kind, f"{count:,}"] for kind, count in sorted(self.requests.items())]
        statuses = ", ".join(f"{status} ({count:,})" for status, count in sorted(self.statuses.items()))
        first, last = self.memory_mib
        return (
            f"{markdown_table(['what was sent', 'times'], kinds)}\n\n"
            f"{self.minutes:g} minutes, {sum(self.requests.values()):,} requests, {VISITORS} at once, "
            f"{TENANTS} tenants; {self.left:,} clients left early; the engine was killed {self.kills} "
            f"times.  Answers by status: {statuses}.  Afterwards: the pool free, "
            f"{self.processes[1]} processes "
            f"(before: {self.processes[0]}), {self.descriptors[1]} open files and sockets (before: "
            f"{self.descriptors[0]}), resident memory over the second half {first:,.0f} to {last:,.0f} MiB "
            f"({self.growth:+.1%}); {self.twins} sampled answers, {self.twins_with_hits} of them from the "
            f"cache, equal their cold twins; it ended {self.seconds_to_end:.1f} s after SIGTERM.  "
            f"{'No fault.' if not self.faults else f'{len(self.faults)} FAULTS.'}  {model}; "
            f"{describe_machine(['headstart', 'torch'])}; {date:%Y-%m-%d}."
        )


class Crowd:
    """Visitors of all kinds; ``over`` is when they stop coming, in seconds of the loop."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        keys: list[str],
        admin: Mapping[str, str],
        findings: Findings,
        *,
        model: str,
        seed: int,
    ) -> None:
        self.findings = findings
        self.samples: list[Twin] = []
        self.engine_is_gone = asyncio.Event()
        self._http = http
        self._keys = keys
        self._admin = admin
        self._model = model
        self._chance = random.Random(seed)
        words = ["prefix", "that", "was", "computed", "once", "need", "not", "again", "whoever", "asks"]
        self._systems = [" ".join(self._chance.choices(words, k=60)) for _ in range(6)]
        self._kinds: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (30, self.chat),
            (15, self.completion),
            (8, self.messages_of_anthropic),
            (8, self.responses),
            (5, self.tools),
            (5, self.schema),
            (5, self.choices),
            (10, self.leave_early),
            (3, self.read_slowly),
            (6, self.nonsense),
            (2, self.strangers),
            (3, self.operator),
            (2, self.warm),
        ]

    async def visitor(self, over: float) -> None:
        """One visit after another."""
        loop = asyncio.get_running_loop()
        weights, kinds = zip(*self._kinds, strict=True)
        while loop.time() < over:
            (kind,) = self._chance.choices(kinds, weights)
            name = kind.__name__.replace("_", " ")
            self.findings.requests[name] += 1
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await kind()
            except TimeoutError:
                self.findings.demand(False, f"{name} hung for {PATIENCE_S:g} s")
            except httpx.HTTPError as error:
                self.findings.demand(False, f"{name}: the connection broke: {type(error).__name__}: {error}")

    # -- what visitors do ------------------------------------------------------------------------

    async def chat(self) -> None:
        """A greedy chat about one of a few systems, whole or streamed: the stuff of hits."""
        await self._twin("/v1/chat/completions", self._chat())

    async def completion(self) -> None:
        """A greedy completion."""
        body = {"prompt": self._chance.choice(self._systems) + self._digits(), "max_tokens": self._few()}
        await self._twin("/v1/completions", body)

    async def messages_of_anthropic(self) -> None:
        """The same in Anthropic's words, with a marker."""
        body = {
            "max_tokens": self._few(),
            "system": [
                {
                    "type": "text",
                    "text": self._chance.choice(self._systems),
                    "cache_control": {"type": "ephemeral"},
                }
            ],
            "messages": [{"role": "user", "content": self._digits()}],
        }
        await self._send("/v1/messages", body, stream=self._chance.random() < 0.5)

    async def responses(self) -> None:
        """The same as a response."""
        body = {
            "max_output_tokens": self._few(),
            "instructions": self._chance.choice(self._systems),
            "input": self._digits(),
        }
        await self._send("/v1/responses", body, stream=self._chance.random() < 0.5)

    async def tools(self) -> None:
        """A chat that must call a tool, and one that may."""
        choice = self._chance.choice(("auto", "required", "none"))
        body = self._chat() | {"tools": [TOOL], "tool_choice": choice}
        await self._send("/v1/chat/completions", body, stream=self._chance.random() < 0.5)

    async def schema(self) -> None:
        """An answer of a given form."""
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
        body = self._chat() | {"response_format": form, "temperature": 1}
        await self._send("/v1/chat/completions", body, stream=self._chance.random() < 0.5)

    async def choices(self) -> None:
        """Several choices, drawn at random."""
        body = self._chat() | {
            "n": self._chance.randint(2, 4),
            "temperature": 1,
            "cache_salt": secrets.token_hex(16),
        }
        await self._send("/v1/chat/completions", body, stream=self._chance.random() < 0.5)

    async def leave_early(self) -> None:
        """Leave before the answer, or after a few events of it."""
        self.findings.left += 1
        patience = self._chance.choice((0.01, 0.1, 1.0, None))
        body = self._chat() | {"stream": True, "max_tokens": 200, "ignore_eos": True}
        wanted = self._chance.randint(1, 8)
        try:
            async with asyncio.timeout(patience), self._open("/v1/chat/completions", body) as answer:
                async for line in answer.aiter_lines():
                    wanted -= bool(line)
                    if wanted <= 0:
                        return
        except TimeoutError:
            return

    async def read_slowly(self) -> None:
        """Take an event, sleep, take the next; nobody else may suffer."""
        async with self._open("/v1/chat/completions", self._chat() | {"stream": True}) as answer:
            self._note(answer)
            async for _ in answer.aiter_raw(64):
                await asyncio.sleep(0.05)

    async def nonsense(self) -> None:
        """What no server can serve: it must be a 4xx."""
        bodies: list[Any] = [
            {"messages": []},
            {"messages": [{"role": "nobody", "content": "x"}]},
            {"prompt": "x", "max_tokens": -1},
            {"prompt": [10**9]},
            {"prompt": "x" * 300_000},
            [1, 2, 3],
            {"messages": [{"role": "user", "content": "x"}], "temperature": "hot"},
            {"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_schema"}},
        ]
        body = self._chance.choice(bodies)
        path = "/v1/completions" if isinstance(body, dict) and "prompt" in body else "/v1/chat/completions"
        answer = await self._http.post(path, json=body, headers=self._key())
        self.findings.statuses[answer.status_code] += 1
        self.findings.demand(
            400 <= answer.status_code < 500 or answer.status_code in KILLED,
            f"nonsense was answered {answer.status_code}: {answer.text[:200]}",
        )

    async def strangers(self) -> None:
        """Somebody without a key."""
        answer = await self._http.post("/v1/chat/completions", json=self._chat())
        self.findings.statuses[answer.status_code] += 1
        self.findings.demand(answer.status_code == 401, f"a stranger was answered {answer.status_code}")

    async def operator(self) -> None:
        """Look at the metrics; sometimes forget everything, which is refused while blocks are in use."""
        answer = await self._http.get("/metrics", headers=self._admin)
        self.findings.demand(answer.status_code == 200, f"/metrics was answered {answer.status_code}")
        if self._chance.random() < 0.1:
            answer = await self._http.post("/reset_prefix_cache", headers=self._admin)
            fine = {200, 409} | KILLED
            self.findings.demand(answer.status_code in fine, f"a reset was answered {answer.status_code}")

    async def warm(self) -> None:
        """Have a system prompt computed before anybody asks."""
        body = {"messages": [{"role": "system", "content": self._chance.choice(self._systems)}]}
        await self._send("/v1/cache/warm", body, stream=False)

    # -- with what -------------------------------------------------------------------------------

    def _chat(self) -> dict[str, Any]:
        turns = [{"role": "system", "content": self._chance.choice(self._systems)}]
        for _ in range(self._chance.randint(0, 2)):
            turns.append({"role": "user", "content": self._digits()})
            turns.append({"role": "assistant", "content": "It is so."})
        turns.append({"role": "user", "content": self._digits()})
        return {"messages": turns, "max_tokens": self._few(), "temperature": 0}

    def _digits(self) -> str:
        return f" number {self._chance.randrange(40)}"

    def _few(self) -> int:
        return self._chance.randint(1, 24)

    def _key(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._chance.choice(self._keys)}"}

    def _open(self, path: str, body: dict[str, Any]) -> Any:
        return self._http.stream("POST", path, json={"model": self._model} | body, headers=self._key())

    async def _send(self, path: str, body: dict[str, Any], *, stream: bool) -> None:
        extra = {} if path == "/v1/cache/warm" else {"stream": stream}
        async with self._open(path, body | extra) as answer:
            await answer.aread()
            self._note(answer)

    def _note(self, answer: httpx.Response) -> None:
        status = answer.status_code
        self.findings.statuses[status] += 1
        fine = status == 200 or status in KILLED | BUSY
        self.findings.demand(fine, f"{answer.request.url.path} was answered {status}")

    async def _twin(self, path: str, body: dict[str, Any]) -> None:
        """Send it, and keep some of those that were answered whole for `compare`."""
        body |= {"temperature": 0}
        answer = await self._http.post(path, json={"model": self._model} | body, headers=self._key())
        self._note(answer)
        if answer.status_code != 200:
            return
        reply = answer.json()
        twin = Twin(path, body, text_of(reply), reply["usage"]["prompt_tokens_details"]["cached_tokens"])
        if len(self.samples) < SAMPLES:
            self.samples.append(twin)
        elif self._chance.random() < 0.05:
            self.samples[self._chance.randrange(SAMPLES)] = twin

    async def compare(self) -> None:
        """Ask all samples again, each under a salt that nobody used: nothing is a hit, all must be equal."""
        for twin in self.samples:
            body = {"model": self._model} | twin.body | {"cache_salt": secrets.token_hex(16)}
            answer = await self._http.post(twin.path, json=body, headers=self._key(), timeout=PATIENCE_S)
            reply = answer.json()
            if answer.status_code != 200:
                self.findings.demand(False, f"a twin was answered {answer.status_code}: {answer.text[:200]}")
                continue
            cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
            self.findings.demand(cached == 0, f"a new salt hit {cached} tokens")
            self.findings.demand(
                text_of(reply) == twin.text,
                f"{twin.cached} tokens cached: {twin.text!r}, cold: {text_of(reply)!r}; "
                f"{json.dumps(twin.body)}",
            )
        self.findings.twins = len(self.samples)
        self.findings.twins_with_hits = sum(twin.cached > 0 for twin in self.samples)


def text_of(reply: Mapping[str, Any]) -> str:
    """What a chat or a completion was answered."""
    choice = reply["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


# -- the server, from outside --------------------------------------------------------------------------


def server_pid() -> int:
    """The server that we have started: our one child."""
    return next(member.pid for member in family(os.getpid())[1:])


def engine_pid(server: int) -> int | None:
    """The process that has the model; None while there is none."""
    return next((member.pid for member in family(server)[1:]), None)


def descriptors(pid: int) -> int:
    """Open files and sockets."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def resident_mib(server: int) -> float:
    """Of all its processes together."""
    pages = 0
    for member in family(server):
        try:
            pages += int(Path(f"/proc/{member.pid}/statm").read_text().split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def until_quiet(http: httpx.AsyncClient, admin: Mapping[str, str]) -> bool:
    """Wait until nothing runs or waits; whether the pool is exactly free then."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        text = (await http.get("/metrics", headers=admin)).text
        gauges = ("vllm:num_requests_running{", "vllm:num_requests_waiting{", "vllm:kv_cache_usage_perc{")
        if all(line.endswith(" 0.0") for line in text.splitlines() if line.startswith(gauges)):
            # Refused while a single block is in use.
            return (await http.post("/reset_prefix_cache", headers=admin)).is_success
        await asyncio.sleep(0.1)
    return False


async def kill_engines(server: int, findings: Findings, http: httpx.AsyncClient, half: float) -> None:
    """SIGKILL for the engine, a few times until ``half`` (seconds of the loop)."""
    loop = asyncio.get_running_loop()
    pause = (half - loop.time()) / (KILLS + 1)
    for _ in range(KILLS):
        await asyncio.sleep(pause)
        engine = engine_pid(server)
        if engine is None:
            continue
        os.kill(engine, signal.SIGKILL)
        findings.kills += 1
        await until_healthy(http, findings)


async def until_healthy(http: httpx.AsyncClient, findings: Findings) -> None:
    """Wait until an engine serves again."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if (await http.get("/health")).status_code == 200:
            return
        await asyncio.sleep(0.1)
    findings.demand(False, f"no engine served within {PATIENCE_S:g} s of a kill")


async def soak(
    base_url: str,
    model: str,
    keys: list[str],
    admin: Mapping[str, str],
    minutes: float,
    seed: int,
    progress: Progress,
) -> Findings:
    """Let the crowd in, and look at what it leaves behind."""
    findings = Findings(minutes)
    server, loop = server_pid(), asyncio.get_running_loop()
    once = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=base_url, timeout=PATIENCE_S, limits=once, trust_env=False) as http:
        before = len(family(server)), descriptors(server)
        begun, seconds = loop.time(), minutes * 60
        crowd = Crowd(http, keys, admin, findings, model=model, seed=seed)
        visitors = [asyncio.create_task(crowd.visitor(begun + seconds)) for _ in range(VISITORS)]
        killer = asyncio.create_task(kill_engines(server, findings, http, begun + seconds / 2))
        task = progress.add_task("soaking", total=seconds)
        half = 0.0
        while loop.time() < begun + seconds:
            await asyncio.sleep(0.5)
            progress.update(task, completed=loop.time() - begun)
            if not half and killer.done() and loop.time() > begun + seconds * 0.6:
                half = resident_mib(server)
        await killer
        last = resident_mib(server)
        await asyncio.gather(*visitors)
        findings.memory_mib = (half or last, last)
        findings.demand(await until_quiet(http, admin), "afterwards something ran, or held blocks")
        await crowd.compare()
        findings.demand(await until_quiet(http, admin), "after the twins something ran, or held blocks")
        await asyncio.sleep(1)  # for the last sockets to be closed
        after = len(family(server)), descriptors(server)
    findings.processes, findings.descriptors = (before[0], after[0]), (before[1], after[1])
    findings.demand(before[0] == after[0], f"{before[0]} processes before, {after[0]} after")
    findings.demand(after[1] <= before[1] + 4, f"{before[1]} descriptors before, {after[1]} after")
    grown = abs(findings.growth) if minutes >= 5 else 0.0  # a minute is for finding faults, not for memory
    findings.demand(grown <= GROWTH_GOAL, f"memory moved by {findings.growth:+.1%}")
    return findings


def main(
    write: Annotated[bool, typer.Option("--write", help="Write the figures into the documents.")] = False,
    minutes: Annotated[float, typer.Option(help="How long.", min=0.1)] = 10.0,
    model: Annotated[str, typer.Option(help="What to serve.")] = "smollm2-135m",
    seed: Annotated[int, typer.Option(help="Of the crowd.")] = 0,
) -> None:
    """Everything at once, and whether all of it is clean afterwards."""
    console = Console(stderr=True)
    console.print(f"starting a server with {model} …")
    keys = [secrets.token_urlsafe(24) for _ in range(TENANTS)]
    admin = secrets.token_urlsafe(24)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with tempfile.TemporaryDirectory() as directory:
        key_file, admin_file = Path(directory, "keys"), Path(directory, "admin")
        key_file.write_text("\n".join(keys))
        admin_file.write_text(admin)
        command = serve_command(
            model,
            *(
                "--served-model-name",
                "soaked",
                "--dtype",
                "float32",
                "--num-blocks",
                "160",
                "--max-model-len",
                "1024",
            ),
            *("--max-num-seqs", "12", "--max-queue", "24", "--max-num-batched-tokens", "256"),
            *("--api-key-file", str(key_file), "--admin-api-key-file", str(admin_file)),
            *("--isolate-by", "api-key", "--no-access-log"),
        )
        bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        with bar as progress, running_server(command) as base_url:
            told = {"Authorization": f"Bearer {admin}"}
            found = asyncio.run(soak(base_url, "soaked", keys, told, minutes, seed, progress))
            server, ended = server_pid(), time.monotonic()
            members = family(server)
            os.kill(server, signal.SIGTERM)
            os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
            found.seconds_to_end = time.monotonic() - ended
            left = [each for each in members if Path(f"/proc/{each.pid}").exists() and each.pid != server]
            found.demand(not left, f"{len(left)} processes outlived the server")
    date = datetime.now(UTC)
    print(found.markdown(model, date))
    for fault in found.faults:
        print(f"FAULT: {fault}")
    if write:
        fields = {
            "date": date.isoformat(timespec="seconds"),
            "machine": asdict(describe_machine(["headstart", "torch"])),
            **asdict(found),
        }
        console.print(record(ROOT, "soak", found.markdown(model, date), fields))
    raise typer.Exit(1 if found.faults else 0)


if __name__ == "__main__":
    typer.run(main)
