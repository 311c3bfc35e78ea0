"""Streams and consumers for operators: where a message is, a consumer's backlog, and what a stream lost.

Each function raises BrokerUnavailableError if the server does not answer, and ContractError if the request is
not permitted, or if the stream or the consumer does not exist.
"""

import contextlib
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from sea_mq_worker.connections import open_nats
from sea_mq_worker.errors import BrokerUnavailableError, ContractError, WorkerError
from sea_mq_worker.inbox.message import recorded_as, storage_id
from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.nats.errors import ApiRefusedError
from sea_mq_worker.nats.info import (
    ConsumerInfo,
    consumer_info,
    durable_consumers,
    find_stream,
    read_back,
    read_next,
    stream_info,
    subjects_in,
)
from sea_mq_worker.operators.records import (
    ConsumerDelivery,
    ConsumerState,
    DeliveryState,
    StoredMessage,
)
from sea_mq_worker.settings import Settings

_CONNECT_SECONDS = 3.0
"""Cap on the time to connect: somebody waits at the terminal."""
_NOT_FOUND = 404
_CLOCKS = timedelta(hours=1)
"""Tolerance, since the broker's clock may be ahead of the database's."""
"""Command that lists the lost events and publishes them again."""


@asynccontextmanager
async def open_broker(settings: Settings) -> AsyncIterator[NatsConnection]:
    """Connect to NATS; a command prints its own result, and no events of the connection."""
    connection = await open_nats(
        settings,
        purpose="operator",
        on_event=lambda _event, _text: None,
        connect_timeout_seconds=_CONNECT_SECONDS,
    )
    try:
        yield connection
    finally:
        await connection.close()


async def duplicate_window_seconds(settings: Settings) -> float | None:
    """Return the own stream's deduplication window; None: NATS does not answer."""
    if not settings.nats_url.get_secret_value():
        return None
    try:
        async with open_broker(settings) as connection:
            return (await stream_info(connection, settings.stream)).duplicate_window_seconds
    except WorkerError:
        return None


# --- A message, and what its consumers and its stream did with it.


async def locate(connection: NatsConnection, stream: str, seq: int, message_id: str) -> StoredMessage | None:
    """Return the message at a sequence; None: it is gone, or another message is there."""
    try:
        message = await read_back(connection, stream, "", seq)
    except ApiRefusedError as error:
        if error.code != _NOT_FOUND:
            raise
        return None
    if message is None or message_id not in {recorded_as(message), storage_id(message)}:
        return None
    return StoredMessage(stream=stream, seq=seq, subject=message.subject, stored_at=message.stored_at)


async def deliveries(
    connection: NatsConnection, found: StoredMessage, *, consumer: str = ""
) -> tuple[ConsumerDelivery, ...]:
    """Return the progress of ``consumer`` with a message, or of all durables of its stream."""
    if consumer:
        return (_delivery(await consumer_info(connection, found.stream, consumer), found),)
    return tuple(_delivery(info, found) for info in await durable_consumers(connection, found.stream))


def _delivery(info: ConsumerInfo, found: StoredMessage) -> ConsumerDelivery:
    seq = found.seq
    if not info.wants(found.subject):
        reading = DeliveryState.NOT_FOR_IT
    elif seq > info.delivered_seq and info.pending:
        reading = DeliveryState.TO_COME
    elif seq <= info.ack_floor or not info.ack_pending:
        reading = DeliveryState.DONE
    else:
        reading = DeliveryState.DELIVERED
    before = min(seq - info.delivered_seq, info.pending) - 1 if reading is DeliveryState.TO_COME else 0
    return ConsumerDelivery(consumer=info.name, reading=reading, before=before)


async def consumer_state(connection: NatsConnection, info: ConsumerInfo) -> ConsumerState:
    """Return a consumer's backlog; read its oldest message, if that is permitted."""
    oldest = None
    if info.pending:
        with contextlib.suppress(BrokerUnavailableError, ContractError):
            oldest = await read_next(connection, info, info.delivered_seq + 1)
    return ConsumerState(
        stream=info.stream,
        durable=info.name,
        pending=info.pending,
        ack_pending=info.ack_pending,
        ack_pending_max=info.max_ack_pending,
        redelivered=info.redelivered,
        paused_seconds=info.paused_seconds,
        delivered_seq=info.delivered_seq,
        oldest_seconds=max(0.0, (info.now - oldest.stored_at).total_seconds()) if oldest else None,
        oldest_id=recorded_as(oldest) if oldest else "",
    )


# --- The oldest message of the consumed streams, and the backlogs of their consumers.


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliverable:
    """A stream that may redeliver messages received ``since`` this time."""

    stream: str
    since: datetime


async def oldest_deliverable(connection: NatsConnection, streams: Collection[str]) -> Deliverable | None:
    """Return the stream with the oldest message: younger inbox rows must stay.

    None: no stream holds a message.
    """
    infos = [(await find_stream(connection, name), name) for name in sorted(streams)]
    found = [(info.first_time, name) for info, name in infos if info and info.first_time]
    if not found:
        return None
    first, name = min(found)
    return Deliverable(stream=name, since=first - _CLOCKS)


async def consumer_states(settings: Settings) -> tuple[Sequence[ConsumerState], Sequence[str]]:
    """Return the states of the configured consumers, and those that could not be queried with the reason."""
    found: list[ConsumerState] = []
    not_checked: list[str] = []
    try:
        async with open_broker(settings) as connection:
            for wanted in settings.consumers:
                try:
                    info = await consumer_info(connection, wanted.stream, wanted.durable)
                    found.append(await consumer_state(connection, info))
                except WorkerError as error:
                    not_checked.append(f"consumer {wanted.durable} of {wanted.stream}: {error}")
    except WorkerError as error:
        not_checked.append(f"streams: {error}")
    return found, not_checked


async def stored_subjects(settings: Settings) -> tuple[Collection[str], Collection[str]]:
    """Return the subjects in this context's stream, and those in other streams that its consumers want."""
    async with open_broker(settings) as connection:
        sent = await subjects_in(connection, settings.stream)
        received: set[str] = set()
        for wanted in settings.consumers:
            consumer = await consumer_info(connection, wanted.stream, wanted.durable)
            received |= {s for s in await subjects_in(connection, wanted.stream) if consumer.wants(s)}
    return sent, received
