"""Findings about systems that are sound by themselves and do not fit together."""

from collections.abc import Iterator, Sequence
from datetime import timedelta

from sea_mq_worker.doctor.broker import BrokerFacts, BrokerKind, PairKind, consumer_label, stream_label
from sea_mq_worker.doctor.database import CLOCK_SECONDS, DatabaseKind, long_seconds
from sea_mq_worker.doctor.findings import APPLY, Finding, format_duration
from sea_mq_worker.doctor.postgres_facts import (
    Connections,
    DatabaseFacts,
    Failing,
    OutboxFacts,
    PartitionFacts,
    RowFacts,
    SequenceFacts,
)
from sea_mq_worker.errors import ContractError
from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.nats.info import StreamInfo
from sea_mq_worker.operators.checks import Acknowledged, RecordedMissed
from sea_mq_worker.operators.inspection import RECONCILE, lost_since
from sea_mq_worker.postgres.pool import quoted_schema
from sea_mq_worker.settings import Settings

# --- Findings about rows that wait too long or stay for ever.

_UNATTENDED_SECONDS = 60.0
_UNCLAIMED_LEASES = 0.75
_DAY_SECONDS = 86_400.0
_ERROR_CHARS = 300
_PUBLISHED_SECONDS = 30 * _DAY_SECONDS


def backlog_findings(facts: DatabaseFacts, rows: RowFacts, s: Settings) -> Iterator[Finding]:
    """Judge the rows of both tables."""
    yield from map(_failing, rows.failing)
    if s.outbox_enabled:
        yield from _outbox(rows.outbox, facts.connections, s)
        if rows.partitions:
            yield from _partitions(rows.partitions, facts, s)
    for sequence in rows.sequences:
        yield from _sequence(sequence, facts)
    yield from _missed(rows.missed, facts.schema)
    configured = {(consumer.stream, consumer.durable) for consumer in s.consumers}
    for waiting in rows.inbox:
        if not waiting.count:
            continue
        where = f"inbox, by consumer {waiting.consumer} of stream {waiting.stream}"
        what = f"{waiting.count} waiting, the oldest for {format_duration(waiting.seconds)}"
        if (waiting.stream, waiting.consumer) not in configured:
            yield DatabaseKind.INBOX_ORPHANS.finding(
                where, what, command="python -m sea_mq_worker inbox list"
            )
        elif waiting.seconds > retries_seconds(s):
            yield DatabaseKind.INBOX_STUCK.finding(where, what, command="python -m sea_mq_worker inbox list")


def _missed(missed: Sequence[RecordedMissed], schema: str) -> Iterator[Finding]:
    """Report missed messages that a worker recorded, until an operator acknowledges them."""
    for gone in missed:
        where = f"consumer {gone.durable} of stream {gone.stream}"
        latest = f"some of {gone.first_seq} to {gone.last_seq}, {format_duration(gone.seconds)} ago"
        what = f"{gone.count} in all; the latest are {latest}"
        table = f"{quoted_schema(schema)}.sea_mq_standings"
        consumer = f"stream = '{gone.stream}' AND durable = '{gone.durable}'"
        sql = (
            "-- only acknowledges: ends this finding and the page's first line, and brings no message back\n"
            f"UPDATE {table} SET missed = 0, missed_at = NULL WHERE {consumer}"
        )
        yield BrokerKind.MESSAGES_MISSED.finding(where, what, sql=sql)


def retries_seconds(s: Settings) -> float:
    """Return the maximum duration of all attempts of a message, in seconds."""
    return s.inbox_attempts_max * (s.inbox_backoff_max_seconds + s.handler_timeout_seconds)


