"""Thousands of requests that schemathesis makes up from /openapi.json, to a real server with a tiny model.

    python -m bench.api_fuzz                       # 5,000 requests or more; print what was answered
    python -m bench.api_fuzz --write               # and put it into docs/http-api.md and bench/results/
    python -m bench.api_fuzz --examples 50 --seed 4711

For each route there are requests that the document allows (*valid*; whether the model has that token, or room
for the prompt, it cannot say) and some that it does not (*broken*).  What fails the run: a status of 500 or
more, an error inside a stream, an answer that takes too long or is no HTTP, an error that is no error object;
and at the end a server that does not answer as it did before, or holds blocks though nobody asks for
anything.  Exits with 1 then, with a curl line for each of the first failures.
"""

from __future__ import annotations

import json
import secrets
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import httpx
import requests
import schemathesis
import typer
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.errors import Unsatisfiable

from headstart.lab.load.local import running_server, serve_command
from headstart.lab.load.machine import describe_machine
from headstart.lab.load.publish import publish
from headstart.lab.load.report import markdown_table
from tests.conftest import TINY_VOCAB_SIZE, write_tiny_llama

ROOT = Path(__file__).resolve().parent.parent
GOAL = 5_000
PATIENCE_S = 60.0
"""So long may one answer take, on however busy a machine."""
IDLE_S = 30.0
MAX_FAILURES = 10
SMALL = (
    "--dtype",
    "float32",
    "--max-model-len",
    "48",
    "--num-blocks",
    "256",
    "--max-num-batched-tokens",
    "512",
)
"""A model with a context so short that no request takes long, whatever it asks for."""
MODES = {
    "valid": schemathesis.GenerationMode.POSITIVE,
    "broken": schemathesis.GenerationMode.NEGATIVE,
}
PROBE = {"prompt": "A prefix", "max_tokens": 8, "temperature": 0}
_IDLE = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")


@dataclass
class Answers:
    """What was answered: by route, kind of request and status; and the first failures, with a curl line."""

    counts: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """How many requests were answered."""
        return self.counts.total()

    def table(self) -> str:
        """Routes in rows, what became of their requests in columns."""
        rows = []
        for route in dict.fromkeys(route for route, _, _ in self.counts):
            row = [f"`{route}`"]
            for kind in MODES:
                told = {
                    status: n
                    for (name, mode, status), n in self.counts.items()
                    if (name, mode) == (route, kind)
                }
                good = sum(n for status, n in told.items() if status < 400)
                row += [f"{sum(told.values()):,}", f"{good:,}"]
            rows.append(row)
        return markdown_table(["route", "valid", "answered", "broken", "answered"], rows)


@contextmanager
def small_server() -> Iterator[str]:
    """The base URL of a server with a tiny random model."""
    with tempfile.TemporaryDirectory(prefix="headstart-fuzz-") as directory:
        model = write_tiny_llama(Path(directory), tied=True)
        with running_server(serve_command(str(model), "--served-model-name", "tiny", *SMALL)) as url:
            yield url


