"""Recorded metrics pages, changed as traffic would change them, and a real server that shows them in turn."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

DATA = Path(__file__).parent / "data" / "metrics"


def page(name: str, **values: float) -> str:
    """A recorded page.  ``values`` add to every series whose name, with labels, contains the key.

    In a key ``__`` stands for a colon, and what follows a second one must be in the labels.
    """
    lines = (DATA / f"{name}.txt").read_text().splitlines()
    for key, change in values.items():
        metric, _, labels = key.partition("__")[2].partition("__")
        prefix = key.partition("__")[0]
        number = 0
        for at, line in enumerate(lines):
            series, _, value = line.rpartition(" ")
            if series.startswith(f"{prefix}:{metric}{{") and labels in series:
                lines[at] = f"{series} {float(value) + change}"
                number += 1
        assert number, f"no series of {key}"
    return "\n".join(lines) + "\n"


@dataclass
class Site:
    """What a server answers: its pages one after the other, the last one again and again."""

    pages: Sequence[str]
    status: int = 200
    content_type: str = "text/plain; version=0.0.4; charset=utf-8"
    url: str = ""
    asked: list[tuple[str, str | None]] = field(default_factory=list)


@contextmanager
def serve(*pages: str, status: int = 200, content_type: str | None = None) -> Iterator[Site]:
    """A server on this machine, for as long as the block lasts."""
    site = Site(pages, status)
    if content_type is not None:
        site.content_type = content_type

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = site.pages[min(len(site.asked), len(site.pages) - 1)].encode()
            site.asked.append((self.path, self.headers.get("Authorization")))
            self.send_response(site.status)
            self.send_header("Content-Type", site.content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield site
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
