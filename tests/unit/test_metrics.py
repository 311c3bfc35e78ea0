"""Events become numbers: a bounded vocabulary, cheap to keep and cheap to read."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sea_mq_worker.telemetry import metrics as module
from sea_mq_worker.telemetry.events import EVENTS, NOTICES
from sea_mq_worker.telemetry.metrics import Metrics
from sea_mq_worker.testing.events import Emitted
from tests.support.simulation import Clock


def published(*, duplicate: bool = False, latency: float = 0.02) -> Emitted:
    return Emitted("event_published", count=1, latencies=(latency,), duplicates=int(duplicate), each=tuple)


EVERY_EVENT = (
    published(),
    published(duplicate=True, latency=700.0),
    Emitted("event_postponed", outbox_id="i", event_type="t", error="e", delay_seconds=1.0, attempts=1),
    Emitted("event_died", outbox_id="i", event_type="t", error="e", attempts=1),
    Emitted("batch_relayed", claimed=9, published=2, released=7, seconds=0.1),
    Emitted("leases_lost", side="inbox", count=3),
    Emitted("leases_reaped", count=4),
    Emitted("worker_taken_over", worker="w2", side="outbox", count=5),
    Emitted("message_processed", consumer="c", status=409, count=1, durations=[0.3], each=tuple),
    Emitted("message_skipped", message_id="i", consumer="c", brought_by=""),
    Emitted("message_skipped", message_id="i", consumer="c", brought_by="d"),
    Emitted("server_message_skipped", consumer="c", subject="s", stream_seq=1),
    Emitted("messages_missed", consumer="c", stream="S", first_seq=4, last_seq=9, count=6),
    Emitted("message_retried", message_id="i", consumer="c", error="e", attempts=1, delay_seconds=1.0),
    Emitted("message_given_back", message_id="i", consumer="c", error="e", delay_seconds=1.0),
    Emitted("type_slowed", event_type="t", reason="r"),
    Emitted("type_slowed", event_type="u", reason="r"),
    Emitted("type_resumed", event_type="t", why="w", slow_seconds=1.0),
    Emitted(
        "message_dead_lettered",
        message_id="i",
        original_subject="s",
        reason="REJECTED",
        attempts=1,
        consumer="c",
    ),
    Emitted("circuit_opened", circuit="handler", reason="refused", retry_seconds=1.0),
    Emitted("circuit_closed", circuit="handler", paused_seconds=1.0),
    Emitted("circuit_opened", circuit="nats", reason="refused", retry_seconds=1.0),
    Emitted("circuit_opened", circuit="nats", reason="a failed probe", retry_seconds=2.0),
    Emitted("nats_stream", text="t"),
    Emitted("worker_started", name="w", version="1.0"),
    Emitted("worker_stopped", name="w", unfinished=()),
    Emitted("nats_connected", text="t"),
)
EXPECTED = {
    "sea_mq_outbox_published_total": 2,
    "sea_mq_outbox_duplicates_total": 1,
    "sea_mq_outbox_postponed_total": 1,
    "sea_mq_outbox_died_total": 1,
    "sea_mq_outbox_released_total": 7,
    "sea_mq_outbox_leases_reaped_total": 4,
    "sea_mq_outbox_latency_seconds_count": 2,
    "sea_mq_outbox_latency_seconds_bucket{le=0.025}": 1,
    "sea_mq_outbox_latency_seconds_bucket{le=3600.0}": 2,
    "sea_mq_outbox_batch_seconds_sum": 0.1,
    "sea_mq_leases_lost_total{side=inbox}": 3,
    "sea_mq_leases_taken_over_total{side=outbox}": 5,
    "sea_mq_inbox_processed_total{consumer=c,status=409}": 1,
    "sea_mq_inbox_skipped_total{consumer=c}": 2,
    "sea_mq_inbox_server_messages_total{consumer=c}": 1,
    "sea_mq_inbox_overlapping_total{consumer=c}": 1,
    "sea_mq_inbox_missed_total{consumer=c}": 6,
    "sea_mq_inbox_retried_total{consumer=c}": 1,
    "sea_mq_inbox_given_back_total{consumer=c}": 1,
    "sea_mq_inbox_slow_types": 1,
    "sea_mq_inbox_dead_lettered_total{consumer=c,reason=REJECTED}": 1,
    "sea_mq_inbox_message_seconds_sum{consumer=c}": 0.3,
    "sea_mq_inbox_message_seconds_bucket{consumer=c,le=0.25}": 0,
    "sea_mq_inbox_message_seconds_bucket{consumer=c,le=0.5}": 1,
    "sea_mq_circuit_open{circuit=handler}": 0,
    "sea_mq_circuit_open{circuit=nats}": 1,
    "sea_mq_circuit_opened_total{circuit=nats}": 1,
    "sea_mq_notices_total{event=nats_stream}": 1,
    "sea_mq_worker_info{name=w,version=1.0}": 1,
}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(clock: Clock) -> Metrics:
    return Metrics(clock=clock)


def emit(metrics: Metrics, event: Emitted) -> None:
    fields = dict(vars(event))
    metrics.emit(fields.pop("key"), **fields)


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
    assert with_metrics <= {event.key for event in EVERY_EVENT}
    for event in EVERY_EVENT:
        emit(metrics, event)
    found = samples(metrics)
    assert {name: found.get(name) for name in EXPECTED} == EXPECTED


@pytest.mark.fault("S15")
def test_hostile_values_make_no_endless_series(metrics: Metrics) -> None:
    letter = {"message_id": "i", "original_subject": "s", "attempts": 1, "consumer": "c"}
    for number in range(1000):
        metrics.emit("message_dead_lettered", **letter, reason=f"r{number}")
    assert len(samples(metrics)) < 500
    assert samples(metrics)["sea_mq_inbox_dead_lettered_total{consumer=c,reason=other}"] == 1000 - 64


@pytest.mark.clause("QRY-050", "QRY-051")
def test_backlogs_are_gauges_with_their_age(metrics: Metrics, clock: Clock) -> None:
    metrics.set_depth("outbox", waiting=5, waiting_seconds=60.0, dead=2, scheduled=7)
    metrics.set_depth("inbox", waiting=1, waiting_seconds=3.0, dead=0, scheduled=0)
    clock.now += 30.0
    found = samples(metrics)
    assert found["sea_mq_outbox_depth"] == 5
    assert found["sea_mq_outbox_oldest_seconds"] == 60.0
    assert found["sea_mq_outbox_dead"] == 2
    assert found["sea_mq_outbox_scheduled"] == 7
    assert found["sea_mq_inbox_depth"] == 1
    assert found["sea_mq_backlog_sample_age_seconds{side=outbox}"] == 30.0
    assert found["sea_mq_backlog_sample_age_seconds{side=inbox}"] == 30.0


def test_lost_events_are_a_gauge_that_falls_again(metrics: Metrics, clock: Clock) -> None:
    for lost in (True, False):
        clock.now += 1.0
        metrics.set_events_lost(lost)
        assert samples(metrics)["sea_mq_outbox_events_lost"] == lost


def test_what_can_be_named_beforehand_begins_at_zero(metrics: Metrics) -> None:
    """A rise from nothing to 1 is none for PromQL's increase()."""
    found = samples(metrics)
    assert found["sea_mq_leases_lost_total{side=outbox}"] == 0
    assert found["sea_mq_notices_total{event=message_lost}"] == 0


