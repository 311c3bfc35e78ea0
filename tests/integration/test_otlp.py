"""Spans and metrics reach a collector over OTLP/HTTP, which decodes them."""

import asyncio
import gzip
import sys

import pytest
from google.protobuf.message import Message
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.sdk.trace import TracerProvider

from sea_mq_worker.domain.errors import WorkerError
from sea_mq_worker.domain.facts import CircuitOpened, EventsPublished
from sea_mq_worker.telemetry.metrics import MetricsObserver
from sea_mq_worker.telemetry.otlp import described, export_spans, metrics_data, metrics_exporter
from sea_mq_worker.telemetry.tracing import TracedHandler
from sea_mq_worker.testing.handler import InMemoryHandler
from tests.support.handlers import Call, handler_server
from tests.unit.test_metrics import Span
from tests.unit.test_tracing import REQUEST, URL

RESOURCE = described(context="sea", worker="worker-1")


def decoded(call: Call, into: Message) -> None:
    body = gzip.decompress(call.body) if call.headers.get("content-encoding") == "gzip" else call.body
    into.ParseFromString(body)


@pytest.fixture
def providers(monkeypatch: pytest.MonkeyPatch) -> list[TracerProvider]:
    """Keep the process's own provider as it is."""
    made: list[TracerProvider] = []
    monkeypatch.setattr("opentelemetry.trace.set_tracer_provider", made.append)
    return made


async def test_spans_reach_the_collector_when_tracing_ends(
    monkeypatch: pytest.MonkeyPatch, providers: list[TracerProvider]
) -> None:
    async with handler_server() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.port}")
        shutdown = export_spans(RESOURCE)
        handler = TracedHandler(InMemoryHandler(), URL, tracer=providers[0].get_tracer("test"))
        await handler.handle(REQUEST)
        await asyncio.to_thread(shutdown)
    (call,) = collector.calls
    export = ExportTraceServiceRequest()
    decoded(call, export)
    (spans,) = export.resource_spans
    reported = {item.key: item.value.string_value for item in spans.resource.attributes}
    assert call.path == "/v1/traces"
    assert reported["service.name"] == "sea_mq_worker sea"
    assert reported["service.instance.id"] == "worker-1"
    assert [span.name for span in spans.scope_spans[0].spans] == ["POST", "process sea.event.t.v1"]


async def exported(monkeypatch: pytest.MonkeyPatch, metrics: MetricsObserver) -> dict[str, Metric]:
    async with handler_server() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.port}")
        data = metrics_data(metrics.measure(), resource=RESOURCE, since_ns=7)
        await asyncio.to_thread(metrics_exporter(), data)
    (call,) = collector.calls
    assert call.path == "/v1/metrics"
    export = ExportMetricsServiceRequest()
    decoded(call, export)
    return {metric.name: metric for metric in export.resource_metrics[0].scope_metrics[0].metrics}


async def test_metrics_reach_the_collector_with_their_names_and_labels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metrics = MetricsObserver()
    metrics.spans.note("i", Span(trace_id=0xABC, span_id=0xDEF))
    metrics.observe(EventsPublished(latencies=(0.02, 7200.0), duplicates=1, each=tuple))
    metrics.observe(CircuitOpened(circuit="nats", reason="refused", retry_seconds=1.0))
    found = await exported(monkeypatch, metrics)
    (published,) = found["sea_mq_outbox_published_total"].sum.data_points
    assert (published.as_int, published.start_time_unix_nano) == (2, 7)
    assert found["sea_mq_outbox_published_total"].sum.is_monotonic
    assert found["sea_mq_outbox_published_total"].unit == "{event}"
    (paused,) = found["sea_mq_circuit_open"].gauge.data_points
    assert (paused.as_int, paused.attributes[0].key, paused.attributes[0].value.string_value) == (
        1,
        "circuit",
        "nats",
    )
    (latency,) = found["sea_mq_outbox_latency_seconds"].histogram.data_points
    assert (latency.count, latency.sum) == (2, 7200.02)
    assert latency.bucket_counts[-1] == 1
    assert len(latency.bucket_counts) == len(latency.explicit_bounds) + 1
    assert not latency.HasField("min")


@pytest.mark.parametrize("module", ["trace_exporter", "metric_exporter"])
def test_without_the_exporter_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, f"opentelemetry.exporter.otlp.proto.http.{module}", None)
    with pytest.raises(WorkerError, match=r"pip install '\.\[otel\]'"):
        export_spans(RESOURCE) if module == "trace_exporter" else metrics_exporter()


def test_the_service_attributes_of_the_environment_take_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "orders-relay")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=a,deployment.environment.name=prod")
    reported = described(context="sea", worker="worker-1").attributes
    assert reported["service.name"] == "orders-relay"
    assert reported["service.instance.id"] == "a"
    assert reported["deployment.environment.name"] == "prod"
