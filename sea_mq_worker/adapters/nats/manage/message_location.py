"""Locates one message in its stream, and each consumer's progress with it."""

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.consume.undelivered import read_back
from sea_mq_worker.adapters.nats.errors import ApiRefusedError
from sea_mq_worker.adapters.nats.server_info import ConsumerInfo, consumer_info, durable_consumers
from sea_mq_worker.domain.inbound import recorded_as, storage_id
from sea_mq_worker.domain.stored_messages import ConsumerDelivery, DeliveryState, StoredMessage

_NOT_FOUND = 404


async def locate(connection: NatsConnection, stream: str, seq: int, message_id: str) -> StoredMessage | None:
    """Read a message at its sequence; None if the stream dropped it, or has another message there.

    Raises:
        BrokerUnavailableError: the server did not answer.
        ContractError: asking is not permitted.
    """
    try:
        message = await read_back(connection, stream, "", seq)
    except ApiRefusedError as error:
        if error.code != _NOT_FOUND:
            raise
        return None
    if message is None or message_id not in {recorded_as(message), storage_id(message)}:
        return None
    return StoredMessage(stream=stream, seq=seq, subject=message.subject, stored_at=message.stored_at)


async def consumer_deliveries(
    connection: NatsConnection, found: StoredMessage, *, consumer: str = ""
) -> tuple[ConsumerDelivery, ...]:
    """Return the progress of ``consumer`` with a message, or of all durables of its stream.

    Raises:
        BrokerUnavailableError: the server did not answer.
        ContractError: there is no such consumer, or asking is not permitted.
    """
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
