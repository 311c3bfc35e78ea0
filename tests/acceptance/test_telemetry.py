"""A worker emits what docs/reference/telemetry.md lists, in every format, no more and no less."""

import gzip
import json
import re
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span
from prometheus_client.parser import text_string_to_metric_families

from sea_mq_worker.telemetry.events import EVENTS, METRICS
from sea_mq_worker.telemetry.otlp import otlp_name
from sea_mq_worker.telemetry.tracing import RESOURCE, SPANS
from tests.support.handlers import HandlerServer, answer, handler_server, hang, in_turn
from tests.support.jetstream import store
from tests.support.rows import add_event
from tests.support.site import Site
from tests.support.waiting import eventually
from tests.support.worker import WorkerProcess

OF_EVERY_LINE = {"ts", "level", "event", "logger"}
TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"
UUID = "550e8400-e29b-41d4-a716-44665544000{}"


async def work(here: Site, worker: WorkerProcess) -> None:
    """Let events be published and buried, and messages be processed, retried and dead-lettered."""
    await here.commit(2, metadata={"traceparent": TRACEPARENT})
    await add_event(here.database, event_type="no subject")
    here.effects.script[UUID.format(2)] = answer(422)
    here.effects.script[UUID.format(3)] = in_turn(answer(500), answer(200))
    for number in (1, 2, 3):
        headers = {"Nats-Msg-Id": UUID.format(number), "traceparent": TRACEPARENT}
        await store(here.broker, here.subject, b"{}", headers=headers)
    await here.quiet()
    for event in ("event_published", "event_died", "message_retried", "message_dead_lettered"):
        await worker.tells(event)
    await eventually(worker.events, until=lambda found: found.count("message_processed") == 2)


@pytest.mark.clause("EVT-047-001")
async def test_a_worker_exports_what_is_documented(shared: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async with handler_server() as collector:
        export_often(monkeypatch, collector)
        async with shared.worker(log_level="debug", tracing=True, otlp_metrics=True) as worker:
            await worker.ready()
            await work(shared, worker)
            scraped = scraped_names(await worker.exposition())
            await eventually(lambda: all_told(collector), what="spans and metrics are exported")
            await worker.stopped()
        check_lines(worker.written)
        assert scraped.keys() == {metric.name for metric in METRICS}
        with_series = {otlp_name(name) for name, series in scraped.items() if series}
        assert with_series <= exported_names(collector) <= {*map(otlp_name, scraped)}
        check_spans(collector)


@pytest.mark.fault("L15")
async def test_a_collector_that_never_responds_blocks_no_work(
    shared: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with handler_server(hang) as collector:
        export_often(monkeypatch, collector)
        async with shared.worker(tracing=True, otlp_metrics=True) as worker:
            await worker.ready()
            await collector.called(1, within=30.0)
            await shared.both_ways()
            await shared.quiet()
            await worker.stopped()


def export_often(monkeypatch: pytest.MonkeyPatch, collector: HandlerServer) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.port}")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "500")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "500")


def all_told(collector: HandlerServer) -> bool:
    """Tell whether what was asked for has been exported: four handlings and two events, with their waits."""
    spans = [span for found in resources(collector) for span in found.scope_spans[0].spans]
    return len(spans) >= 4 * 3 + 2 * 2 and "messaging.process.duration" in exported_names(collector)


def scraped_names(text: str) -> dict[str, int]:
    """Return the worker's metrics with how many series each has."""
    families = [f for f in text_string_to_metric_families(text) if not f.name.startswith("process_")]
    return {f"{f.name}_total" if f.type == "counter" else f.name: len(f.samples) for f in families}


def check_lines(written: str) -> None:
    """Each line is of the vocabulary, with its level and its fields."""
    for line in map(json.loads, written.splitlines()):
        event = EVENTS[line["event"]]
        assert line["level"] == event.level, line
        assert line.keys() - {"suppressed"} == OF_EVERY_LINE | set(event.fields), line


def bodies(collector: HandlerServer, path: str) -> list[bytes]:
    calls = [call for call in collector.calls if call.path == path]
    return [
        gzip.decompress(call.body) if call.headers.get("content-encoding") == "gzip" else call.body
        for call in calls
    ]


def exported_names(collector: HandlerServer) -> set[str]:
    exports = [ExportMetricsServiceRequest.FromString(body) for body in bodies(collector, "/v1/metrics")]
    return {
        metric.name
        for export in exports
        for resource in export.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def resources(collector: HandlerServer) -> list[ResourceSpans]:
    exports = [ExportTraceServiceRequest.FromString(body) for body in bodies(collector, "/v1/traces")]
    return [resource for export in exports for resource in export.resource_spans]


def check_spans(collector: HandlerServer) -> None:
    """Each span is of the vocabulary, with its kind, attributes, parent and link; and none is missing."""
    assert all(
        RESOURCE.keys() <= {item.key for item in found.resource.attributes} for found in resources(collector)
    )
    spans = [span for found in resources(collector) for span in found.scope_spans[0].spans]
    by_id = {span.span_id: span for span in spans}
    known = {kind.name: kind for kind in SPANS}
    assert {general(span.name) for span in spans} == known.keys()
    for span in spans:
        kind = known[general(span.name)]
        attributes = {item.key for item in span.attributes}
        parent = by_id.get(span.parent_span_id)
        always, sometimes = set(kind.attributes.split()), set(kind.sometimes.split())
        assert always <= attributes <= always | sometimes, span
        assert Span.SpanKind.Name(span.kind) == f"SPAN_KIND_{kind.kind}"
        assert (general(parent.name) if parent else "") == kind.parent
        assert [link.trace_id.hex() for link in span.links] == ([TRACE] if kind.linked else [])
    outcomes = {value(span, "sea_mq.outcome") for span in spans if span.name == "POST"}
    assert outcomes == {"Accepted", "Poison", "Retry"}


def general(name: str) -> str:
    return re.sub(r"^(publish|process) .*", r"\1 {subject}", name)


def value(span: Span, key: str) -> Any:
    return next(item.value.string_value for item in span.attributes if item.key == key)
