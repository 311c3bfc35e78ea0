"""Periodic tasks of the outbox: end expired leases, create partitions ahead, look for lost events."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import asyncpg

from sea_mq_worker.errors import BrokerUnavailableError, ContractError, RowsRefusedError
from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.nats.headers import MSG_ID
from sea_mq_worker.nats.info import read_back, stream_info
from sea_mq_worker.ports import Events, OutboxRepository, Partitions
from sea_mq_worker.postgres.pool import fetch
from sea_mq_worker.postgres.queries import load_queries
from sea_mq_worker.runtime.breaker import CircuitBreaker, periodic
from sea_mq_worker.runtime.row_isolation import report_refused
from sea_mq_worker.runtime.supervisor import Loop

_SET_BACK = "the database's clock was set back since they were written; look at its time server"


async def end_expired_leases(outbox: OutboxRepository, events: Events) -> None:
    """End the leases of workers that died or stalled, and waits that a clock set back made too long."""
    try:
        reaped = await outbox.reap()
    except RowsRefusedError as error:
        report_refused(events, "events whose leases ran out", error)
        return
    if reaped.leases:
        events.emit("leases_reaped", count=reaped.leases)
    if reaped.brought_forward:
        text = f"{reaped.brought_forward} events with a due time in the future are due now: {_SET_BACK}"
        events.emit("clock_set_back", text=text)


async def make_partitions(partitions: Partitions, events: Events, *, days_ahead: int) -> None:
    """Create the partitions of the next days, where the outbox is partitioned by day.

    A worker without the right to create partitions publishes anyway: the default partition takes the events
    of a day without one.
    """
    try:
        made = await partitions.make(days_ahead=days_ahead)
    except ContractError as error:
        events.emit("partitions_not_made", text=str(error))
        return
    if made:
        events.emit("partitions_made", text=", ".join(made))


# --- Lost events: rows that say PUBLISHED, although the stream no longer has their messages.
#
# A stream that was restored or created again may end before what it had acknowledged. Rows remember the place
# of their message, so a bounded sample of them is compared with the stream.

_SQL = load_queries("checks")

RECONCILE = "python -m sea_mq_worker pipeline reconcile --requeue --reason 'the stream lost them'"
_LOST_SECONDS = 30.0
_PAGES = 200
_SOME = 3


class PublishedRow(NamedTuple):
    """The id, place and time that a PUBLISHED row has of its message."""

    id: str
    seq: int
    published_at: datetime


class PublishedRows(NamedTuple):
    """PUBLISHED rows that name one stream.

    ``greatest``: the greatest sequence in a row; 0: there is none. ``shared``: number of rows whose sequence
    is also in another row. ``some``: rows to look up.
    """

    greatest: int = 0
    shared: int = 0
    some: Sequence[PublishedRow] = ()


async def published_rows(pool: asyncpg.Pool, stream: str) -> PublishedRows:
    """Read the latest rows and some others."""
    [row] = await fetch(pool, _SQL["acknowledged"], stream, _PAGES, _SOME)
    some = [
        PublishedRow(event_id, int(seq), datetime.fromtimestamp(float(at), UTC))
        for event_id, seq, at in (one.split() for one in row["some"])
    ]
    return PublishedRows(row["greatest"] or 0, row["shared"], some)


async def find_loss(connection: NatsConnection, stream: str, rows: PublishedRows) -> str:
    """Return the evidence that events are lost; empty: there is none.

    An event that the stream may have dropped by its limits is not lost. One that somebody removed is. The
    rows must have been read before.

    Raises:
        BrokerUnavailableError: the server did not answer.
        ContractError: there is no such stream, or asking is not permitted.
    """
    info = await stream_info(connection, stream)
    if rows.greatest > info.last_seq:
        ends = f"the stream, made at {info.created}, ends at {info.last_seq}"
        return f"a row names sequence {rows.greatest}, and {ends}"
    if rows.shared:
        return f"{rows.shared} rows name a sequence that a later row names, too"
    for row in rows.some:
        message = await read_back(connection, stream, "", row.seq)
        if message is None and not info.may_have_dropped(row.published_at):
            return (
                f"somebody removed message {row.seq}, event {row.id}, from the stream, which begins at "
                f"{info.first_seq}: no limit of the stream does that"
            )
        if message is not None and message.headers.get(MSG_ID) != row.id:
            return f"the stream has another message at {row.seq}, the sequence of event {row.id}"
    return ""


def loss_check(
    pool: asyncpg.Pool,
    connection: NatsConnection,
    *,
    stream: str,
    breaker: CircuitBreaker,
    events: Events,
    on_look: Callable[[bool], None],
) -> Loop:
    """Return a loop that looks at the start and then every 30 s; ``on_look`` gets whether events are lost."""
    reported = False

    async def look() -> None:
        nonlocal reported
        rows = await published_rows(pool, stream)
        try:
            why = await find_loss(connection, stream, rows)
        except (BrokerUnavailableError, ContractError):
            return  # the publisher reports that
        on_look(bool(why))
        if why and not reported:
            loss = f"stream {stream} has lost events whose rows are PUBLISHED: {why}"
            events.emit("events_lost", text=f"{loss}; send them again: `{RECONCILE}`")
        reported = bool(why)

    return periodic(look, breaker=breaker, seconds=_LOST_SECONDS)
