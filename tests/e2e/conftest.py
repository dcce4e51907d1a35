"""Real servers: ``python -m headstart serve`` in a process of its own, spoken to over a real socket."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headstart.model.source import ModelFiles

PATIENCE = 60.0  # seconds that a condition may take on a busy machine before it counts as never


@dataclass(frozen=True)
class Server:
    """A server that accepts requests; ``banner`` is what it printed, ``stderr`` a file of complaints."""

    url: str
    process: subprocess.Popen[str]
    banner: str
    stderr: Path
    http: httpx.Client

    @property
    def engine(self) -> psutil.Process:
        """The engine's process: the child that has the model."""
        (child,) = [
            child
            for child in psutil.Process(self.process.pid).children(recursive=True)
            if "libtorch" in maps_of(child.pid)
        ]
        return child

    def metric(self, name: str, **labels: str) -> float:
        """One sample's value now."""
        for family in text_string_to_metric_families(self.http.get("/metrics").text):
            for sample in family.samples:
                if sample.name == f"vllm:{name}" and labels.items() <= sample.labels.items():
                    return sample.value
        raise AssertionError(f"no metric {name} {labels}")

    def until_idle(self) -> None:
        """Wait until no request runs or waits and no block is in use."""
        wait_until(
            lambda: (
                not any(
                    self.metric(name)
                    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
                )
            )
        )

    def until_busy(self) -> None:
        """Wait until a request runs and holds blocks."""
        wait_until(lambda: self.metric("num_requests_running") and self.metric("kv_cache_usage_perc"))

    def stop(self, sig: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; the exit code."""
        self.process.send_signal(sig)
        return self.process.wait(PATIENCE)


def maps_of(pid: int) -> str:
    """The files mapped into a process."""
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def wait_until(condition: Callable[[], Any]) -> None:
    """Ask until it holds; fail when patience ends."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


StartServer = Callable[..., AbstractContextManager[Server]]


@pytest.fixture(scope="session")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> StartServer:
    """Start a server with these arguments; it has ended when the context is left."""

    @contextmanager
    def start(*arguments: str) -> Iterator[Server]:
        errors = tmp_path_factory.mktemp("server") / "stderr.txt"
        command = [sys.executable, "-m", "headstart", "serve", *arguments, "--port", "0"]
        # One thread: with more, every small operation waits for whoever else has the cores.
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with (
            errors.open("w") as file,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=file, text=True, env=environment
            ) as process,
        ):
            try:
                banner = _read_banner(process, errors)
                url = re.search(r"http://127\.0\.0\.1:\d+", banner)
                assert url is not None
                with httpx.Client(base_url=url[0], timeout=PATIENCE) as http:
                    yield Server(url[0], process, banner, errors, http)
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
                    try:
                        process.wait(PATIENCE)
                    finally:
                        process.kill()

    return start


def _read_banner(process: subprocess.Popen[str], errors: Path) -> str:
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("curl "):
            return "".join(lines)
    raise AssertionError(f"the server ended with {process.wait()}: {errors.read_text()}")


@pytest.fixture(scope="session")
def long_tiny_dir(tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a context long enough that a request takes seconds."""
    directory = tmp_path_factory.mktemp("long") / "tiny"
    shutil.copytree(tiny_llama_dir, directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 20_000}))
    return directory


@pytest.fixture(scope="session")
def tiny_server(start_server: StartServer, long_tiny_dir: Path) -> Iterator[Server]:
    """A tiny random model in float32, with a pool smaller than its context."""
    options = ("--dtype", "float32", "--num-blocks", "1000", "--max-num-batched-tokens", "256")
    with start_server(str(long_tiny_dir), "--served-model-name", "tiny", *options) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.stderr.read_text()


@pytest.fixture(scope="session")
def smollm2_server(start_server: StartServer, smollm2: ModelFiles) -> Iterator[Server]:
    """SmolLM2 in float32, where cached and computed answers are equal to the letter."""
    with start_server(smollm2.name, "--dtype", "float32", "--kv-cache-memory-bytes", "256MiB") as server:
        yield server
        assert server.stop() == 0


@pytest.fixture(scope="session")
def strict_server(start_server: StartServer, tiny_llama_dir: Path) -> Iterator[Server]:
    """The tiny model with room for 1,024 tokens, behind a server that refuses unknown fields."""
    options = ("--served-model-name", "tiny", "--dtype", "float32", "--num-blocks", "64", "--strict")
    with start_server(str(tiny_llama_dir), *options) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.stderr.read_text()
