"""The export over OTLP: the metrics' points, and the resource that they describe."""

import sys
from typing import Any

import pytest

from sea_mq_worker.errors import WorkerError
from sea_mq_worker.telemetry.metrics import Metrics
from sea_mq_worker.telemetry.otlp import MetricsExport, described, export_spans, metrics_data

RESOURCE = described(context="sea", worker="worker-1")


def exported(metrics: Metrics) -> dict[str, Any]:
    [found] = metrics_data(metrics, resource=RESOURCE, since_ns=7).resource_metrics
    return {metric.name: metric for metric in found.scope_metrics[0].metrics}


def test_metrics_have_their_names_labels_and_points() -> None:
    metrics = Metrics()
    metrics.emit("event_published", count=2, latencies=(0.02, 7200.0), duplicates=1, each=tuple)
    metrics.emit("circuit_opened", circuit="nats", reason="refused", retry_seconds=1.0)
    found = exported(metrics)
    counter = found["sea_mq_outbox_duplicates"]
    (duplicates,) = counter.data.data_points
    assert (duplicates.value, duplicates.start_time_unix_nano) == (1, 7)
    assert (counter.data.is_monotonic, counter.unit) == (True, "{event}")
    (paused,) = found["sea_mq_circuit_open"].data.data_points
    assert (paused.value, paused.attributes) == (1, {"circuit": "nats"})
    (latency,) = found["sea_mq_outbox_latency_seconds"].data.data_points
    assert (latency.count, latency.sum) == (2, 7200.02)
    assert latency.bucket_counts[-1] == 1
    assert len(latency.bucket_counts) == len(latency.explicit_bounds) + 1


def test_metrics_of_messaging_have_the_names_of_the_semantic_conventions() -> None:
    metrics = Metrics()
    metrics.emit("event_published", count=2, latencies=(0.02, 7200.0), duplicates=1, each=tuple)
    metrics.emit(
        "message_processed", consumer="sea__from_up", status=200, count=1, durations=[0.5], each=tuple
    )
    found = exported(metrics)
    system, group = {"messaging.system": "nats"}, {"messaging.consumer.group.name": "sea__from_up"}
    process = {**system, **group, "messaging.operation.name": "process"}
    (sent,) = found["messaging.client.sent.messages"].data.data_points
    (consumed,) = found["messaging.client.consumed.messages"].data.data_points
    (duration,) = found["messaging.process.duration"].data.data_points
    assert (sent.value, sent.attributes) == (2, {**system, "messaging.operation.name": "publish"})
    assert (consumed.value, consumed.attributes) == (1, {**process, "http.response.status_code": "200"})
    assert (duration.sum, duration.attributes) == (0.5, process)
    assert found["messaging.client.sent.messages"].unit == "{message}"
    assert [name for name in found if name.endswith("_total")] == []


@pytest.mark.parametrize("module", ["trace_exporter", "metric_exporter"])
def test_without_the_exporter_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, f"opentelemetry.exporter.otlp.proto.http.{module}", None)
    with pytest.raises(WorkerError, match=r"pip install '\.\[otel\]'"):
        export_spans(RESOURCE) if module == "trace_exporter" else MetricsExport(Metrics(), RESOURCE)


@pytest.mark.parametrize("interval", ["0", "1s", "-1", ""])
def test_an_interval_that_is_no_number_of_milliseconds_is_named(
    monkeypatch: pytest.MonkeyPatch, interval: str
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", interval)
    with pytest.raises(ValueError, match="OTEL_METRIC_EXPORT_INTERVAL: expected milliseconds"):
        MetricsExport(Metrics(), RESOURCE)


def test_the_service_attributes_of_the_environment_take_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "orders-relay")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=a,deployment.environment.name=prod")
    reported = described(context="sea", worker="worker-1").attributes
    assert reported["service.name"] == "orders-relay"
    assert reported["service.instance.id"] == "a"
    assert reported["deployment.environment.name"] == "prod"