def test_a_sampled_number_has_no_value_before_its_first_sample(metrics: Metrics) -> None:
    """A zero would look like an empty queue, and the next number like a rise."""
    sampled = {"sea_mq_outbox_depth", "sea_mq_inbox_dead", "sea_mq_outbox_events_lost"}
    assert not sampled & samples(metrics).keys()


def test_depth_reports_the_pending_messages_of_each_durable(metrics: Metrics) -> None:
    metrics.set_consumer("c", pending=7, ack_pending=2, oldest_seconds=40.0)
    metrics.set_consumer("d", pending=0, ack_pending=0, oldest_seconds=0.0)
    found = samples(metrics)
    assert found["sea_mq_consumer_pending{consumer=c}"] == 7
    assert found["sea_mq_consumer_ack_pending{consumer=c}"] == 2
    assert found["sea_mq_consumer_oldest_seconds{consumer=c}"] == 40
    assert found["sea_mq_consumer_pending{consumer=d}"] == 0


def test_rates_are_of_the_last_ten_whole_seconds(metrics: Metrics, clock: Clock) -> None:
    def rate() -> float:
        return metrics.rates()["published"]

    for second in range(20):
        clock.now = 1000.0 + second
        for _ in range(50):
            emit(metrics, published())
    assert rate() == 50.0
    clock.now += 6.0
    assert rate() == 25.0
    clock.now += 3600.0
    assert rate() == 0.0
    assert metrics.totals() == {"published": 1000}


def test_scrapes_within_a_second_are_rendered_once(metrics: Metrics, clock: Clock) -> None:
    first = metrics.render()
    emit(metrics, published())
    assert metrics.render() is first
    clock.now += 1.0
    assert b"sea_mq_outbox_published_total 1.0" in metrics.render()


def test_no_other_module_registers_metrics() -> None:
    """The vocabulary of one module is the whole vocabulary."""
    package = Path(module.__file__).parents[1]
    users = {path.name for path in package.rglob("*.py") if "prometheus_client" in path.read_text()}
    assert users == {"metrics.py", "metrics_file.py", "otlp.py"}
