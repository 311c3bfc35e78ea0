"""Events become numbers, for Prometheus and over OTLP: a bounded vocabulary, cheap to keep and to read."""

import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sea_mq_worker.errors import WorkerError
from sea_mq_worker.telemetry import metrics as module
from sea_mq_worker.telemetry.events import EVENTS, NOTICES
from sea_mq_worker.telemetry.metrics import Metrics
from sea_mq_worker.telemetry.otlp import MetricsExport, described, export_spans, metrics_data
from tests.support.simulation import Clock

LETTER = {"message_id": "i", "original_subject": "s", "attempts": 1, "consumer": "c"}
RESOURCE = described(context="sea", worker="worker-1")


def published(count: int = 1, *latencies: float, duplicates: int = 0) -> dict[str, Any]:
    return {"count": count, "latencies": latencies, "duplicates": duplicates, "each": tuple}


PROCESSED = {"consumer": "c", "status": 409, "count": 1, "durations": [0.3], "each": tuple}
RETRIED = {"message_id": "i", "consumer": "c", "error": "e", "delay_seconds": 1.0}
REFUSED = {"reason": "refused", "retry_seconds": 1.0}

EMITTED: tuple[tuple[str, dict[str, Any], dict[str, float]], ...] = (
    (
        "event_published",
        published(2, 0.02, 700.0, duplicates=1),
        {
            "outbox_published_total": 2,
            "outbox_duplicates_total": 1,
            "outbox_latency_seconds_count": 2,
            "outbox_latency_seconds_bucket{le=0.025}": 1,
            "outbox_latency_seconds_bucket{le=3600.0}": 2,
        },
    ),
    ("event_postponed", {"outbox_id": "i"}, {"outbox_postponed_total": 1}),
    ("event_died", {"outbox_id": "i"}, {"outbox_died_total": 1}),
    (
        "batch_relayed",
        {"claimed": 9, "published": 2, "released": 7, "seconds": 0.1},
        {"outbox_released_total": 7, "outbox_batch_seconds_sum": 0.1},
    ),
    ("leases_lost", {"side": "inbox", "count": 3}, {"leases_lost_total{side=inbox}": 3}),
    ("leases_reaped", {"count": 4}, {"outbox_leases_reaped_total": 4}),
    ("worker_taken_over", {"side": "outbox", "count": 5}, {"leases_taken_over_total{side=outbox}": 5}),
    (
        "message_processed",
        PROCESSED,
        {
            "inbox_processed_total{consumer=c,status=409}": 1,
            "inbox_message_seconds_sum{consumer=c}": 0.3,
            "inbox_message_seconds_bucket{consumer=c,le=0.25}": 0,
            "inbox_message_seconds_bucket{consumer=c,le=0.5}": 1,
        },
    ),
    (
        "message_skipped",
        {"consumer": "c", "brought_by": ""},
        {"inbox_skipped_total{consumer=c}": 1, "inbox_overlapping_total{consumer=c}": 0},
    ),
    (
        "message_skipped",
        {"consumer": "d", "brought_by": "c"},
        {"inbox_skipped_total{consumer=d}": 1, "inbox_overlapping_total{consumer=d}": 1},
    ),
    ("server_message_skipped", {"consumer": "c"}, {"inbox_server_messages_total{consumer=c}": 1}),
    ("messages_missed", {"consumer": "c", "count": 6}, {"inbox_missed_total{consumer=c}": 6}),
    ("message_retried", RETRIED, {"inbox_retried_total{consumer=c}": 1}),
    ("message_given_back", RETRIED, {"inbox_given_back_total{consumer=c}": 1}),
    ("type_slowed", {"event_type": "t"}, {}),
    ("type_slowed", {"event_type": "u"}, {}),
    ("type_resumed", {"event_type": "t"}, {"inbox_slow_types": 1}),
    (
        "message_dead_lettered",
        LETTER | {"reason": "REJECTED"},
        {"inbox_dead_lettered_total{consumer=c,reason=REJECTED}": 1},
    ),
    ("circuit_opened", {"circuit": "handler", **REFUSED}, {}),
    ("circuit_closed", {"circuit": "handler"}, {"circuit_open{circuit=handler}": 0}),
    ("circuit_opened", {"circuit": "nats", **REFUSED}, {"circuit_open{circuit=nats}": 1}),
    ("circuit_opened", {"circuit": "nats", **REFUSED}, {"circuit_opened_total{circuit=nats}": 1}),
    ("nats_stream", {"text": "t"}, {"notices_total{event=nats_stream}": 1}),
    ("worker_started", {"name": "w", "version": "1.0"}, {"worker_info{name=w,version=1.0}": 1}),
    ("worker_stopped", {"name": "w"}, {}),
    ("nats_connected", {"text": "t"}, {}),
)
"""Events with the fields that metrics read, and what each makes of some metrics."""


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(clock: Clock) -> Metrics:
    return Metrics(clock=clock)


