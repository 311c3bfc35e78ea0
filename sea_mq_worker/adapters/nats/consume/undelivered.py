"""Finds recorded messages that a consumer will not deliver again, and reads them from the stream."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from sea_mq_worker.adapters.nats.connection import NatsConnection, api, reading
from sea_mq_worker.adapters.nats.consume.decoding import stored
from sea_mq_worker.adapters.nats.errors import ApiRefusedError
from sea_mq_worker.adapters.nats.server_info import ConsumerInfo, consumer_info
from sea_mq_worker.domain.messages import InboundMessage

READ_BYTES_MAX = 4 * 1024 * 1024
"""Cap on the bytes of messages that one call reads."""
_READS_MAX = 10
"""Cap on concurrent reads; fewer are made while the consumer's filter matches few messages."""
_NO_MESSAGE = 10037


async def find_undeliverable(
    connection: NatsConnection, stream: str, durable: str, seqs: Sequence[int]
) -> Mapping[int, InboundMessage | None]:
    """See ports.jetstream.JetStreamConsumer.

    The server does not report which messages await an acknowledgement. It reports their number, the last
    delivered sequence, and the floor up to which every message is acknowledged.
    """
    info = await consumer_info(connection, stream, durable)
    found: dict[int, InboundMessage | None] = {}
    for seq in seqs:
        if size_of(found.values()) >= READ_BYTES_MAX:
            break
        if info.ack_pending and info.ack_floor < seq <= info.delivered_seq:
            continue
        message = await read_back(connection, stream, durable, seq)
        if message is None or seq <= info.delivered_seq or not info.pending:
            found[seq] = message
    return found


def size_of(messages: Iterable[InboundMessage | None]) -> int:
    """Return the bytes of all messages."""
    return sum(message.size for message in messages if message is not None)


async def ahead(
    connection: NatsConnection, stream: str, durable: str, after_seq: int, limit: int
) -> Sequence[InboundMessage] | None:
    """See ports.jetstream.JetStreamConsumer."""
    info = await consumer_info(connection, stream, durable)
    is_full = 0 < info.max_ack_pending <= info.ack_pending
    if not is_full or info.is_paused:
        return None
    if not info.pending:
        return []
    return await read_on(connection, info, max(after_seq, info.delivered_seq), limit)


async def read_on(
    connection: NatsConnection, info: ConsumerInfo, after_seq: int, limit: int
) -> Sequence[InboundMessage]:
    """Read the next messages behind a sequence that the consumer wants, up to a few MB of them."""
    seq, found, width = after_seq, list[InboundMessage](), _READS_MAX
    while len(found) < limit and size_of(found) < READ_BYTES_MAX:
        reads = [read_next(connection, info, seq + 1 + place) for place in range(width)]
        read = {message.seq: message for message in await asyncio.gather(*reads) if message is not None}
        if not read:
            break
        found += [read[number] for number in sorted(read)]
        seq, width = found[-1].seq, min(2 * len(read), _READS_MAX)
    return found[:limit]


async def read_next(
    connection: NatsConnection, consumer: ConsumerInfo, seq: int, *, deliveries: int = 0
) -> InboundMessage | None:
    """Read the first message at or after a sequence that the consumer wants."""
    reads = [
        read_back(connection, consumer.stream, consumer.name, seq, deliveries=deliveries, next_of=subject)
        for subject in consumer.filters or (">",)
    ]
    found = filter(None, await asyncio.gather(*reads))
    return min(found, key=attrgetter("seq"), default=None)


async def read_back(
    connection: NatsConnection,
    stream: str,
    durable: str,
    seq: int,
    *,
    deliveries: int = 0,
    reply: str = "",
    next_of: str = "",
) -> InboundMessage | None:
    """Read one message as if it had been delivered; None if the stream does not have it.

    ``next_of``: read the first message of these subjects at or after the sequence.

    Raises:
        BrokerUnavailableError: the server did not answer.
        ContractError: there is no such stream, or reading it is forbidden.
    """
    subject, which = f"STREAM.MSG.GET.{stream}", {"seq": seq} | ({"next_by_subj": next_of} if next_of else {})
    try:
        answer = await api(connection, subject, which)
    except ApiRefusedError as error:
        if error.err_code != _NO_MESSAGE:
            raise
        return None
    with reading(subject):
        return stored(answer["message"], stream=stream, consumer=durable, deliveries=deliveries, reply=reply)
