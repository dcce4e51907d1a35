"""What a collector receives: a real HTTP server that decodes OTLP's messages."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from starlette.testclient import TestClient

from headstart.cache import MissReason, MissReport
from headstart.config import ServerConfig
from headstart.errors import ConfigError

SECRET = "canary"


@dataclass
class Collector:
    url: str
    spans: list[Any] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    bodies: list[bytes] = field(default_factory=list)

    def take(self, path: str, body: bytes) -> None:
        self.bodies.append(body)
        if path == "/v1/traces":
            traces = ExportTraceServiceRequest.FromString(body)
            self.spans += [s for r in traces.resource_spans for scope in r.scope_spans for s in scope.spans]
        else:
            assert path == "/v1/metrics"
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for scope in resource.scope_metrics:
                    self.metrics |= {metric.name: metric for metric in scope.metrics}


@pytest.fixture
def collector() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            heard.take(self.path, body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        heard = Collector(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield heard
        server.shutdown()
        thread.join()


def attributes(span: Any) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        kind = value.WhichOneof("value")
        if kind == "array_value":
            return [plain(one) for one in value.array_value.values]
        return getattr(value, kind)

    return {one.key: plain(one.value) for one in span.attributes}


def test_a_request_is_a_span_with_its_tokens(
    make_client: Callable[..., TestClient], engine: Any, collector: Collector
) -> None:
    client = make_client(ServerConfig(otlp_endpoint=collector.url))
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    body = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 4, "cache_salt": SECRET}
    reply = client.post(
        "/v1/chat/completions", json=body, headers={"traceparent": f"00-{trace}-{parent}-01"}
    ).json()
    prompt = reply["usage"]["prompt_tokens"]
    name = f"{reply['id']}-0"
    engine.explain(MissReport(name, prompt, 0, {MissReason.COLD: prompt - 1, MissReason.LAST_TOKEN: 1}))
    client.__exit__()  # the server stops, and sends what is left
    (span,) = collector.spans
    assert span.name == "chat fake/model"
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (trace, parent)
    told = attributes(span)
    assert told.pop("gen_ai.response.time_to_first_chunk") > 0
    assert told.pop("headstart.request_id") in reply["id"]
    assert told == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "headstart",
        "gen_ai.request.model": "fake/model",
        "gen_ai.response.model": "fake/model",
        "gen_ai.response.id": reply["id"],
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.input_tokens": prompt,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.output_tokens": 4,
        "headstart.cache.miss.cold": prompt - 1,
        "headstart.cache.miss.last_token": 1,
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "url.path": "/v1/chat/completions",
    }
    (event,) = span.events
    assert event.name == "first token"
    assert span.start_time_unix_nano < event.time_unix_nano < span.end_time_unix_nano
    assert set(collector.metrics) == {
        "gen_ai.server.request.duration",
        "gen_ai.server.time_to_first_token",
        "gen_ai.server.time_per_output_token",
        "gen_ai.client.token.usage",
    }
    usage = collector.metrics["gen_ai.client.token.usage"].histogram.data_points
    assert {attributes(point)["gen_ai.token.type"]: point.sum for point in usage} == {
        "input": prompt,
        "output": 4,
    }
    assert not any(SECRET.encode() in body for body in collector.bodies)


def test_a_hit_and_a_failure(
    make_client: Callable[..., TestClient], engine: Any, collector: Collector
) -> None:
    client = make_client(ServerConfig(otlp_endpoint=f"{collector.url}/v1/traces"))
    for _ in range(2):
        client.post("/v1/completions", json={"prompt": "ab", "max_tokens": 1})
    engine.failure, engine.fail_after = "it broke", 0
    client.post("/v1/completions", json={"prompt": "ab"})
    client.post("/v1/completions", json={"prompt": 7})  # asks nothing of the model
    client.__exit__()
    # Whoever is not explained (no report came here) is told last.
    failed, cold, warm = map(attributes, collector.spans)
    assert cold["gen_ai.operation.name"] == "text_completion"
    assert [one["gen_ai.usage.cache_read.input_tokens"] for one in (cold, warm)] == [0, 1]
    assert (failed["error.type"], failed["http.response.status_code"]) == ("500", 500)
    assert [span.status.code for span in collector.spans] == [2, 0, 0]


def test_an_endpoint_must_be_a_url() -> None:
    with pytest.raises(ConfigError, match="must be a URL like"):
        ServerConfig(otlp_endpoint="localhost:4318")
