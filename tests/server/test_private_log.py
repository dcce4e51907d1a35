"""What is logged of failures: where and what kind, never what clients sent."""

from __future__ import annotations

import asyncio
import gc
import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from headstart.server.private_log import FORMAT, PrivateFormatter, log_privately


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """All that a server would write to its log."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PrivateFormatter(FORMAT))
    root = logging.getLogger()
    root.addHandler(handler)
    yield stream
    root.removeHandler(handler)


def fail() -> None:
    try:
        raise KeyError("canary 1")
    except KeyError as error:
        try:
            raise ValueError("canary 2") from error
        except ValueError:
            raise ExceptionGroup("canary 3", [TypeError("canary 4")])  # noqa: B904 - its context is told


def test_places_and_kinds_without_texts(log: io.StringIO) -> None:
    try:
        fail()
    except ExceptionGroup:
        logging.getLogger("here").exception("it failed")
    text = log.getvalue()
    lines = text.splitlines()
    assert lines[0] == "ERROR here: it failed"
    kinds = [line.split(" (its text")[0] for line in lines if "its text is left out" in line]
    assert kinds == ["KeyError", "ValueError", "ExceptionGroup", "TypeError"]
    assert "test_private_log.py" in text
    assert "in fail" in text
    outside_of_source = [line for line in lines if not line.startswith("    ")]
    assert "canary" not in "\n".join(outside_of_source)


def test_a_circle_of_exceptions_ends(log: io.StringIO) -> None:
    one, other = ValueError("canary"), KeyError("canary")
    one.__cause__, other.__cause__ = other, one
    logging.getLogger("here").error("it failed", exc_info=one)
    assert log.getvalue().count("its text is left out") == 2


def test_a_stream_that_fails_is_told_without_its_text(
    client: TestClient, engine: Any, log: io.StringIO
) -> None:
    engine.fail_after, engine.failure = 0, ValueError("canary")
    with client.stream("POST", "/v1/completions", json={"prompt": "hi", "stream": True}) as response:
        told = response.read().decode()
    assert "the server failed on this request" in told
    assert "ERROR headstart.server.streaming: a stream failed" in log.getvalue()
    assert "ValueError" in log.getvalue()
    assert "canary" not in log.getvalue() + told


def test_what_nobody_awaits_is_told_without_its_text(log: io.StringIO) -> None:
    async def lost(secret: str) -> None:
        raise ValueError(secret)

    async def scene() -> None:
        log_privately(asyncio.get_running_loop())
        task = asyncio.ensure_future(lost("canary"))
        await asyncio.wait([task])
        del task
        gc.collect()

    asyncio.run(scene())
    assert "Task exception was never retrieved" in log.getvalue()
    assert "ValueError" in log.getvalue()
    assert "canary" not in log.getvalue()


def test_a_callback_that_fails_is_told_without_its_arguments(log: io.StringIO) -> None:
    async def scene() -> None:
        log_privately(asyncio.get_running_loop())
        asyncio.get_running_loop().call_soon(fail_with, "canary")
        await asyncio.sleep(0)

    asyncio.run(scene())
    assert "Exception in callback fail_with" in log.getvalue()
    assert "ValueError" in log.getvalue()
    assert "canary" not in log.getvalue()


def fail_with(secret: str) -> None:
    raise ValueError(secret)
