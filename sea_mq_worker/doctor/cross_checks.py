"""Findings about systems that are sound by themselves and do not fit together."""

from collections.abc import Iterator, Sequence
from datetime import timedelta

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.manage.stream_inspection import RECONCILE, lost_since
from sea_mq_worker.adapters.nats.server_info import StreamInfo
from sea_mq_worker.adapters.postgres.checks import Acknowledged
from sea_mq_worker.adapters.postgres.schema.diagnostics import DatabaseFacts, RowFacts
from sea_mq_worker.doctor.backlog import retries_seconds
from sea_mq_worker.doctor.broker import BrokerFacts, consumer_label, stream_label
from sea_mq_worker.doctor.broker_catalog import PairKind
from sea_mq_worker.doctor.database import CLOCK_SECONDS
from sea_mq_worker.doctor.finding import APPLY, Finding
from sea_mq_worker.domain.errors import ContractError
from sea_mq_worker.settings import Settings

_DAY_SECONDS = 86_400.0
_READ_MAX = 10_000
"""Unsettled messages that are read; of more, some are not counted."""
_MINUTE = "%Y-%m-%d %H:%M"


def fit_findings(broker: BrokerFacts, s: Settings) -> Iterator[Finding]:
    """Compare streams with settings."""
    if stream := broker.streams.get(s.stream):
        yield from _window(stream, s)
    for name in sorted({consumer.stream for consumer in s.consumers}):
        stream = broker.streams.get(name)
        if stream and 0 < stream.max_age_seconds < retries_seconds(s):
            what = f"max_age is {stream.max_age_seconds:g} s, the attempts may take {retries_seconds(s):g} s"
            yield PairKind.RETRIES_OUTLIVE_STREAM.finding(stream_label(name), what)


def clock_findings(database: DatabaseFacts, broker: BrokerFacts, s: Settings) -> Iterator[Finding]:
    if stream := broker.streams.get(s.stream):
        offset = stream.clock_offset_seconds - database.clock_offset_seconds
        if abs(offset) > CLOCK_SECONDS:
            yield PairKind.BROKER_CLOCK.finding("NATS's clock", f"{offset:+.0f} s against PostgreSQL's")


def pair_findings(rows: RowFacts, broker: BrokerFacts, s: Settings) -> Iterator[Finding]:
    """Compare rows with streams."""
    if stream := broker.streams.get(s.stream):
        largest, most = rows.outbox.largest_bytes, _bytes_max(stream, broker)
        if largest > most:
            yield PairKind.EVENT_TOO_LARGE.finding(
                stream_label(s.stream), f"the largest waiting event has {largest} bytes, the limit is {most}"
            )
    yield from _unrecorded(rows, broker, s)
    yield from _lost(rows, broker)
    yield from _pruned(rows, broker, s)


async def lost_findings(connection: NatsConnection, rows: Acknowledged, stream: str) -> Sequence[Finding]:
    """Check that the stream still has the events of PUBLISHED rows; needs the right to read the stream."""
    try:
        why = await lost_since(connection, stream, greatest=rows.greatest, shared=rows.shared, some=rows.some)
    except ContractError:
        return ()
    return [PairKind.EVENTS_LOST.finding(stream_label(stream), why, command=RECONCILE)] if why else ()


def _window(stream: StreamInfo, s: Settings) -> Iterator[Finding]:
    window, where = stream.duplicate_window_seconds, stream_label(stream.name)
    lease = s.outbox_lease_seconds + s.outbox_publish_timeout_seconds
    backoff = lease + s.outbox_backoff_max_seconds
    if window <= s.outbox_publish_timeout_seconds:
        what = f"{window:g} s, the publish time-out is {s.outbox_publish_timeout_seconds:g} s"
        yield PairKind.WINDOW_BELOW_PUBLISH.finding(where, what, command=APPLY)
    elif window < lease:
        what = f"{window:g} s, lease and publish time-out are {lease:g} s"
        yield PairKind.WINDOW_BELOW_LEASE.finding(where, what, command=APPLY)
    elif window < backoff:
        what = f"{window:g} s, backoff, lease and publish time-out are {backoff:g} s"
        yield PairKind.WINDOW_BELOW_BACKOFF.finding(where, what, command=APPLY)
    if window > _DAY_SECONDS:
        yield PairKind.WINDOW_DELAYS_REPLAY.finding(where, f"{window:g} s", command=APPLY)


def _bytes_max(stream: StreamInfo, broker: BrokerFacts) -> int:
    limit = stream.config.get("max_msg_size", -1)
    return min(limit, broker.max_payload) if limit > 0 else broker.max_payload


def _unrecorded(rows: RowFacts, broker: BrokerFacts, s: Settings) -> Iterator[Finding]:
    """Compare after a pause: a message that has just been delivered may not be recorded yet."""
    unsettled = {(one.stream, one.consumer): one.unsettled for one in rows.inbox}
    if sum(unsettled.values()) >= _READ_MAX:
        return
    for wanted in s.consumers:
        durable = (wanted.stream, wanted.durable)
        consumer, known = broker.consumers.get(durable), unsettled.get(durable, 0)
        if consumer is None or consumer.is_paused or consumer.ack_pending <= known:
            continue
        if consumer.now - consumer.delivered_at > timedelta(seconds=2 * s.database_timeout_seconds):
            what = (
                f"{consumer.ack_pending} in flight, from sequence {consumer.ack_floor + 1} to "
                f"{consumer.delivered_seq}; {known} unsettled in the inbox; ack_wait is "
                f"{consumer.ack_wait_seconds:g} s"
            )
            yield PairKind.DELIVERIES_UNRECORDED.finding(consumer_label(*durable), what)


def _lost(rows: RowFacts, broker: BrokerFacts) -> Iterator[Finding]:
    for waiting in rows.inbox:
        stream = broker.streams.get(waiting.stream)
        if stream is None or waiting.first_seq is None:
            continue
        first = stream.first_seq
        if waiting.first_seq < first:
            what = f"message {waiting.first_seq} waits in the inbox, the stream begins at {first}"
            where = stream_label(stream.name)
            yield PairKind.MESSAGE_LOST.finding(where, what, command="python -m sea_mq_worker inbox list")


def _pruned(rows: RowFacts, broker: BrokerFacts, s: Settings) -> Iterator[Finding]:
    before = rows.inbox_pruned_before
    for name in sorted({consumer.stream for consumer in s.consumers}):
        stream = broker.streams.get(name)
        if before is None or stream is None or stream.first_time is None:
            continue
        since = stream.first_time
        if since < before:
            what = f"inbox rows before {before:{_MINUTE}} are pruned, messages exist since {since:{_MINUTE}}"
            yield PairKind.INBOX_PRUNED_EARLY.finding(stream_label(name), what)