def samples(metrics: Metrics) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


@pytest.mark.clause("EVT-047-001")
def test_every_event_is_counted(metrics: Metrics) -> None:
    with_metrics = {event.key for event in EVENTS.values() if event.metrics and event.key not in NOTICES}
    assert with_metrics <= {key for key, *_ in EMITTED}
    expected: dict[str, float] = {}
    for key, fields, counted in EMITTED:
        metrics.emit(key, **fields)
        expected |= {f"sea_mq_{name}": value for name, value in counted.items()}
    found = samples(metrics)
    assert {name: found.get(name) for name in expected} == expected


@pytest.mark.fault("S15")
def test_hostile_values_make_no_endless_series(metrics: Metrics) -> None:
    for number in range(1000):
        metrics.emit("message_dead_lettered", **LETTER, reason=f"r{number}")
    found = samples(metrics)
    assert len(found) < 500
    assert found["sea_mq_inbox_dead_lettered_total{consumer=c,reason=other}"] == 1000 - 64


@pytest.mark.clause("QRY-050", "QRY-051")
def test_samples_are_gauges_with_their_age(metrics: Metrics, clock: Clock) -> None:
    metrics.set_depth("outbox", waiting=5, waiting_seconds=60.0, dead=2, scheduled=7)
    metrics.set_depth("inbox", waiting=1, waiting_seconds=3.0, dead=0, scheduled=0)
    metrics.set_consumer("c", pending=7, ack_pending=2, oldest_seconds=40.0)
    metrics.set_consumer("d", pending=0, ack_pending=0, oldest_seconds=0.0)
    clock.now += 30.0
    expected = {
        "outbox_depth": 5,
        "outbox_oldest_seconds": 60.0,
        "outbox_dead": 2,
        "outbox_scheduled": 7,
        "inbox_depth": 1,
        "backlog_sample_age_seconds{side=outbox}": 30.0,
        "backlog_sample_age_seconds{side=inbox}": 30.0,
        "consumer_pending{consumer=c}": 7,
        "consumer_ack_pending{consumer=c}": 2,
        "consumer_oldest_seconds{consumer=c}": 40,
        "consumer_pending{consumer=d}": 0,
    }
    found = samples(metrics)
    assert {name: found[f"sea_mq_{name}"] for name in expected} == expected
    for lost in (True, False):
        clock.now += 1.0
        metrics.set_events_lost(lost)
        assert samples(metrics)["sea_mq_outbox_events_lost"] == lost


def test_what_can_be_named_beforehand_begins_at_zero_and_a_sample_does_not(metrics: Metrics) -> None:
    """A rise from nothing to 1 is none for PromQL's increase(); a depth of 0 looks like an empty queue."""
    found = samples(metrics)
    assert found["sea_mq_leases_lost_total{side=outbox}"] == 0
    assert found["sea_mq_notices_total{event=message_lost}"] == 0
    sampled = {"sea_mq_outbox_depth", "sea_mq_inbox_dead", "sea_mq_outbox_events_lost"}
    assert not sampled & found.keys()


def test_rates_are_of_the_last_ten_whole_seconds(metrics: Metrics, clock: Clock) -> None:
    for second in range(20):
        clock.now = 1000.0 + second
        for _ in range(50):
            metrics.emit("event_published", **published(1, 0.02))
    for later, rate in ((0.0, 50.0), (6.0, 25.0), (3600.0, 0.0)):
        clock.now += later
        assert metrics.rates()["published"] == rate
    assert metrics.totals() == {"published": 1000}