def _outbox(outbox: OutboxFacts, connections: Connections, s: Settings) -> Iterator[Finding]:
    due = f"the oldest event has been due for {format_duration(outbox.due_seconds)}"
    due = f"{due}; workers connected: {connections.workers}"
    if connections.workers and not connections.relays:
        due += ", none of them publishes"
    if not connections.relays and outbox.due_seconds > _UNATTENDED_SECONDS:
        yield DatabaseKind.OUTBOX_UNATTENDED.finding("outbox", due, command="python -m sea_mq_worker run")
    elif not connections.active and outbox.due_seconds > _UNCLAIMED_LEASES * s.outbox_lease_seconds:
        what = f"{due}; no statement of theirs for {format_duration(s.outbox_lease_seconds / 2)}"
        yield DatabaseKind.OUTBOX_UNCLAIMED.finding("outbox", what)
    elif outbox.due_seconds > long_seconds(s):
        yield DatabaseKind.OUTBOX_BEHIND.finding("outbox", due)
    if outbox.ahead:
        yield DatabaseKind.OUTBOX_AHEAD.finding(
            "outbox",
            f"events with times in the future: {outbox.ahead}",
            command="python -m sea_mq_worker run",
        )
    if outbox.dead:
        command = "python -m sea_mq_worker outbox list --state DEAD"
        held = "; later events of their keys wait" if s.outbox_dead_key == "hold" else ""
        what = f"DEAD events: {outbox.dead}{held}"
        yield DatabaseKind.OUTBOX_DEAD.finding("outbox", what, command=command)
    if outbox.published_seconds > _PUBLISHED_SECONDS:
        what = f"the oldest was published {outbox.published_seconds / _DAY_SECONDS:.0f} days ago"
        command = "python -m sea_mq_worker prune --before 30d --reason 'doctor' --side outbox"
        yield DatabaseKind.OUTBOX_UNPRUNED.finding("outbox", what, command=command)


def _failing(group: Failing) -> Finding:
    kind = DatabaseKind.OUTBOX_FAILING if group.side == "outbox" else DatabaseKind.INBOX_FAILING
    what = (
        f"{group.count} wait, the oldest for {format_duration(group.seconds)}: {group.error[:_ERROR_CHARS]}"
    )
    return kind.finding(group.side, what, command=f"python -m sea_mq_worker where {group.example}")


def _sequence(sequence: SequenceFacts, facts: DatabaseFacts) -> Iterator[Finding]:
    table, name = f"{quoted_schema(facts.schema)}.{sequence.relation}", sequence.name
    where = f"column {name} of {sequence.relation}"
    if (sequence.increment, sequence.cache) != (1, 1):
        what = f"its sequence has increment {sequence.increment} and cache {sequence.cache}, not 1 and 1"
        sql = f"ALTER TABLE {table} ALTER {name} SET INCREMENT 1 SET CACHE 1"
        yield DatabaseKind.SEQUENCE_DIFFERS.finding(where, what, sql=sql)
    if sequence.last is not None and sequence.highest is not None and sequence.last < sequence.highest:
        what = f"the last assigned number is {sequence.last}, a row has {sequence.highest}"
        sql = (
            f"SELECT pg_catalog.setval(pg_catalog.pg_get_serial_sequence('{table}', '{name}'), "  # noqa: S608
            f"pg_catalog.max({name})) FROM {table}"
        )
        yield DatabaseKind.SEQUENCE_BEHIND.finding(where, what, sql=sql)


def _partitions(outbox: PartitionFacts, facts: DatabaseFacts, s: Settings) -> Iterator[Finding]:
    days = outbox.ahead_seconds / _DAY_SECONDS
    if days < s.outbox_partition_days / 2:
        yield DatabaseKind.PARTITIONS_SHORT.finding(
            "outbox", f"partitions exist for {days:.1f} days ahead", command="python -m sea_mq_worker run"
        )
    if outbox.remainder and outbox.remainder_bytes:
        name = f"{quoted_schema(facts.schema)}.{outbox.remainder}"
        what = f"{outbox.remainder} takes {outbox.remainder_bytes} bytes"
        sql = f"VACUUM (TRUNCATE) {name}"
        yield DatabaseKind.DEFAULT_PARTITION_USED.finding("outbox", what, sql=sql)


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
