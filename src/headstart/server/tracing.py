"""Traces and metrics in OpenTelemetry's words for generative AI, sent with OTLP over HTTP.

A span for each request to the model, made when it is over; its parent is the caller's, where a
``traceparent`` header names one.  The conventions are in development; the names are those of November 2026.
The token counts include cached ones: ``gen_ai.usage.cache_read.input_tokens`` says how many.

Needs the packages of ``pip install 'headstart[otlp]'``, which are imported only when somebody asks for them.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from headstart.errors import ConfigError
from headstart.server.visit import VisitRecord

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.trace import TracerProvider

OPERATIONS = {"/v1/completions": "text_completion"}
"""By route; all others that ask the model for something are a chat."""

# The conventions' own boundaries.
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_EACH_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TOKENS = tuple(4**power for power in range(14))


class Tracing:
    """Sends what it observes to ``endpoint`` (``http://host:4318``), in batches and from a thread of its own.

    Raises ``ConfigError`` where the packages are not installed.
    """

    def __init__(self, endpoint: str, model: str) -> None:
        traces, metrics = _urls(endpoint)
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise ConfigError(
                "--otlp-endpoint needs OpenTelemetry's packages: pip install 'headstart[otlp]'"
            ) from error
        resource = Resource.create({"service.name": "headstart", "service.version": version("headstart")})
        self._model = model
        self._spans: TracerProvider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._spans.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=traces)))
        self._tracer = self._spans.get_tracer("headstart", version("headstart"))
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=metrics))
        self._meters: MeterProvider = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        meter = self._meters.get_meter("headstart", version("headstart"))

        def histogram(name: str, unit: str, text: str, bounds: tuple[float, ...]) -> Histogram:
            return meter.create_histogram(name, unit, text, explicit_bucket_boundaries_advisory=bounds)

        self._duration = histogram(
            "gen_ai.server.request.duration",
            "s",
            "From a request's first byte to its answer's last.",
            _SECONDS,
        )
        self._first_token = histogram(
            "gen_ai.server.time_to_first_token",
            "s",
            "From a request's first byte to its first token.",
            _FIRST_TOKEN,
        )
        self._each_token = histogram(
            "gen_ai.server.time_per_output_token", "s", "For each token after the first.", _EACH_TOKEN
        )
        self._usage = histogram(
            "gen_ai.client.token.usage",
            "{token}",
            "Tokens of prompts (cached ones included) and answers.",
            _TOKENS,
        )

    def observe(self, record: VisitRecord) -> None:
        """A request is over.  Those that asked nothing of the model are left out."""
        if record.answer_id is None:
            return
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        told = {
            "gen_ai.operation.name": OPERATIONS.get(record.path, "chat"),
            "gen_ai.provider.name": "headstart",
            "gen_ai.request.model": self._model,
            "gen_ai.response.model": self._model,
        }
        carrier = {} if record.traceparent is None else {"traceparent": record.traceparent}
        started = round(record.began_at * 1e9)
        span = self._tracer.start_span(
            f"{told['gen_ai.operation.name']} {self._model}",
            context=TraceContextTextMapPropagator().extract(carrier),
            kind=SpanKind.SERVER,
            start_time=started,
            attributes=told | _attributes(record),
        )
        if record.first_token_s is not None:
            span.add_event("first token", timestamp=started + round(record.first_token_s * 1e9))
        if record.status >= 400:
            span.set_status(Status(StatusCode.ERROR))
        span.end(started + round(record.seconds * 1e9))
        self._measure(record, told)

    def close(self) -> None:
        """Send what is left; waits a few seconds at most for a collector that does not answer."""
        self._spans.shutdown()
        self._meters.shutdown(timeout_millis=3000)

    def _measure(self, record: VisitRecord, told: dict[str, str]) -> None:
        failed = {"error.type": str(record.status)} if record.status >= 400 else {}
        self._duration.record(record.seconds, told | failed)
        if not record.prompt_tokens:
            return
        self._usage.record(record.prompt_tokens, told | {"gen_ai.token.type": "input"})
        self._usage.record(record.completion_tokens, told | {"gen_ai.token.type": "output"})
        if record.first_token_s is not None:
            self._first_token.record(record.first_token_s, told)
            if record.completion_tokens > 1:
                rest = record.seconds - record.first_token_s
                self._each_token.record(rest / (record.completion_tokens - 1), told)


def _attributes(record: VisitRecord) -> dict[str, Any]:
    assert record.answer_id is not None
    told: dict[str, Any] = {
        "http.request.method": record.method,
        "http.response.status_code": record.status,
        "url.path": record.path,
        "gen_ai.response.id": record.answer_id,
        "headstart.request_id": record.request_id,
    }
    if record.status >= 400:
        told["error.type"] = str(record.status)
    if record.prompt_tokens:
        told["gen_ai.usage.input_tokens"] = record.prompt_tokens
        told["gen_ai.usage.output_tokens"] = record.completion_tokens
        told["gen_ai.usage.cache_read.input_tokens"] = record.cached_tokens
        told["gen_ai.response.finish_reasons"] = list(record.finish_reasons)
    for report in record.reports:
        for reason, count in report.tokens.items():
            name = f"headstart.cache.miss.{reason}"
            told[name] = told.get(name, 0) + count
    if record.first_token_s is not None:
        told["gen_ai.response.time_to_first_chunk"] = record.first_token_s
    return told


def _urls(endpoint: str) -> tuple[str, str]:
    """Where traces and metrics go: below the endpoint, by OTLP's paths."""
    base = endpoint.rstrip("/").removesuffix("/v1/traces")
    return f"{base}/v1/traces", f"{base}/v1/metrics"