def test_scrapes_within_a_second_are_rendered_once(metrics: Metrics, clock: Clock) -> None:
    first = metrics.render()
    metrics.emit("event_published", **published(1, 0.02))
    assert metrics.render() is first
    clock.now += 1.0
    assert b"sea_mq_outbox_published_total 1.0" in metrics.render()


def test_no_other_module_registers_metrics() -> None:
    """The vocabulary of one module is the whole vocabulary."""
    package = Path(module.__file__).parents[1]
    users = {path.name for path in package.rglob("*.py") if "prometheus_client" in path.read_text()}
    assert users == {"metrics.py", "otlp.py"}, "of the worker, and of the pipeline"


def test_metrics_over_otlp_have_their_points_and_names_of_the_semantic_conventions(metrics: Metrics) -> None:
    metrics.emit("event_published", **published(2, 0.02, 7200.0, duplicates=1))
    metrics.emit("message_processed", **PROCESSED)
    metrics.emit("circuit_opened", circuit="nats", **REFUSED)
    [data] = metrics_data(metrics, resource=RESOURCE, since_ns=7).resource_metrics
    found: dict[str, Any] = {metric.name: metric for metric in data.scope_metrics[0].metrics}
    nats = {"messaging.system": "nats"}
    process = nats | {"messaging.consumer.group.name": "c", "messaging.operation.name": "process"}
    values = {
        "sea_mq_outbox_duplicates": ("{event}", 1, {}),
        "sea_mq_circuit_open": ("{circuit}", 1, {"circuit": "nats"}),
        "messaging.client.sent.messages": ("{message}", 2, nats | {"messaging.operation.name": "publish"}),
        "messaging.client.consumed.messages": (
            *("{message}", 1, process | {"http.response.status_code": "409"}),
        ),
    }
    for name, expected in values.items():
        (point,) = found[name].data.data_points
        assert (found[name].unit, point.value, point.attributes) == expected
        assert point.start_time_unix_nano == 7
    assert found["sea_mq_outbox_duplicates"].data.is_monotonic
    (latency,) = found["sea_mq_outbox_latency_seconds"].data.data_points
    assert (latency.count, latency.sum, latency.bucket_counts[-1]) == (2, 7200.02, 1)
    assert len(latency.bucket_counts) == len(latency.explicit_bounds) + 1
    (duration,) = found["messaging.process.duration"].data.data_points
    assert (duration.sum, sum(duration.bucket_counts), duration.attributes) == (0.3, 1, process)
    assert [name for name in found if name.endswith("_total")] == []


@pytest.mark.parametrize("module", ["trace_exporter", "metric_exporter"])
def test_without_the_exporter_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, f"opentelemetry.exporter.otlp.proto.http.{module}", None)
    with pytest.raises(WorkerError, match=r"pip install '\.\[otel\]'"):
        export_spans(RESOURCE) if module == "trace_exporter" else MetricsExport(Metrics(), RESOURCE)


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        *(("METRIC_EXPORT_INTERVAL", wrong, "METRIC_EXPORT_INTERVAL") for wrong in ("0", "1s", "-1", "")),
        ("SPAN_ATTRIBUTE_COUNT_LIMIT", "many", r"\*: .*many"),
    ],
)
def test_a_variable_that_is_wrong_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, named: str
) -> None:
    monkeypatch.setenv(f"OTEL_{variable}", value)
    with pytest.raises(ValueError, match=f"^OTEL_{named}"):
        export_spans(RESOURCE) if "SPAN" in variable else MetricsExport(Metrics(), RESOURCE)


def test_the_service_attributes_of_the_environment_take_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "orders-relay")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=a,deployment.environment.name=prod")
    reported = described(context="sea", worker="worker-1").attributes
    assert reported["service.name"] == "orders-relay"
    assert reported["service.instance.id"] == "a"
    assert reported["deployment.environment.name"] == "prod"
