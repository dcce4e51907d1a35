"""The ``litellm`` client, unmodified, against a real server with SmolLM2."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Server


def test_text_and_cached_tokens_come_through(smollm2_server: Server) -> None:
    program = Path(__file__).with_name("litellm_client.py")
    command = [sys.executable, "-W", "ignore", str(program), smollm2_server.url, "smollm2-135m"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    cold, warm, streamed = json.loads(done.stdout.splitlines()[-1])
    assert cold["text"]
    assert cold["text"] == warm["text"] == streamed["text"]
    prompt, cached, completion = cold["usage"]
    assert cached == 0
    assert warm["usage"] == streamed["usage"] == [prompt, prompt - 1, completion]
