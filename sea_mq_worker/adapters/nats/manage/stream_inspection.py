"""NatsStreamInspection: messages in streams, and the progress of consumers, for operators."""

from datetime import datetime

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.consume.undelivered import read_back
from sea_mq_worker.adapters.nats.errors import ApiRefusedError
from sea_mq_worker.adapters.nats.manage.lost_events import lost_since
from sea_mq_worker.adapters.nats.publish.search import find_messages
from sea_mq_worker.adapters.nats.server_info import (
    ConsumerInfo,
    consumer_info,
    durable_consumers,
    find_stream,
    stream_info,
)
from sea_mq_worker.domain.inbound import recorded_as, storage_id
from sea_mq_worker.domain.missed_messages import ConsumerStanding
from sea_mq_worker.domain.stored_messages import (
    ConsumerDelivery,
    ConsumerState,
    DeliveryState,
    StoredMessage,
)
from sea_mq_worker.domain.stream_search import SearchedId, SearchResult

_NOT_FOUND = 404


class NatsStreamInspection:
    """Reads only; see ``ports.operations.StreamInspection``."""

    def __init__(self, *, connection: NatsConnection) -> None:
        self._connection = connection

    async def locate(self, stream: str, seq: int, message_id: str) -> StoredMessage | None:
        try:
            message = await read_back(self._connection, stream, "", seq)
        except ApiRefusedError as error:
            if error.code != _NOT_FOUND:
                raise
            return None
        if message is None or message_id not in {recorded_as(message), storage_id(message)}:
            return None
        return StoredMessage(stream=stream, seq=seq, subject=message.subject, stored_at=message.stored_at)

    async def deliveries(self, found: StoredMessage, *, consumer: str = "") -> tuple[ConsumerDelivery, ...]:
        if consumer:
            return (_delivery(await consumer_info(self._connection, found.stream, consumer), found),)
        durables = await durable_consumers(self._connection, found.stream)
        return tuple(_delivery(info, found) for info in durables)

    async def search(self, stream: str, wanted: SearchedId, *, timeout_seconds: float) -> SearchResult | None:
        found = await find_messages(self._connection, stream, [wanted], timeout_seconds=timeout_seconds)
        return found.get(wanted.id)

    async def evidence_of_loss(self, stream: str, seq: int, message_id: str) -> str:
        named = [(message_id, seq)]
        return await lost_since(self._connection, stream, greatest=seq, shared=0, some=named)

    async def first_stored_at(self, stream: str) -> datetime | None:
        info = await find_stream(self._connection, stream)
        return info.first_time if info else None

    async def consumer_state(self, stream: str, durable: str) -> ConsumerState:
        return await consumer_state(self._connection, stream, durable)


async def consumer_state(connection: NatsConnection, stream: str, durable: str) -> ConsumerState:
    """Request a consumer's backlog; raises as ``consumer_info`` does."""
    info = await consumer_info(connection, stream, durable)
    return ConsumerState(
        stream=stream,
        durable=durable,
        pending=info.pending,
        ack_pending=info.ack_pending,
        ack_pending_max=info.max_ack_pending,
        redelivered=info.redelivered,
        paused_seconds=info.paused_seconds,
    )


async def consumer_standing(connection: NatsConnection, stream: str, durable: str) -> ConsumerStanding:
    """Request a consumer's progress, the stream's first: later removals show in the next comparison.

    Raises as ``stream_info`` and ``consumer_info`` do.
    """
    source = await stream_info(connection, stream)
    info = await consumer_info(connection, stream, durable)
    return ConsumerStanding(
        stream_created=source.created,
        consumer_created=info.created,
        first_seq=source.first_seq,
        last_seq=source.last_seq,
        delivered=info.delivered_seq,
        deliveries=info.delivered_count,
        pending=info.pending,
        takes_all=all(map(info.wants, source.subjects or (">",))),
        replaces=source.replaces,
    )


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
