"""The page of the routes in a browser that reaches nothing but the server; skipped where there is none."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Server

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.skipif(BROWSER is None, reason="there is no chromium here")
def test_it_shows_every_route(tiny_server: Server, tmp_path: Path) -> None:
    assert BROWSER is not None
    command = [
        *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        *(f"--user-data-dir={tmp_path}", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
        *(
            "--virtual-time-budget=5000",
            "--dump-dom",
            f"{tiny_server.url}/docs#completions_v1_completions_post",
        ),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    for path, methods in tiny_server.http.get("/openapi.json").json()["paths"].items():
        assert f'<span class="path">{path}</span>' in done.stdout
        for operation in methods.values():
            assert operation["summary"] in done.stdout
    for opened in ("truncate_prompt_tokens", "CompletionReply", "Send</button>"):
        assert opened in done.stdout
