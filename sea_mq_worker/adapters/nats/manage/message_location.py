"""What a stream still has of one message, and how far each of its consumers is with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sea_mq_worker.adapters.nats.connection import NatsConnection, api
from sea_mq_worker.adapters.nats.consume.undelivered import read_back
from sea_mq_worker.adapters.nats.errors import ApiRefusedError
from sea_mq_worker.adapters.nats.subject_match import covers
from sea_mq_worker.domain.inbound import recorded_as, storage_id

_NOT_FOUND = 404


class DeliveryState(StrEnum):
    """How far a consumer is with a message."""

    TO_COME = "TO_COME"
    """It has not delivered it yet."""
    DELIVERED = "DELIVERED"
    """It has delivered it; the server does not say whether this one or one before it waits for its end."""
    DONE = "DONE"
    """It has acknowledged it, or was made to begin behind it."""
    NOT_FOR_IT = "NOT_FOR_IT"
    """Its filter leaves the message out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerDelivery:
    """A consumer of the stream; ``before`` bounds the messages that it delivers before a message to come."""

    consumer: str
    reading: DeliveryState
    before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A message as its stream has it, without its content."""

    stream: str
    seq: int
    subject: str
    stored_at: datetime
    readers: tuple[ConsumerDelivery, ...] = ()


async def locate(connection: NatsConnection, stream: str, seq: int, message_id: str) -> StoredMessage | None:
    """Look for a message where it was stored; None: the stream has dropped it, or has another one there.

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
    """Tell how far the durables of a message's stream are with it, or only ``consumer``.

    Raises:
        BrokerUnavailableError: the server did not answer.
        ContractError: there is no such consumer, or asking is not permitted.
    """
    if consumer:
        infos: Sequence[Mapping[str, Any]] = [
            await api(connection, f"CONSUMER.INFO.{found.stream}.{consumer}")
        ]
    else:
        infos = await _durables(connection, found.stream)
    return tuple(_reader(info, found) for info in infos)


async def _durables(connection: NatsConnection, stream: str) -> Sequence[Mapping[str, Any]]:
    """List the stream's durables, page by page."""
    found: list[Mapping[str, Any]] = []
    while True:
        page = await api(connection, f"CONSUMER.LIST.{stream}", {"offset": len(found)})
        infos = page.get("consumers") or []
        found += infos
        if not infos or len(found) >= page["total"]:
            return [info for info in found if info["config"].get("durable_name")]


def _reader(info: Mapping[str, Any], found: StoredMessage) -> ConsumerDelivery:
    config, seq = info["config"], found.seq
    filters = config.get("filter_subjects") or [config.get("filter_subject") or ">"]
    delivered, settled = info["delivered"]["stream_seq"], info["ack_floor"]["stream_seq"]
    if not any(covers(pattern, found.subject) for pattern in filters):
        reading = DeliveryState.NOT_FOR_IT
    elif seq > delivered and info["num_pending"]:
        reading = DeliveryState.TO_COME
    elif seq <= settled or not info["num_ack_pending"]:
        reading = DeliveryState.DONE
    else:
        reading = DeliveryState.DELIVERED
    before = min(seq - delivered, info["num_pending"]) - 1 if reading is DeliveryState.TO_COME else 0
    return ConsumerDelivery(consumer=info["name"], reading=reading, before=before)
