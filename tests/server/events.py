"""Server-sent events of a stream that names them."""

from __future__ import annotations

import json
from typing import Any

from starlette.testclient import TestClient


def stream(client: TestClient, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events' data, after a look at their form: each has its type for a name, and no other line."""
    response = client.post(path, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *blocks, rest = response.text.split("\n\n")
    assert rest == ""
    events = []
    for block in blocks:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events
