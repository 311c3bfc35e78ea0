"""Facts become numbers: a bounded vocabulary, cheap to keep and cheap to read."""

from pathlib import Path
from typing import get_args

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sea_mq_worker.operators.records import Depth
from sea_mq_worker.telemetry import metrics as module
from sea_mq_worker.telemetry.events import (
    NOTICES,
    BatchRelayed,
    CircuitClosed,
    CircuitOpened,
    EventDied,
    EventPostponed,
    EventsPublished,
    Fact,
    LeasesLost,
    LeasesReaped,
    MessageDeadLettered,
    MessageGivenBack,
    MessageProcessed,
    MessageRetried,
    MessageSkipped,
    MessagesMissed,
    Noticed,
    Progressed,
    ServerMessageSkipped,
    TypeResumed,
    TypeSlowed,
    WorkerStarted,
    WorkerStopped,
    WorkerTakenOver,
)
from sea_mq_worker.telemetry.metrics import MetricsObserver
from tests.support.simulation import Clock


def published(*, duplicate: bool = False, latency: float = 0.02) -> EventsPublished:
    return EventsPublished(latencies=(latency,), duplicates=int(duplicate), each=tuple)


EVERY_FACT = (
    published(),
    published(duplicate=True, latency=700.0),
    EventPostponed(outbox_id="i", event_type="t", error="e", delay_seconds=1.0, attempts=1),
    EventDied(outbox_id="i", event_type="t", error="e", attempts=1),
    BatchRelayed(claimed=9, published=2, released=7, seconds=0.1),
    LeasesLost(side="inbox", count=3),
    LeasesReaped(count=4),
    WorkerTakenOver(worker="w2", side="outbox", count=5),
    MessageProcessed(message_id="i", consumer="c", subject="s", status=409, seconds=0.3),
    MessageSkipped(message_id="i", consumer="c"),
    MessageSkipped(message_id="i", consumer="c", brought_by="d"),
    ServerMessageSkipped(consumer="c", subject="s", stream_seq=1),
    MessagesMissed(consumer="c", stream="S", first_seq=4, last_seq=9, count=6),
    MessageRetried(message_id="i", consumer="c", error="e", attempts=1, delay_seconds=1.0),
    MessageGivenBack(message_id="i", consumer="c", error="e", delay_seconds=1.0),
    TypeSlowed(event_type="t", reason="r"),
    TypeSlowed(event_type="u", reason="r"),
    TypeResumed(event_type="t", why="w", slow_seconds=1.0),
    MessageDeadLettered(message_id="i", original_subject="s", reason="REJECTED", attempts=1, consumer="c"),
    CircuitOpened(circuit="handler", reason="refused", retry_seconds=1.0),
    CircuitClosed(circuit="handler", paused_seconds=1.0),
    CircuitOpened(circuit="nats", reason="refused", retry_seconds=1.0),
    CircuitOpened(circuit="nats", reason="a failed probe", retry_seconds=2.0),
    Noticed(event="stream_changed", text="t"),
    WorkerStarted(name="w", version="1.0"),
    WorkerStopped(name="w", unfinished=()),
    Progressed(event="e", text="t"),
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
    "sea_mq_notices_total{event=stream_changed}": 1,
    "sea_mq_worker_info{name=w,version=1.0}": 1,
}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(clock: Clock) -> MetricsObserver:
    return MetricsObserver(clock=clock)


def samples(metrics: MetricsObserver) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


@pytest.mark.clause("EVT-047-001")
def test_every_fact_is_counted(metrics: MetricsObserver) -> None:
    assert {type(fact) for fact in EVERY_FACT} == set(get_args(Fact))
    for fact in EVERY_FACT:
        metrics.observe(fact)
    found = samples(metrics)
    assert {name: found.get(name) for name in EXPECTED} == EXPECTED


@pytest.mark.fault("S15")
def test_hostile_values_make_no_endless_series(metrics: MetricsObserver) -> None:
    for number in range(1000):
        metrics.observe(Noticed(event=f"event-{number}", text=""))
        metrics.observe(
            MessageDeadLettered(
                message_id=f"id-{number}", original_subject="s", reason=f"r{number}", attempts=1, consumer="c"
            )
        )
    assert len(samples(metrics)) < 500
    assert samples(metrics)["sea_mq_notices_total{event=other}"] == 1000 - (64 - len(NOTICES))


