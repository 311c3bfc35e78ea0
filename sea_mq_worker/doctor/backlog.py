"""Findings about rows that wait too long or stay for ever."""

from collections.abc import Iterator, Sequence

from sea_mq_worker.adapters.postgres.connection import quoted_schema
from sea_mq_worker.adapters.postgres.schema.diagnostics import (
    Connections,
    DatabaseFacts,
    Failing,
    OutboxFacts,
    PartitionFacts,
    RowFacts,
    SequenceFacts,
)
from sea_mq_worker.doctor.broker_catalog import BrokerKind
from sea_mq_worker.doctor.database import long_seconds
from sea_mq_worker.doctor.database_catalog import DatabaseKind
from sea_mq_worker.doctor.finding import Finding, format_duration
from sea_mq_worker.domain.missed_messages import RecordedMissed
from sea_mq_worker.settings import Settings

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