def fuzz(
    url: str, *, examples: int, first_seed: int, told: Callable[[str], object] = lambda _: None
) -> Answers:
    """So many valid and as many broken requests for each route that takes a body, a tenth for the others."""
    answers = Answers()
    document = httpx.get(f"{url}/openapi.json").json()
    _tell_of_this_server(document)
    before = _probe(url)
    with requests.Session() as session, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # schemathesis' and hypothesis' own
        schema = schemathesis.openapi.from_dict(document)
        for found in schema.get_all_operations():
            operation = found.ok()
            count = examples if "requestBody" in _told(document, operation) else max(1, examples // 10)
            for kind in MODES:
                _bombard(url, operation, kind, count, first_seed, session, answers)
                told(f"{answers.total:,} requests, the last to {operation.label} ({kind})")
                if len(answers.failures) >= MAX_FAILURES:
                    return answers
    _at_rest(url, answers)
    if (after := _probe(url)) != before:
        answers.failures.append(f"the server answers {after!r} at the end, and answered {before!r} before")
    return answers


def _tell_of_this_server(document: dict[str, Any]) -> None:
    """What the document cannot know: the model's name, tokens and kinds of content, and that priorities do not
    count here.
    """
    text = {"type": "object", "properties": {"type": {"const": "text"}, "text": {"type": "string"}}}
    text |= {"required": ["type", "text"], "additionalProperties": False}
    for schema in document["components"]["schemas"].values():
        fields = schema.get("properties", {})
        for name, values in (("model", ["tiny"]), ("priority", [0, None])):
            if name in fields:
                fields[name] = {"enum": values}
        for part in _parts(fields.get("content", {})):
            if part.get("type") == "array":
                part["items"] = text
        for name in ("tokens", "prompt"):
            for part in _parts(fields.get(name, {})):
                if part.get("type") == "integer":
                    part["maximum"] = TINY_VOCAB_SIZE - 1


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """All objects in a schema."""
    if isinstance(schema, dict):
        yield schema
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _parts(part)


def _with_integers(value: Any) -> Any:
    """The same with 3 for 3.0: JSON schema takes one for the other, and no client writes it so."""
    if isinstance(value, dict):
        return {name: _with_integers(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_integers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def _told(document: dict[str, Any], operation: Any) -> dict[str, Any]:
    told: dict[str, Any] = document["paths"][operation.path][operation.method.lower()]
    return told


def _bombard(
    url: str,
    operation: Any,
    kind: str,
    count: int,
    first_seed: int,
    session: requests.Session,
    answers: Answers,
) -> None:
    """So many requests of one kind to one route."""

    @seed(first_seed)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @given(case=operation.as_strategy(MODES[kind]))
    def send(case: Any) -> None:
        if len(answers.failures) >= MAX_FAILURES:
            return
        if kind == "valid":
            case.body = _with_integers(case.body)
        try:
            response = case.call(base_url=url, session=session, timeout=PATIENCE_S)
        except requests.RequestException as error:
            answers.failures.append(f"{type(error).__name__} {error}: {case.as_curl_command()[:2000]}")
            return
        answers.counts[operation.label, kind, response.status_code] += 1
        if (why := _wrong_with(response.status_code, response.text)) is not None:
            answers.failures.append(f"{why}: {case.as_curl_command()[:2000]}")

    with suppress(Unsatisfiable):  # no request is broken to a route that takes nothing
        send()


def _wrong_with(status: int, text: str) -> str | None:
    """What is wrong with an answer, if something is."""
    if status >= 500:
        return f"status {status} {text[:300]}"
    if '"type":"server_error"' in text:
        return f"an error amid a stream: {text[-300:]}"
    if status >= 400:
        try:
            error = json.loads(text)["error"]
        except (ValueError, KeyError, TypeError):
            return f"status {status} without an error object: {text[:300]!r}"
        if not error.get("message"):
            return f"status {status} without a sentence: {text[:300]!r}"
    return None


def _probe(url: str) -> str:
    reply = httpx.post(f"{url}/v1/completions", json=PROBE, timeout=PATIENCE_S)
    return str(reply.json()["choices"][0]["text"]) if reply.status_code == 200 else reply.text


def _at_rest(url: str, answers: Answers) -> None:
    """Wait until no request runs and no block is held."""
    deadline = time.monotonic() + IDLE_S
    while time.monotonic() < deadline:
        lines = httpx.get(f"{url}/metrics").text.splitlines()
        busy = [line for line in lines if line.startswith(tuple(f"vllm:{name}{{" for name in _IDLE))]
        busy = [line for line in busy if float(line.rsplit(" ", 1)[1]) != 0.0]
        if not busy:
            return
        time.sleep(0.05)
    answers.failures.append(f"not idle after {IDLE_S:.0f} s: {busy}")


def main(
    examples: Annotated[int, typer.Option(help="Requests of each kind for each route with a body.")] = 640,
    first_seed: Annotated[int | None, typer.Option("--seed", help="Which requests they are.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Put the figures into the documentation.")] = False,
) -> None:
    """Send made-up requests and look at what is answered."""
    first_seed = secrets.randbits(32) if first_seed is None else first_seed
    print(f"seed {first_seed}", flush=True)
    with small_server() as url:
        began = time.monotonic()
        answers = fuzz(
            url, examples=examples, first_seed=first_seed, told=lambda line: print(line, flush=True)
        )
        seconds = time.monotonic() - began
    statuses: Counter[int] = Counter()
    for (_, _, status), count in answers.counts.items():
        statuses[status] += count
    by_status = ", ".join(f"{count:,} with {status}" for status, count in sorted(statuses.items()))
    summary = f"{answers.total:,} requests in {seconds / 60:.1f} minutes: {by_status}"
    print(f"\n{answers.table()}\n\n{summary}", flush=True)
    if answers.failures:
        print("\n" + "\n\n".join(answers.failures))
        raise typer.Exit(1)
    if write:
        date = datetime.now(UTC)
        text = f"{answers.table()}\n\n{summary}; seed {first_seed}. {describe_machine()}; {date:%Y-%m-%d}."
        publish("api-fuzz", {ROOT / "docs" / "http-api.md": text})
        fields = {
            "date": date.isoformat(timespec="seconds"),
            "machine": asdict(describe_machine()),
            "goal": {"requests": GOAL, "reached": answers.total >= GOAL},
            "seconds": round(seconds, 1),
            "seed": first_seed,
            "answers": {
                f"{route}, {kind}, {status}": n for (route, kind, status), n in answers.counts.items()
            },
        }
        (ROOT / "bench" / "results" / "api_fuzz.json").write_text(json.dumps(fields, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