@pytest.mark.clause("QRY-050", "QRY-051")
def test_backlogs_are_gauges_with_their_age(metrics: MetricsObserver, clock: Clock) -> None:
    unpublished = Depth(count=14, oldest_at=None, waiting=5, waiting_seconds=60.0, scheduled=7, dead=2)
    unprocessed = Depth(count=1, oldest_at=None, waiting=1, waiting_seconds=3.0, scheduled=0, dead=0)
    metrics.set_depth("outbox", unpublished)
    metrics.set_depth("inbox", unprocessed)
    clock.now += 30.0
    found = samples(metrics)
    assert found["sea_mq_outbox_depth"] == 5
    assert found["sea_mq_outbox_oldest_seconds"] == 60.0
    assert found["sea_mq_outbox_dead"] == 2
    assert found["sea_mq_outbox_scheduled"] == 7
    assert found["sea_mq_inbox_depth"] == 1
    assert found["sea_mq_backlog_sample_age_seconds{side=outbox}"] == 30.0
    assert found["sea_mq_backlog_sample_age_seconds{side=inbox}"] == 30.0


def test_lost_events_are_a_gauge_that_falls_again(metrics: MetricsObserver, clock: Clock) -> None:
    for lost in (True, False):
        clock.now += 1.0
        metrics.set_events_lost(lost)
        assert samples(metrics)["sea_mq_outbox_events_lost"] == lost


def test_what_can_be_named_beforehand_begins_at_zero(metrics: MetricsObserver) -> None:
    """A rise from nothing to 1 is none for PromQL's increase()."""
    found = samples(metrics)
    assert found["sea_mq_leases_lost_total{side=outbox}"] == 0
    assert found["sea_mq_notices_total{event=message_lost}"] == 0


def test_a_sampled_number_has_no_value_before_its_first_sample(metrics: MetricsObserver) -> None:
    """A zero would look like an empty queue, and the next number like a rise."""
    sampled = {"sea_mq_outbox_depth", "sea_mq_inbox_dead", "sea_mq_outbox_events_lost"}
    assert not sampled & samples(metrics).keys()


def test_depth_reports_the_pending_messages_of_each_durable(metrics: MetricsObserver) -> None:
    metrics.set_consumer("c", pending=7, ack_pending=2, oldest_seconds=40.0)
    metrics.set_consumer("d", pending=0, ack_pending=0, oldest_seconds=0.0)
    found = samples(metrics)
    assert found["sea_mq_consumer_pending{consumer=c}"] == 7
    assert found["sea_mq_consumer_ack_pending{consumer=c}"] == 2
    assert found["sea_mq_consumer_oldest_seconds{consumer=c}"] == 40
    assert found["sea_mq_consumer_pending{consumer=d}"] == 0


def test_rates_are_of_the_last_ten_whole_seconds(metrics: MetricsObserver, clock: Clock) -> None:
    def rate() -> float:
        return metrics.rates()["published"]

    for second in range(20):
        clock.now = 1000.0 + second
        for _ in range(50):
            metrics.observe(published())
    assert rate() == 50.0
    clock.now += 6.0
    assert rate() == 25.0
    clock.now += 3600.0
    assert rate() == 0.0
    assert metrics.totals() == {"published": 1000}


def test_scrapes_within_a_second_are_rendered_once(metrics: MetricsObserver, clock: Clock) -> None:
    first = metrics.render()
    metrics.observe(published())
    assert metrics.render() is first
    clock.now += 1.0
    assert b"sea_mq_outbox_published_total 1.0" in metrics.render()


def test_no_other_module_registers_metrics() -> None:
    """The vocabulary of one module is the whole vocabulary."""
    package = Path(module.__file__).parents[1]
    users = {path.name for path in package.rglob("*.py") if "prometheus_client" in path.read_text()}
    assert users == {"metrics.py", "metrics_file.py"}
