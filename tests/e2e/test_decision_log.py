"""The decision log of a real server, whose engine is killed while it computes."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
from pathlib import Path

from tests.e2e.conftest import Server, StartServer, wait_until

SALT = "a tenant's secret"


def complete(server: Server, prompt: str, max_tokens: int) -> None:
    body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "cache_salt": SALT}
    server.http.post("/v1/completions", json=body).raise_for_status()


def verify(path: Path) -> str:
    """What ``headstart verify-log`` says of a log that it agrees with."""
    command = [sys.executable, "-m", "headstart", "verify-log", "--check", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_the_log_of_an_engine_that_was_killed_and_that_of_the_next_one(
    start_server: StartServer, long_tiny_dir: Path, tmp_path: Path
) -> None:
    log, second = tmp_path / "run.log.gz", tmp_path / "run.log.gz.1"
    options = ("--dtype", "float32", "--num-blocks", "1200", "--decision-log", str(log))
    with start_server(str(long_tiny_dir), *options) as server:
        assert f"The token ids of all prompts and answers go to {log}\n" in server.banner
        complete(server, "one and the same beginning " * 8, 4)
        complete(server, "one and the same beginning " * 8, 4)
        size = log.stat().st_size
        body = {"prompt": "long", "max_tokens": 15_000, "stream": True, "ignore_eos": True}
        with server.http.stream("POST", "/v1/completions", json=body):
            wait_until(lambda: log.stat().st_size > size + 1000)  # it decodes
            server.engine.kill()
        wait_until(second.exists)
        left = log.read_bytes()
        wait_until(lambda: server.http.get("/health").status_code == 200)
        complete(server, "after the fall", 4)
        assert server.stop(signal.SIGTERM) == 0
    assert log.read_bytes() == left
    told, after = verify(log), verify(second)
    assert "none: the engine was killed" in told
    assert "3 (3 admitted)" in told
    assert "in order" in after
    assert "1 (1 admitted)" in after
    assert [stat.S_IMODE(path.stat().st_mode) for path in (log, second)] == [0o600, 0o600]
